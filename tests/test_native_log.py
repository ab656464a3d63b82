"""What native libraries write to stderr: ONNX Runtime's error lines are collected, everything else is passed on.

Each test has a process of its own, as pytest captures the stderr of this one.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="closes and inherits file descriptors as POSIX systems do")

LIMIT_S = 600
COLORED = (
    b"\x1b[1;31m2026-01-31 10:00:00.123456789 [E:onnxruntime:Default, tensorrt_execution_provider.h:88 log] "
    b"[2026-01-31 09:00:00   ERROR] IBuilder::buildSerializedNetwork: Error Code 10: no implementation\x1b[m\n"
)
REASON = "IBuilder::buildSerializedNetwork: Error Code 10: no implementation"
WARNING = b"2026-01-31 10:00:00.1 [W:onnxruntime:Default, session_state.cc:1 f] some nodes were not assigned\n"

_BEGIN = f"""
import json, os, subprocess, sys, threading, time
from latentsync_trt.runtime.engines.session import native_errors

COLORED, WARNING = {COLORED!r}, {WARNING!r}

def write(content):
    os.write(2, content)

def answer(**values):
    print(json.dumps(values), flush=True)
"""


def run(code: str, folder: Path) -> tuple[dict[str, Any], bytes]:
    """Runs `code`; what it answers, and everything that came out of its stderr."""
    script = folder / "script.py"
    script.write_text(_BEGIN + textwrap.dedent(code), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


OTHER = (
    b"a line\n\n",
    b"progress  10%\rprogress  20%\r",
    b"progress 100%\n",
    b"\x1b[2K\x1b[32mgreen\x1b[0m\n",
    b"not \xff\xfe UTF-8\n",
    b"[E:onnxruntime] is not its log\n",
    b"2026 is a year, and so is a line that begins with it\n",
    b"x" * 200_000 + b"\n",
    WARNING,
)


def test_a_reason_loses_its_time_location_and_color_and_all_else_is_passed_on_in_order(tmp_path: Path) -> None:
    code = """
    with native_errors() as lines:
        write(COLORED)
        write(b"2026-01-31 10:00:00.1 [F:onnxruntime:Default, a.cc:1 f] fatal\\n")
        for content in %r:
            write(content)
        print("printed", file=sys.stderr)
        write(COLORED[:30]); sys.stderr.flush(); write(COLORED[30:])  # in two pieces
    print("and after", file=sys.stderr)
    answer(lines=lines)
    """
    answer, err = run(code % (OTHER,), tmp_path)
    assert answer["lines"] == [REASON, "fatal", REASON]
    assert err == b"".join(OTHER) + b"printed\nand after\n"


def test_threads_collect_one_after_another(tmp_path: Path) -> None:
    code = """
    together, seen = threading.Barrier(4), []
    PLACE = b"2026-01-31 10:00:00.1 [E:onnxruntime:Default, a.cc:1 f] "
    def work(number):
        together.wait()
        for turn in range(5):
            with native_errors() as lines:
                write(PLACE + b"thread %d turn %d\\n" % (number, turn))
            seen.append(lines == [f"thread {number} turn {turn}"])
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    answer(seen=seen)
    """
    answer, err = run(code, tmp_path)
    assert answer["seen"] == [True] * 20
    assert err == b""


def test_a_program_without_stderr_works(tmp_path: Path) -> None:
    code = """
    os.close(2)
    for _ in range(2):
        with native_errors() as lines:
            try:
                write(COLORED)
            except OSError:
                pass
        sys.stderr = None
    answer(lines=lines)
    """
    answer, _ = run(code, tmp_path)
    assert answer == {"lines": [REASON]}
