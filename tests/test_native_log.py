"""What native libraries write to stderr: ONNX Runtime's error lines are collected, everything else
is passed on.

Each test has a process of its own, as pytest captures the stderr of this one.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="closes and inherits file descriptors as POSIX systems do"
)

LIMIT_S = 600
COLORED = (
    b"\x1b[1;31m2026-01-31 10:00:00.123456789 "
    b"[E:onnxruntime:Default, tensorrt_execution_provider.h:88 log] "
    b"[2026-01-31 09:00:00   ERROR] IBuilder::buildSerializedNetwork: "
    b"Error Code 10: no implementation\x1b[m\n"
)
REASON = "IBuilder::buildSerializedNetwork: Error Code 10: no implementation"

_BEGIN = f"""
import json, os, sys
from latentsync_trt.runtime.engines.native_log import native_errors

COLORED = {COLORED!r}

def write(content):
    os.write(2, content)
"""


def run(code: str) -> tuple[list[str], bytes]:
    """The collected lines that `code` prints, and everything that came out of its stderr."""
    script = (_BEGIN + textwrap.dedent(code)).encode()
    ended = subprocess.run(
        [sys.executable], input=script, capture_output=True, timeout=LIMIT_S, cwd=REPOSITORY
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


OTHER = (
    b"progress  10%\rprogress  20%\r",
    b"\x1b[2K\x1b[32mgreen\x1b[0m\n\n",
    b"not \xff\xfe UTF-8\n",
    b"2026 is a year, and so is a line that begins with it\n",
    b"x" * 200_000 + b"\n",
    b"2026-01-31 10:00:00.1 [W:onnxruntime:Default, session_state.cc:1 f] some nodes were not "
    b"assigned\n",
)


def test_a_reason_loses_its_time_location_and_color_and_all_else_is_passed_on_in_order() -> None:
    code = """
    with native_errors() as lines:
        write(COLORED)
        write(b"2026-01-31 10:00:00.1 [F:onnxruntime:Default, a.cc:1 f] fatal\\n")
        for content in %r:
            write(content)
        print("printed", file=sys.stderr)
        write(COLORED[:30]); sys.stderr.flush(); write(COLORED[30:])  # in two pieces
    print("and after", file=sys.stderr)
    print(json.dumps(lines))
    """
    lines, err = run(code % (OTHER,))
    assert lines == [REASON, "fatal", REASON]
    assert err == b"".join(OTHER) + b"printed\nand after\n"


def test_a_program_without_stderr_works() -> None:
    code = """
    os.close(2)
    for _ in range(2):
        with native_errors() as lines:
            try:
                write(COLORED)
            except OSError:
                pass
        sys.stderr = None
    print(json.dumps(lines))
    """
    assert run(code)[0] == [REASON]
