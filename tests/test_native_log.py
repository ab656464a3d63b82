"""What native libraries say on stderr: reasons are gathered, and all else gets to stderr as if nobody looked.

Each test has a process of its own, as pytest keeps the stderr of this one.
"""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="closes and inherits file descriptors as POSIX systems do")

LIMIT_S = 100
WAIT_S = 1.9
"""Less than a wait for what does not come."""
SOON_S = 20.0
"""Waits that end after two seconds, on a machine that has other things to do."""

COLORED = (
    b"\x1b[1;31m2026-01-31 10:00:00.123456789 [E:onnxruntime:Default, tensorrt_execution_provider.h:88 log] "
    b"[2026-01-31 09:00:00   ERROR] IBuilder::buildSerializedNetwork: Error Code 10: no implementation\x1b[m\n"
)
REASON = "IBuilder::buildSerializedNetwork: Error Code 10: no implementation"
WARNING = b"2026-01-31 10:00:00.1 [W:onnxruntime:Default, session_state.cc:1 f] some nodes were not assigned\n"

_BEGIN = f"""
import json, os, subprocess, sys, threading, time
import onnxruntime as ort
from latentsync_trt.runtime.sessions.native_log import native_errors

COLORED, WARNING = {COLORED!r}, {WARNING!r}

def write(content):
    os.write(2, content)

def told(name):
    "Tells the test where this process is, and waits until it may go on."
    print(name, flush=True)
    sys.stdin.readline()

def answer(**values):
    print(json.dumps(values), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """What a process answered, and everything that came out of its stderr."""

    answer: dict[str, Any]
    err: bytes


def run(code: str, folder: Path, **variables: str) -> Ended:
    """Runs `code`, which answers."""
    process = started(code, folder, **variables)
    out, err = process.communicate(b"\n" * 9, timeout=LIMIT_S)
    assert process.returncode == 0, err
    return Ended(json.loads(out.splitlines()[-1]), err)


def started(code: str, folder: Path, **variables: str) -> "subprocess.Popen[bytes]":
    script = folder / "script.py"
    script.write_text(_BEGIN + textwrap.dedent(code), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), **variables},
    )


def until_told(process: "subprocess.Popen[bytes]", name: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().decode().strip() == name


def go_on(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


# What is gathered.


def test_what_onnxruntime_logs_is_gathered_inside_and_passes_outside(tmp_path: Path) -> None:
    code = """
    import numpy as np
    # y = Reshape(x, s), float32 and int64, any length: it fails where s is not the length of x.
    MODEL = bytes.fromhex(
        "080a3a4c0a120a01780a01731201792207526573686170651201675a100a0178120b0a0908011205"
        "0a0312016e5a0f0a0173120a0a08080712040a02080162100a0179120b0a09080112050a0312016d"
        "42040a001015"
    )
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    def fail(length):
        try:
            session.run(None, {"x": np.ones(3, np.float32), "s": np.array([length])})
        except Exception as error:
            return type(error).__name__
    with native_errors() as inside:
        error = fail(2)
    with native_errors() as none:
        pass
    fail(7)
    answer(error=error, inside=inside, none=none)
    """
    ended = run(code, tmp_path)
    assert ended.answer["error"] == "Fail"
    (line,) = ended.answer["inside"]
    assert line.startswith("Non-zero status code returned while running Reshape node.")
    assert "requested shape:{2}" in line
    assert ended.answer["none"] == []
    assert b"requested shape:{2}" not in ended.err
    assert b"requested shape:{7}" in ended.err


def test_the_default_log_speaks_inside_alone(tmp_path: Path) -> None:
    """Where the CUDA provider's libraries are missing, ONNX Runtime says which to that log, and to nobody else."""
    code = """
    def fail():
        try:
            ort.SessionOptions().add_provider("CUDAExecutionProvider", {})
        except Exception:
            return True
        return False
    import latentsync_trt.runtime.sessions.session  # which silences it
    before = fail()
    with native_errors() as inside:
        fail()
    fail()
    answer(failed=before, built="CUDAExecutionProvider" in ort.get_available_providers(), inside=inside)
    """
    ended = run(code, tmp_path)
    if not ended.answer["built"] or not ended.answer["failed"]:
        pytest.skip("the CUDA provider's libraries are here, or no such provider is")
    assert any("Failed to load library" in line for line in ended.answer["inside"])
    assert b"Failed to load library" not in ended.err


