"""The child process that compiles a graph, where it crashes. tests/test_tensorrt_stand_in.py has
all else of it.
"""

import os
import re
from pathlib import Path

import pytest

from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.compiler import CompileOrder, CompileResult, run_compiler

pytestmark = pytest.mark.integration

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


def compiled(folder: Path, source: str) -> CompileResult:
    """The answer of a compiler that its process finds as `tensorrt`, for a graph that is none."""
    (folder / "graph.onnx").write_text("the graph", encoding="utf-8")
    (folder / "tensorrt.py").write_text(f"import os, signal\n{source}", encoding="utf-8")
    return run_compiler(
        CompileOrder("tensorrt", str(folder / "graph.onnx"), {}), {"PYTHONPATH": str(folder)}
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("os._exit(0)", r"\(exit code 0\): no message"),
        pytest.param(
            "os.write(2, b'assertion failed\\n'); signal.raise_signal(11)",
            r"\(signal 11 \(SIGSEGV\)\): assertion failed",
            marks=posix,
        ),
    ],
)
def test_a_compiler_that_crashes_is_a_refusal(tmp_path: Path, source: str, expected: str) -> None:
    answer = compiled(tmp_path, source)
    assert not answer.accepted
    assert not answer.out_of_memory
    assert re.fullmatch(f"the compiler crashed {expected}", answer.reason), answer.reason


@pytest.mark.parametrize(
    "source",
    [
        'os.write(2, b"terminate called: std::bad_alloc\\n"); os._exit(1)',
        pytest.param("signal.raise_signal(9)", marks=posix),
    ],
)
def test_a_compiler_without_memory_is_not_a_refusal(tmp_path: Path, source: str) -> None:
    with pytest.raises(
        OutOfMemory,
        match=r"graph\.onnx: .* was killed",
    ):
        compiled(tmp_path, source)
