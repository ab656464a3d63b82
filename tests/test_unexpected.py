"""Unexpected exceptions: one line, and a log file for a bug report that does not identify the user."""

import errno
import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
import rich_click as click
from click.testing import CliRunner

from latentsync_trt.cli import main
from latentsync_trt.errors import BundleError, InputError


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_log_path", lambda *_, **__: tmp_path / "logs")
    return tmp_path / "logs"


def doctor(error: BaseException, *words: str) -> tuple[int, str, str]:
    """The command, which raises `error`."""

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    @click.argument("path", required=False)
    def command(as_json: bool, path: str | None) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(main.commands, "doctor", command)
        result = CliRunner().invoke(main, ["doctor", *words])
    return result.exit_code, result.stdout, result.stderr


def test_one_line_and_a_log(logs: Path) -> None:
    clip = Path.home() / "secret folder" / "clip.mp4"
    code, out, err = doctor(KeyError(f"{Path.home()}/x\n{getpass.getuser()}"), str(clip))
    (log,) = logs.iterdir()
    assert (code, out) == (1, "")
    assert err.startswith("error: unexpected KeyError: ")
    assert err.endswith(f"; details in {log}; please report it with that file\n")
    assert err.count("\n") == 1
    text = log.read_text(encoding="utf-8")
    for expected in ("raise error", "KeyError", "numpy 2", "Python 3", "latentsync-trt doctor", "clip.mp4"):
        assert expected in text
    assert str(Path.home()) not in text
    code, out, err = doctor(ZeroDivisionError(), "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["error"].startswith("unexpected ZeroDivisionError; details in ")


@pytest.mark.skipif(os.name == "nt", reason="Windows knows the home folder otherwise")
def test_users_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LATENTSYNC_TRT_CACHE_DIR", raising=False)

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    code, _, error = doctor(ZeroDivisionError())
    assert code == 1 and "details in" in error and error.count("\n") == 1
    result = CliRunner().invoke(main, ["cache", "ls"])
    assert result.exit_code == 2
    assert result.stderr == "error: no home folder; set $HOME to a folder that can be written\n"


def test_names_of_files_cannot_steer_the_terminal(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["sync", "--video", str(tmp_path / "a\x1b]0;b\x07.mp4"), "--audio", "a.wav"])
    assert result.exit_code == 2 and not set("\x1b\x07") & set(result.stderr)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no such file"), 2),
        (BundleError("damaged"), 1),
        (MemoryError(), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_that_were_foreseen_write_no_log(logs: Path, error: BaseException, code: int) -> None:
    assert doctor(error)[0] == code
    assert json.loads(doctor(error, "--json")[1])["error"]
    assert not logs.exists()


def test_a_package_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rich_click.py").write_text("raise ImportError('broken wheel')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "latentsync_trt", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: a package does not load (broken wheel); pip install")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize("words", [["--help"], ["cache", "ls", "--json"]])
def test_a_closed_pipe_ends_quietly(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "latentsync_trt", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