def test_tensorrt_s_reason_loses_time_place_and_color(tmp_path: Path) -> None:
    code = """
    with native_errors() as lines:
        write(COLORED)
        write(b"2026-01-31 10:00:00.1 [F:onnxruntime:Default, a.cc:1 f] fatal\\n")
        write(COLORED[:30]); time.sleep(0.2); write(COLORED[30:])  # in two pieces
        write(WARNING)
    answer(lines=lines)
    """
    ended = run(code, tmp_path)
    assert ended.answer["lines"] == [REASON, "fatal", REASON]
    assert ended.err == WARNING


def test_reasons_are_complete_when_the_block_has_ended(tmp_path: Path) -> None:
    code = """
    counts = []
    for _ in range(20):
        with native_errors() as lines:
            for _ in range(500):
                write(COLORED)
        counts.append(len(lines))
    answer(counts=counts)
    """
    assert run(code, tmp_path).answer["counts"] == [500] * 20


def test_an_error_leaves_the_block_with_its_lines(tmp_path: Path) -> None:
    code = """
    lines = []
    try:
        with native_errors() as lines:
            write(COLORED)
            raise ValueError("as it was")
    except ValueError as error:
        text = str(error)
    write(b"after\\n")
    answer(lines=lines, text=text)
    """
    ended = run(code, tmp_path)
    assert ended.answer == {"lines": [REASON], "text": "as it was"}
    assert ended.err == b"after\n"


# What passes.

OTHER = (
    b"a line\n",
    b"\n",
    b"progress  10%\rprogress  20%\r",
    b"progress 100%\n",
    b"\x1b[2K\x1b[32mgreen\x1b[0m\n",
    b"not \xff\xfe UTF-8\n",
    b"latentsync-trt writes its own name\n",
    b"[E:onnxruntime] is not its log\n",
    b"2026 is a year, and so is a line that begins with it\n",
    b"x" * 200_000 + b"\n",
    WARNING,
)


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_all_else_gets_to_stderr_unchanged_and_in_its_order(tmp_path: Path, pause_s: float) -> None:
    code = """
    OTHER = %r
    with native_errors() as lines:
        for content in OTHER:
            write(content)
            time.sleep(%r)
        print("printed", file=sys.stderr)
    print("and after", file=sys.stderr)
    answer(lines=lines)
    """
    ended = run(code % (OTHER, pause_s), tmp_path)
    assert ended.answer["lines"] == []
    assert ended.err == b"".join(OTHER) + b"printed\nand after\n"


def test_what_python_has_not_yet_written_is_not_taken_for_inside(tmp_path: Path) -> None:
    code = """
    sys.stderr.reconfigure(line_buffering=False, write_through=False)
    print("before", file=sys.stderr)
    with native_errors() as lines:
        print("inside", file=sys.stderr)
    print("after", file=sys.stderr, flush=True)
    answer(lines=lines)
    """
    assert run(code, tmp_path).err == b"before\ninside\nafter\n"


def test_a_progress_line_passes_at_once(tmp_path: Path) -> None:
    code = """
    with native_errors() as lines:
        write(b"progress 10%\\r")
        told("waits inside")
    answer(lines=lines)
    """
    with started(code, tmp_path) as process:
        until_told(process, "waits inside")
        assert process.stderr is not None
        assert os.read(process.stderr.fileno(), 100) == b"progress 10%\r"  # else it hangs, and pytest ends it
        go_on(process)
        assert process.communicate(timeout=LIMIT_S)[1] == b""


UNFINISHED = [b"\x1b[2K\r  40% built", b"2026: almost", b"loading"]
"""Begin as a line of the log does, or as the mark, so that they are held back."""


@pytest.mark.parametrize("content", UNFINISHED)
def test_an_unfinished_line_passes_unchanged(tmp_path: Path, content: bytes) -> None:
    code = """
    start_s = time.monotonic()
    with native_errors() as lines:
        write(%r)
    answer(lines=lines, took_s=time.monotonic() - start_s)
    """
    ended = run(code % content, tmp_path)
    assert ended.err == content
    assert ended.answer["lines"] == []
    assert ended.answer["took_s"] < WAIT_S


def test_a_progress_line_before_a_reason_passes(tmp_path: Path) -> None:
    code = """
    with native_errors() as lines:
        write(b"progress 10%%" + COLORED + b"progress 20%%\\n")
    answer(lines=lines)
    """.replace("%%", "%")
    ended = run(code, tmp_path)
    assert ended.answer["lines"] == [REASON]
    assert ended.err == b"progress 10%progress 20%\n"


# Threads and processes.


