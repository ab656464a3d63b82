"""Unexpected exceptions: one line, and a log file for a bug report that does not identify the
user.
"""

import errno
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import platformdirs
import pytest
import rich_click as click
from click.testing import CliRunner

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError
from latentsync_trt.paths import CACHE_VARIABLE
from tests.bundles import make_bundle
from tests.clips import write_sound


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    with patch.object(platformdirs, "user_log_path", lambda *_, **__: tmp_path / "logs"):
        yield tmp_path / "logs"


def doctor(error: BaseException, *words: str) -> tuple[int, str, str]:
    """The command, which raises `error`."""

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    @click.argument("path", required=False)
    def command(as_json: bool, path: str | None) -> None:
        raise error

    with patch.dict(main.commands, doctor=command):
        result = CliRunner().invoke(main, ["doctor", *words])
    return result.exit_code, result.stdout, result.stderr


def test_one_line_and_a_log(logs: Path) -> None:
    clip = Path.home() / "secret folder" / "clip.mp4"
    code, out, err = doctor(KeyError(f"{Path.home()}/x\n{getpass.getuser()}"), str(clip))
    (log,) = logs.iterdir()
    assert (code, out) == (1, "")
    assert err.startswith("error: unexpected KeyError: ")
    assert err.count(f"; details in {log}; ") == 1
    assert err.count("\n") == 1
    text = log.read_text(encoding="utf-8")
    for expected in (
        "raise error",
        "KeyError",
        "numpy 2",
        "Python 3",
        "latentsync-trt doctor",
        "clip.mp4",
    ):
        assert expected in text
    assert str(Path.home()) not in text
    code, out, err = doctor(ZeroDivisionError(), "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["error"].startswith("unexpected ZeroDivisionError; details in ")


if os.name != "nt":
    STEERING = "\u202e\u2066\u200f\x1b\x07"
else:
    STEERING = "\u202e\u2066\u200f"
"""What no name of a file may bring to a terminal or a log as it is."""
ESCAPED = r"a\u202e\u2066\u200f"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("sync NAME.mp4 a.wav --bundle none", 2),
        ("faces NAME.mp4", 2),
        ("build --bundle checkpoints/NAME --provider cpu", 0),
        ("doctor", 0),
    ],
)
def test_names_of_files_cannot_steer_the_terminal(here: Path, line: str, code: int) -> None:
    name = f"a{STEERING}b"
    write_sound(here / f"{name}.wav", 0.1)
    make_bundle(here / "checkpoints" / name)
    words = [word.replace("NAME", name) for word in line.split()]
    result = CliRunner(env={CHECKPOINTS_VARIABLE: None}).invoke(main, words)
    assert result.exit_code == code, result.output
    assert not set(STEERING) & set(result.output)
    assert ESCAPED in result.output


def test_names_of_files_cannot_steer_where_a_log_is_shown(tmp_path: Path, logs: Path) -> None:
    """As warnings of the library are without a handler for them; and in the file about an error."""
    folder = tmp_path / f"a{STEERING}b"
    (folder / "engine_cache").mkdir(parents=True)
    variables = {name: value for name, value in os.environ.items() if name != CACHE_VARIABLE}
    words = [sys.executable, "-m", "latentsync_trt", "cache", "ls"]
    run = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, encoding="utf-8", check=True
    )
    assert run.stderr.startswith("engine cache: ")
    doctor(ZeroDivisionError(), folder.name)
    (log,) = logs.iterdir()
    for text in (run.stderr, log.read_text(encoding="utf-8")):
        assert ESCAPED in text and not set(STEERING) & set(text)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no such file"), 2),
        (MemoryError(), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_that_were_foreseen_write_no_log(
    logs: Path, error: BaseException, code: int
) -> None:
    assert doctor(error)[0] == code
    assert json.loads(doctor(error, "--json")[1])["error"]
    assert not logs.exists()


def test_a_package_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rich_click.py").write_text("raise ImportError('broken wheel')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "latentsync_trt", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: a package does not load")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "latentsync_trt", "cache", "ls", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
