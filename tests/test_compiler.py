"""The child process that compiles a graph: how it ends. tests/test_tensorrt_stand_in.py has its order and answer."""

import _thread
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.compiler.process import CompileOrder, ContextModel, run_compiler
from tests.cache_worker import until

pytestmark = pytest.mark.integration

ROOT = str(Path(__file__).resolve().parents[1])
ENDED_S = 20.0
"""The end of a process, which takes milliseconds, on a machine that has other things to do."""

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a compiler where a process finds it as `tensorrt`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(source: str) -> None:
        (tmp_path / "tensorrt.py").write_text(source, encoding="utf-8")

    return write


@pytest.fixture
def order(tmp_path: Path) -> CompileOrder:
    """Of a graph that is none."""
    graph = tmp_path / "für Ženy" / "graph.onnx"
    graph.parent.mkdir()
    graph.write_text("the graph", encoding="utf-8")
    return CompileOrder("tensorrt", str(graph), {}, engine=str(tmp_path / "model.engine"))


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
def test_a_compiler_that_crashes_is_a_refusal(
    order: CompileOrder, module: Callable[[str], None], source: str, expected: str
) -> None:
    module(source)
    answer = run_compiler(order)
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
def test_a_compiler_without_memory_is_not_a_refusal(
    order: CompileOrder, module: Callable[[str], None], source: str
) -> None:
    module(source)
    with pytest.raises(OutOfMemory, match=r"graph\.onnx: the compiler was killed, most likely for memory; close other"):
        run_compiler(order)


SLEEPS = """
import os, pathlib, time
pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()) + " ")
time.sleep(600)
"""


def compiling(pid_file: Path) -> int:
    """The number of the process that writes `pid_file`, once it has."""
    until(lambda: pid_file.is_file() and pid_file.read_text().endswith(" "))
    return int(pid_file.read_text())


def ended(pid: int) -> bool:
    """Whether a process has ended; until its parent has waited for it, it is still listed."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_an_interruption_ends_the_compiler(order: CompileOrder, module: Callable[[str], None], tmp_path: Path) -> None:
    module(SLEEPS)
    pid_file = tmp_path / "pid"

    def interrupt() -> None:
        compiling(pid_file)
        _thread.interrupt_main()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        run_compiler(order, {"PID_FILE": str(pid_file)})
    interrupter.join()
    assert not psutil.pid_exists(int(pid_file.read_text()))  # ended, and waited for


def test_a_compiler_ends_with_the_process_that_started_it(
    order: CompileOrder, module: Callable[[str], None], tmp_path: Path
) -> None:
    module(SLEEPS)
    pid_file = tmp_path / "pid"
    code = (
        "import sys; from latentsync_trt.runtime.compiler.process import *; "
        "run_compiler(CompileOrder('tensorrt', sys.argv[1], {}), {'PID_FILE': sys.argv[2]})"
    )
    paths = os.pathsep.join([ROOT, os.environ["PYTHONPATH"]])
    with subprocess.Popen(
        [sys.executable, "-c", code, order.path, str(pid_file)], env={**os.environ, "PYTHONPATH": paths}
    ) as asking:
        pid = compiling(pid_file)
        assert not ended(pid)
        asking.kill()
        asking.wait(ENDED_S)
    until(lambda: ended(pid))


def test_without_onnx_no_time_is_spent_on_an_engine(
    order: CompileOrder, module: Callable[[str], None], tmp_path: Path
) -> None:
    module("__version__ = '10.14'")
    (tmp_path / "onnx.py").write_text("raise ImportError('no onnx here')")
    context = ContextModel(str(tmp_path / "context.onnx"), "model.engine", "8.9", (), ())
    answer = run_compiler(replace(order, context=context))
    assert (answer.accepted, "no onnx here" in answer.reason) == (False, True)
