"""The child process that compiles a graph, where it crashes. tests/test_tensorrt_stand_in.py has all else of it."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.compiler import Answer, CompileOrder, run_compiler

pytestmark = pytest.mark.integration

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.fixture
def order(tmp_path: Path) -> CompileOrder:
    """Of a graph that is none."""
    graph = tmp_path / "für Ženy" / "graph.onnx"
    graph.parent.mkdir()
    graph.write_text("the graph", encoding="utf-8")
    return CompileOrder("tensorrt", str(graph), {})


def compiled(order: CompileOrder, source: str, **modules: str) -> Answer:
    """The answer of a compiler that its process finds as `tensorrt`, beside other modules."""
    folder = Path(order.path).parent
    for name, text in {"tensorrt": source, **modules}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return run_compiler(order, {"PYTHONPATH": str(folder)})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('broken install')", r"\(exit code 1\): RuntimeError: broken install"),
        ("import os; os._exit(0)", r"\(exit code 0\): no message"),
        pytest.param(
            "import os, signal; os.write(2, b'assertion failed\\n'); os.kill(os.getpid(), signal.SIGSEGV)",
            r"\(signal 11 \(SIGSEGV\)\): assertion failed",
            marks=posix,
        ),
    ],
)
def test_a_compiler_that_crashes_is_a_refusal(order: CompileOrder, source: str, expected: str) -> None:
    answer = compiled(order, source)
    assert not answer.accepted
    assert not answer.out_of_memory
    assert re.fullmatch(f"the compiler crashed {expected}", answer.reason), answer.reason


@pytest.mark.parametrize(
    "source",
    [
        "raise MemoryError",
        'import os; os.write(2, b"terminate called: std::bad_alloc\\n"); os._exit(1)',
        pytest.param("import os; os.kill(os.getpid(), 9)", marks=posix),
    ],
)
def test_a_compiler_without_memory_is_not_a_refusal(order: CompileOrder, source: str) -> None:
    with pytest.raises(OutOfMemory, match=r"graph\.onnx: the compiler was killed, most likely for memory; close other"):
        compiled(order, source)


def test_without_onnx_no_time_is_spent_on_an_engine(order: CompileOrder, tmp_path: Path) -> None:
    answer = compiled(
        replace(order, folder=str(tmp_path)), "__version__ = '10.14'", onnx="raise ImportError('no onnx here')"
    )
    assert (answer.accepted, "no onnx here" in answer.reason) == (False, True)
