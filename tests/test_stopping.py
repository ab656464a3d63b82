"""Stopping a command: at any moment it ends in time, says so, and leaves neither files nor
processes behind.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from latentsync_trt.files import PREFIX
from tests.clips import gif, write_face, write_sound
from tests.serving import until
from tests.small import small_bundle
from tests.terminal import Terminal

pytestmark = pytest.mark.integration

if os.name == "nt":
    pytest.skip("Windows delivers Ctrl-C to whole process groups only", allow_module_level=True)

REPOSITORY = Path(__file__).resolve().parents[1]

PATIENCE_S = 60.0
"""Only ends hangs; an idle machine takes less than two seconds."""

BAR = "━"
CTRL_C = "\x03"
MESSAGE = "interrupted; unfinished files were removed\n"


@pytest.fixture(autouse=True)
def hangup_not_ignored() -> Iterator[None]:
    """Commands inherit what `nohup pytest` ignores, and then do not stop for it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def running(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Python with arguments; a test that fails leaves no process behind either."""
    words = [sys.executable, *map(str, arguments)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, text=True, cwd=REPOSITORY, **pipes) as process:
        try:
            yield process
        finally:
            with suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()


@contextmanager
def waiting(folder: Path, how: str) -> Iterator["subprocess.Popen[str]"]:
    """A command with a temporary folder and a child process, which waits; see `stopped_command`."""
    with running("-m", "tests.stopped_command", folder, how) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        yield process


def stopped(process: "subprocess.Popen[str]", kind: signal.Signals) -> tuple[int, str, str]:
    """Sends a signal; returns exit code, stdout and stderr when no process is left."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(kind)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert not psutil.wait_procs(children, PATIENCE_S)[1]
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("how", "kind", "code"), [("python", signal.SIGINT, 130), ("failing", signal.SIGHUP, 129)]
)
def test_the_first_signal_leaves_nothing_behind(
    tmp_path: Path, how: str, kind: signal.Signals, code: int
) -> None:
    with waiting(tmp_path, how) as process:
        assert stopped(process, kind) == (code, "", "stopping…\n" + MESSAGE)
    assert list(tmp_path.iterdir()) == []


def test_the_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Even in native code that leaves Python's lock alone no sooner than in ten minutes."""
    with waiting(tmp_path, "native") as process:
        children = psutil.Process(process.pid).children()
        assert children
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.readline() == "stopping…\n"
        assert process.stderr.readline() == "leaving\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    assert psutil.wait_procs(children, PATIENCE_S)[1] == []


def test_signals_that_were_ignored_at_the_start_stay_ignored(tmp_path: Path) -> None:
    """As shells do for background jobs, and `nohup` for SIGHUP."""
    ignored = (signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(kind, signal.SIG_IGN) for kind in ignored]
    with waiting(tmp_path, "python") as process:
        for kind, handler in zip(ignored, before, strict=True):
            signal.signal(kind, handler)
            process.send_signal(kind)
        assert stopped(process, signal.SIGTERM) == (143, "", "stopping…\n" + MESSAGE)


def test_during_imports() -> None:
    """After the interpreter's own start, which is not ours to handle."""
    with running("-m", "latentsync_trt", "selftest", "--provider", "cpu", "--json") as process:
        until(lambda: handles_signals(process.pid))
        code, out, err = stopped(process, signal.SIGINT)
    assert (code, err) == (130, "stopping…\n")
    assert "interrupted" in json.loads(out)["error"]


def handles_signals(pid: int) -> bool:
    """Whether the process catches SIGTERM."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def test_the_installed_command_handles_signals_first() -> None:
    assert '"latentsync_trt.__main__:main"' in (REPOSITORY / "pyproject.toml").read_text(
        encoding="utf-8"
    )
    code = (
        "import sys, latentsync_trt.__main__; print([n for "
        "n in ('numpy', 'click', 'rich') if n in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )


# In a terminal, where bars are shown

COMMAND = "from latentsync_trt.__main__ import main; main()"

BUILDING = f"""
from threading import Event
from latentsync_trt.runtime.engines.session_factory import SessionFactory

SessionFactory.compiled = property(lambda factory: True, lambda factory, value: None)
SessionFactory.open = lambda factory, graph: Event().wait()
{COMMAND}
"""
"""With a provider whose compiler does not end."""

SENTENCE = MESSAGE.strip()

STOPPED = [
    ("faces long.gif", "finding faces", SENTENCE),
    (
        "batch jobs.csv --bundle SMALL --workers 2 --steps 999",
        "painting first frames",
        "interrupted; the same command goes on",
    ),
    ("build --bundle SMALL", "building engines", SENTENCE),
]
"""Command, what it shows when it is stopped, and how its last line begins."""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_face(folder / "clip.mp4", 5)
    (folder / "long.gif").write_bytes(gif(480, 20_000))
    write_sound(folder / "long.wav", 0.4)
    (folder / "jobs.csv").write_text(
        "video,audio,output\nclip.mp4,long.wav,a.mp4\nclip.mp4,long.wav,b.mp4\n"
    )
    return folder


@pytest.mark.parametrize(
    ("line", "shown", "last"), STOPPED, ids=[line.split()[0] for line, *_ in STOPPED]
)
def test_ctrl_c_leaves_a_sentence_and_no_bar(clips: Path, line: str, shown: str, last: str) -> None:
    words = [str(small_bundle()) if word == "SMALL" else word for word in line.split()]
    before = set(clips.glob(f"{PREFIX}*"))
    script = BUILDING if words[0] == "build" else COMMAND
    with Terminal(["-c", script, *words], clips, CUDA_VISIBLE_DEVICES="") as terminal:
        terminal.until_shown(shown, BAR)
        terminal.press(CTRL_C)
        code, screen, cursor = terminal.ended()
    assert (code, cursor) == (130, True)
    assert screen[-1].startswith(last)
    assert not [row for row in screen if BAR in row]
    assert set(clips.glob(f"{PREFIX}*")) == before