def test_several_threads_see_each_other_s_reasons_and_all_is_put_back(tmp_path: Path) -> None:
    code = """
    before = os.fstat(2).st_ino
    together, seen, problems = threading.Barrier(6), [], []
    PLACE = b"2026-01-31 10:00:00.1 [E:onnxruntime:Default, a.cc:1 f] "
    def work(number):
        try:
            together.wait(30)
            for turn in range(20):
                with native_errors() as lines:
                    write(PLACE + b"thread %d turn %d\\n" % (number, turn))
                    write(b"%d\\n" % number)
                seen.append(f"thread {number} turn {turn}" in lines)
        except Exception as error:
            problems.append(repr(error))
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join(60)
    with native_errors() as outer:
        with native_errors() as inner:
            write(COLORED)
        write(COLORED)
    with native_errors() as last:
        pass
    answer(seen=seen, problems=problems, nested=[outer, inner], last=last, back=os.fstat(2).st_ino == before,
           readers=sum(thread.name == "stderr" for thread in threading.enumerate()))
    """
    ended = run(code, tmp_path)
    assert ended.answer["problems"] == []
    assert ended.answer["seen"] == [True] * 120
    assert ended.answer["nested"] == [[REASON, REASON], [REASON]]
    assert (ended.answer["last"], ended.answer["back"], ended.answer["readers"]) == ([], True, 0)
    assert sorted(ended.err.split()) == sorted(b"012345"[n : n + 1] for n in range(6) for _ in range(20))


def test_descriptors_do_not_pile_up(tmp_path: Path) -> None:
    code = """
    def opened():
        return len(os.listdir("/dev/fd"))
    with native_errors():
        pass
    before = opened()
    for _ in range(50):
        with native_errors():
            write(COLORED)
    answer(more=opened() - before)
    """
    assert run(code, tmp_path).answer == {"more": 0}


CHILD = """
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(1); sys.stderr.write('of the child\\\\n')"],
                         stdin=subprocess.PIPE)
"""


def test_a_child_that_keeps_stderr_open_holds_nothing_up(tmp_path: Path) -> None:
    code = f"""
    start_s = time.monotonic()
    with native_errors() as lines:
        {CHILD.strip().replace(chr(10), chr(10) + " " * 8)}
        write(COLORED)
    took_s = time.monotonic() - start_s
    write(b"after\\n")
    with native_errors() as again:
        write(COLORED)
    child.kill()
    child.wait()
    answer(lines=lines, again=again, took_s=took_s)
    """
    ended = run(code, tmp_path)
    assert (ended.answer["lines"], ended.answer["again"]) == ([REASON], [REASON])
    assert ended.answer["took_s"] < SOON_S
    assert ended.err == b"after\n"


def test_what_a_child_says_later_gets_to_stderr_and_nowhere_else(tmp_path: Path) -> None:
    code = f"""
    with native_errors():
        {CHILD.strip().replace(chr(10), chr(10) + " " * 8)}
    files = [open(f"file-{{number}}", "wb") for number in range(9)]  # one takes the number of what was closed
    child.communicate(b"x")
    time.sleep(1)
    for file in files: file.close()
    answer(written=sum(os.path.getsize(file.name) for file in files))
    """
    ended = run(f"os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(code), tmp_path)
    assert ended.answer == {"written": 0}
    assert ended.err == b"of the child\n"


def test_a_console_that_stands_still_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """As one does on Ctrl-S, or where whoever reads a pipe is busy."""
    code = """
    entered = threading.Event()
    def inner():
        with native_errors():
            entered.set()
            write(b"x" * 150_000 + b"\\n")  # more than the pipe behind stderr holds
    with native_errors() as lines:
        thread = threading.Thread(target=inner)
        thread.start()
        entered.wait(30)
        thread.join(30)
        told("the other has left")
        write(b"later\\n")
        write(COLORED)
    answer(lines=lines)
    """
    with started(code, tmp_path) as process:
        until_told(process, "the other has left")
        go_on(process)
        out, err = process.communicate(timeout=LIMIT_S)
    assert err == b"x" * 150_000 + b"\nlater\n"
    assert json.loads(out.splitlines()[-1])["lines"] == [REASON]


# Without stderr.


@pytest.mark.parametrize("end", ["os.close(2)", "sys.stderr = None", "sys.stderr.close()"])
def test_a_program_without_stderr_runs_on(tmp_path: Path, end: str) -> None:
    code = f"""
    {end}
    for _ in range(2):
        with native_errors() as lines:
            try:
                write(COLORED)
            except OSError:
                pass
    answer(lines=lines)
    """
    ended = run(code, tmp_path)
    assert ended.answer == {"lines": [] if end == "os.close(2)" else [REASON]}
