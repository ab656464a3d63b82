"""The child process that compiles a graph: its order, its answer, and how it ends; with fake compilers.

tests/export/test_check.py has NVIDIA's compiler for RTX, tests/test_tensorrt_stand_in.py ONNX Runtime's provider.
"""

import _thread
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.compiler.process import Answer, CompileOrder, ContextModel, run_compiler
from tests.cache_worker import until

pytestmark = pytest.mark.integration

ROOT = str(Path(__file__).resolve().parents[1])
FAKE = Path(__file__).with_name("fake_tensorrt.py")
ENDED_S = 20.0
"""The end of a process, which takes milliseconds, on a machine that has other things to do."""

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a compiler where a process finds it as `tensorrt`."""
    folder = tmp_path / "compiler"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def write(source: str) -> None:
        (folder / "tensorrt.py").write_text(source, encoding="utf-8")

    write(FAKE.read_text(encoding="utf-8"))
    return write


@pytest.fixture
def order(tmp_path: Path, module: object) -> CompileOrder:
    """Of a graph that is none."""
    graph = tmp_path / "für Ženy" / "graph.onnx"
    graph.parent.mkdir()
    graph.write_text("the graph", encoding="utf-8")
    return CompileOrder("tensorrt", str(graph), {}, engine=str(tmp_path / "model.engine"))


def settings_of(order: CompileOrder) -> dict[str, Any]:
    """The settings that the builder of an engine got."""
    assert order.engine is not None
    settings: dict[str, Any] = json.loads(Path(order.engine).read_bytes())
    return settings


# Order and answer.


def test_an_order_reaches_the_compiler_and_its_answer_comes_back(order: CompileOrder, tmp_path: Path) -> None:
    timings = tmp_path / "kernels.timing"
    timings.write_text("earlier")
    profile = {"x": ((1, 4), (2, 4), (3, 4)), "y": ((1,), (1,), (1,))}
    whole = replace(
        order,
        profile=profile,
        target="SM120",
        optimization_level=0,
        workspace_bytes=1_500_000_000,
        timings=str(timings),
    )
    answer = run_compiler(whole, {"CUDA_VISIBLE_DEVICES": "GPU-1c3b"})
    assert settings_of(whole) == {
        "flags": 1 << 3,  # strongly typed
        "profile": {name: [list(shape) for shape in shapes] for name, shapes in profile.items()},
        "target": ["12.0", 0, 1],
        "level": 0,
        "decomposable": True,
        "workspace": 1_500_000_000,
        "timings": "earlier",
        "graph": "the graph",
        "visible": "GPU-1c3b",
    }
    assert timings.read_bytes() == b"more than earlier"
    assert whole.engine is not None
    size = Path(whole.engine).stat().st_size
    assert answer == Answer(
        True,
        "",
        layers=7,
        engine_bytes=size,
        device_memory_bytes=4321,
        seconds=answer.seconds,
        version="10.14.1.48",
    )
    assert answer.seconds >= 0


def test_an_engine_that_does_not_open_for_lack_of_memory_is_accepted(order: CompileOrder) -> None:
    short = run_compiler(order, {"FAULT": "no memory"})
    assert (short.accepted, short.out_of_memory, short.device_memory_bytes) == (True, False, None)


@pytest.mark.parametrize("content", ["", "damaged", "of another driver"])
def test_rejected_timings_are_not_used(order: CompileOrder, tmp_path: Path, content: str) -> None:
    timings = tmp_path / "kernels.timing"
    timings.write_text(content)
    assert run_compiler(replace(order, timings=str(timings))).accepted
    assert settings_of(order)["timings"] == ""
    assert timings.read_bytes() == b"more than "
    timings.write_text(content)
    answer = run_compiler(replace(order, timings=str(timings)), {"FAULT": "fails"})
    assert answer.reason == "no implementation of a layer"


@pytest.mark.parametrize(
    ("fault", "reason", "out_of_memory"),
    [
        ("fails", "no implementation of a layer", False),
        ("warns", "falls back", False),
        ("silent", "the builder gives no reason", False),
        ("memory", "no tactic", True),
    ],
)
def test_a_refusal_comes_with_its_reason_and_writes_nothing(
    order: CompileOrder, tmp_path: Path, fault: str, reason: str, out_of_memory: bool
) -> None:
    context = ContextModel(str(tmp_path / "context.onnx"), "model.engine", "8.9", (), ())
    changed = replace(order, timings=str(tmp_path / "kernels.timing"), context=context)
    answer = run_compiler(changed, {"FAULT": fault})
    assert answer == Answer(False, reason, out_of_memory, layers=7, seconds=answer.seconds, version="10.14.1.48")
    assert {path.name for path in tmp_path.iterdir()} == {"compiler", "für Ženy"}


def test_an_operation_that_is_refused_is_named_with_its_first_node(order: CompileOrder) -> None:
    answer = run_compiler(order, {"FAULT": "parse"})
    assert (answer.accepted, answer.layers) == (False, 0)
    reasons = ["Bar (node b): of rank 3", "Foo (node a): TensorRT has no such operation"]
    assert sorted(answer.reason.split("; ")) == reasons


# How it ends.


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('broken install')", r"\(exit code 1\): RuntimeError: broken install"),
        ("import os; os._exit(7)", r"\(exit code 7\): no message"),
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


# The model by which an engine is loaded.

INPUTS = (
    ("latents", "float16", ("windows", 4, "frames", 2, 2)),
    ("timestep", "int64", ()),
    ("coefficients", "float32", (5,)),
)
OUTPUTS = (("next_latents", "float16", ("windows", 4, "frames", 2, 2)), ("hidden", "float32", (1, 2)))


@pytest.mark.parametrize(("capability", "architecture"), [("8.9", b"89"), ("12.0", b"120")])
def test_a_context_model_has_one_node_that_names_the_engine(
    order: CompileOrder, tmp_path: Path, capability: str, architecture: bytes
) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "context für Ženy.onnx"
    context = ContextModel(str(path), "model.engine", capability, INPUTS, OUTPUTS)
    assert run_compiler(replace(order, context=context)).accepted
    model = onnx.load(path)
    onnx.checker.check_model(model)
    (node,) = model.graph.node
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    assert {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute} == {
        "embed_mode": 0,
        "ep_cache_context": b"model.engine",
        "hardware_architecture": architecture,
        "source": b"TensorrtExecutionProvider",
    }
    assert list(node.input) == ["latents", "timestep", "coefficients"]
    assert list(node.output) == ["next_latents", "hidden"]
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21, "com.microsoft": 1}
    assert model.ir_version == 10
    assert described(onnx, model.graph.input) == INPUTS
    assert described(onnx, model.graph.output) == OUTPUTS
    assert len(model.graph.initializer) == 0


def described(onnx: Any, values: Any) -> tuple[tuple[str, str, tuple[int | str, ...]], ...]:
    """Name, element type and shape of tensors whose rank is known."""
    found = []
    for value in values:
        tensor = value.type.tensor_type
        assert tensor.HasField("shape")  # a scalar has one, of no dimensions
        shape = tuple(size.dim_param or size.dim_value for size in tensor.shape.dim)
        found.append((value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, shape))
    return tuple(found)


def test_without_onnx_no_time_is_spent_on_an_engine(order: CompileOrder, tmp_path: Path) -> None:
    (tmp_path / "compiler" / "onnx.py").write_text("raise ImportError('no onnx here')")
    context = ContextModel(str(tmp_path / "context.onnx"), "model.engine", "8.9", INPUTS, OUTPUTS)
    answer = run_compiler(replace(order, context=context))
    assert (answer.accepted, "no onnx here" in answer.reason) == (False, True)
    assert order.engine is not None
    assert not Path(order.engine).exists()
