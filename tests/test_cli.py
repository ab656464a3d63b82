"""The command line: its help texts, its errors and exit codes, the demo."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import cv2
import pytest
import rich_click as click
from click.testing import CliRunner
from rich.console import Console

from latentsync_trt.cli import COMMANDS, main, show
from latentsync_trt.cli.show import Notices, progress_bar, show_report
from latentsync_trt.cli.sync import command as sync_command
from latentsync_trt.types import Progress, SyncReport
from tests.clips import decoded, write_sound
from tests.small import small_bundle


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert out.startswith(f"Usage: main {command}")
    assert f"\n  {command} " in run("--help")[1]


def test_help_is_plain_text_in_groups() -> None:
    out = run("sync", "--help")[1]
    headings = [line.strip() for line in out.splitlines() if line.rstrip().endswith(":") and not line.startswith(" ")]
    groups = ("Input and output", "Quality and speed", "Faces", "Time", "Sound", "Encoding", "Hardware", "Options")
    assert headings == [f"{group}:" for group in groups]
    assert out.isascii()


def test_advanced_options_are_shown_by_help_all_only() -> None:
    short, full = run("sync", "--help")[1], run("sync", "--help-all")[1]
    options = {name for param in sync_command.params for name in param.opts}
    assert {name for name in options if f"{name} " in full or f"{name}/" in full} == options
    assert "--crf" in short
    for name in ("--steps", "--provider-option", "--device"):
        assert name in full
        assert f"{name} <" not in short
    assert short == run("sync", "--help")[1]
    assert "--help-all" not in run("doctor", "--help")[1]


@pytest.mark.parametrize("arguments", [["--help"], ["sync", "--help-all"]])
def test_help_is_quick_and_imports_nothing_heavy(arguments: list[str]) -> None:
    heavy = "torch", "onnxruntime", "matplotlib", "cv2", "av", "librosa", "numpy", "psutil", "rich.progress", "asyncio"
    code = (
        "import sys, time; from click.testing import CliRunner; from latentsync_trt.cli import main; "
        "assert CliRunner().invoke(main, sys.argv[1:]).exit_code == 0; "
        f"print(time.process_time(), [name for name in {heavy} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    seconds, _, imported = answer.stdout.strip().partition(" ")
    assert imported == "[]"
    assert float(seconds) < 0.8  # about 0.2 s of CPU time on an idle core


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    context = click.RichContext(main)
    for name, line in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert " ".join((command.help or "").partition("\n\n")[0].split()) == line


def test_each_notice_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    notices = Notices()
    notices("building engines")
    show_report(
        SyncReport(
            "out.mp4",
            "demo",
            "cpu",
            1,
            1,
            1,
            0.04,
            1.0,
            0.5,
            2.0,
            (),
            (),
            ("building engines", "the picture starts again"),
        ),
        notices,
    )
    assert capsys.readouterr().err == "note: building engines\nnote: the picture starts again\n"


@pytest.mark.parametrize(("done", "total", "count"), [(2, 7, "2/7"), (6, 7, "6/7"), (0, None, "0/?")])
def test_the_progress_bar_shows_the_last_stage(
    done: int, total: int | None, count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, hidden = StringIO(), StringIO()
    for file in (shown, hidden):
        monkeypatch.setattr(show, "STDERR", Console(file=file, force_terminal=True, width=100))
        with progress_bar(hidden=file is hidden) as move:
            move(Progress("lip-sync", 4, 5))
            move(Progress("measuring", done, total))
    assert "measuring" in shown.getvalue()
    assert count in shown.getvalue()
    assert not hidden.getvalue().strip()


@pytest.mark.integration
def test_demo_writes_source_and_result(tmp_path: Path) -> None:
    speech = write_sound(tmp_path / "short.wav", 0.32)
    folder = tmp_path / "demo"
    arguments = ("--audio", str(speech), "--bundle", str(small_bundle()), "--preset", "fast")
    code, out, err = run("demo", "--out", str(folder), *arguments)
    assert code == 0, err
    assert "face in 8" in out
    assert 0 <= err.find("note: the built-in model is") < err.find("lip-sync")
    assert "note: the sound is encoded as AAC" in err
    assert "lips: opening follows loudness at r = " in out
    assert len(decoded(folder / "source.mp4")) == len(decoded(folder / "out.mp4")) == 8
    for name, width_px in (("side_by_side.png", 5 * 264), ("sync.png", 1200)):
        assert cv2.imread(str(folder / name)).shape[1] >= width_px
