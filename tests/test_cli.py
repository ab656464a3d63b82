"""The command line: its help texts, its errors and exit codes, the demo."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import cv2
import pytest
import rich_click as click
from click.testing import CliRunner

from latentsync_trt.cli import COMMANDS, EXAMPLES, main
from latentsync_trt.cli.config_file import CONFIG
from latentsync_trt.cli.sync import sync as sync_command
from tests.clips import decoded, write_sound
from tests.small import small_bundle


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"LATENTSYNC_TRT_API_KEY": None}).invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def listed(*words: str) -> set[str]:
    """The options that a help text lists."""
    return set(
        re.findall(r"^ {2}(?:-\w {2}| {4})?(--[\w-]+)", run("sync", *words)[1], re.MULTILINE)
    )


def test_help_is_short_and_help_all_has_all_but_what_is_for_diagnosis() -> None:
    short = listed("--help")
    full = listed("--help-all")
    assert (
        {"--video", "--audio", "--output", "--preview", "--resume", "--codec", "--help-all"}
        < short
        < full
    )
    assert len(short) < 20
    every = {param.opts[0] for param in sync_command.params if isinstance(param, click.Option)}
    diagnosis = {
        "--audio-segments",
        "--cuda-graph",
        "--engine-cache",
        "--graph-variant",
        "--provider-option",
    }
    assert every - full == {*diagnosis, "--syncnet"}


def test_help_imports_nothing_heavy() -> None:
    heavy = (
        "torch",
        "onnxruntime",
        "matplotlib",
        "cv2",
        "av",
        "numpy",
        "psutil",
        "rich.progress",
        "asyncio",
        "msgspec",
    )
    code = (
        "import sys; from click.testing import CliRunner; from latentsync_trt.cli import main; "
        "assert CliRunner().invoke(main, ['sync', '--help-all']).exit_code == 0; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_can_be_called(name: str) -> None:
    """Their options exist, and take such values; files need not exist."""
    context = click.RichContext(main)
    for example in EXAMPLES[name]:
        called, command, arguments = main.resolve_command(context, example.split())
        while isinstance(command, click.RichGroup):
            called, command, arguments = command.resolve_command(context, arguments)
        assert command is not None
        command.make_context(called, list(arguments))


@pytest.fixture
def empty(here: Path) -> Path:
    """The current folder, with an empty video and an empty sound."""
    for name in ("v.mp4", "a.wav"):
        (here / name).touch()
    return here


@pytest.mark.usefixtures("empty")
def test_files_by_place_fill_what_options_leave_open() -> None:
    given = ("v.mp4", "a.wav"), ("v.mp4", "--audio", "a.wav"), ("--video", "v.mp4", "a.wav")
    for arguments in given:
        code, _, err = run("sync", *arguments)
        assert code == 1, arguments
        assert err.startswith("error: v.mp4: is empty (0 bytes)"), arguments


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of configuration; it and "work" beside it exist."""
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: tmp_path / "home")
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    return tmp_path / "home"


def test_a_file_holds_defaults_of_each_command(users: Path, here: Path) -> None:
    """One beside the work, else the user's, or any other by name; options override it."""
    # As editors and shells of Windows write it.
    for folder, table, encoding in (
        (users, "max-gb = 3", "utf-8-sig"),
        (here / "work", "max_gb = -1", "utf-16"),
    ):
        text = f"[cache.prune]\n{table}\n[sync]\nspeaker = '0=a.wav'\ndevice = [0, 1]\n"
        (folder / CONFIG).write_text(text, encoding=encoding)
    prune = ("cache", "prune", "--engine-cache", str(here / "none"))
    assert run(*prune)[1].startswith("removed 0")
    with chdir(here / "work"):
        assert "-1" in run(*prune)[2]
        assert run("cache", "--config", str(users / CONFIG), *prune[1:])[1].startswith("removed 0")
        assert run(*prune, "--max-gb", "1")[1].startswith("removed 0")
        context = sync_command.make_context("sync", ["in.mp4"], parent=click.RichContext(main))
    assert (context.params["speaker"], context.params["device"]) == (("0=a.wav",), "0,1")


@pytest.mark.usefixtures("empty")
def test_a_file_of_the_current_folder_says_what_it_sets() -> None:
    Path(CONFIG).write_text("[sync]\npreset = 'draft'\ncrf = 30\n[cache.prune]\nmax-gb = 3\n")
    sync = "sync", "v.mp4", "a.wav"
    note = f"note: {CONFIG} in the current folder holds defaults of "
    assert run(*sync)[2].splitlines()[0] == f"{note}preset, crf"
    assert run("cache", "prune", "--engine-cache", "x")[2] == f"{note}prune\n"
    for more in (["-q"], ["--json"], ["--config", CONFIG]):
        assert note not in run(*sync, *more)[2]
    assert note not in run("faces", "v.mp4")[2]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(("serve", option) for option in ("host = '0.0.0.0'", "no-key = true")),
        ("sync", "provider-option = 'trt_extra_plugin_lib_paths=./plugin.so'"),
        ("sync", "overwrite = true"),
        ("sync", "report = 'page.html'"),
        ("export", "output = 'bundle'"),
        ("setup", "yes = true"),
    ],
)
def test_no_file_of_the_current_folder_opens_a_door(
    users: Path, here: Path, name: str, option: str
) -> None:
    """One of the user's own folder does, and one that is named."""
    text = f"[{name}]\n{option}\n" + ("bundle = 'none'\n" if name in ("serve", "sync") else "")
    for folder in (users, here / "work"):
        (folder / CONFIG).write_text(text)
    with chdir(here / "work"):
        code, out, err = run(name)
        named = run(name, "--config", CONFIG)[2]
    assert (code, out) == (2, "")
    assert f"{option.partition(' ')[0]}: is not taken from " in err
    assert str(users / CONFIG) in err
    assert named == run(name)[2]
    assert "current folder" not in named


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


BAD_FILES: dict[str, Callable[[Path], object]] = {
    "nested tables": lambda path: path.write_text("x = " + 5000 * "["),
    "two megabytes": lambda path: path.write_text("#" * 2_000_000),
    "a folder": Path.mkdir,
}
if os.name != "nt":
    BAD_FILES |= {"a pipe": os.mkfifo, "a link to a device": link_to_a_device}


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_is_no_small_text_file_in_the_current_folder(here: Path, name: str) -> None:
    BAD_FILES[name](here / CONFIG)
    code, out, err = run("cache", "ls")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {CONFIG}: ")


@pytest.mark.integration
def test_demo_writes_source_and_result(tmp_path: Path) -> None:
    speech = write_sound(tmp_path / "short.wav", 0.32)
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "out.mp4").write_bytes(b"of an earlier call")
    arguments = ("--audio", str(speech), "--bundle", str(small_bundle()), "--preset", "draft")
    code, out, err = run("demo", "--output", str(folder), *arguments)
    assert code == 0, err
    assert "face in 8" in out
    assert "cannot tell" in out and ": too short" in out
    assert len(decoded(folder / "source.mp4")) == len(decoded(folder / "out.mp4")) == 8
    for name, width_px in (("side_by_side.png", 180 + 256), ("sync.png", 1200)):
        assert cv2.imread(str(folder / name)).shape[1] >= width_px
