"""One graph compiled by TensorRT, or by TensorRT for RTX, in a process of its own.

The compiler works for minutes without looking at signals, writes to the console what no logger gets, keeps much of its
memory, and may crash. In its own process it can be interrupted, and a crash ends that process alone.

ONNX Runtime's TensorRT provider could build engines itself. It is not used for that: from 1.27 on it asks for weakly
typed networks (https://github.com/microsoft/onnxruntime/pull/29779), in which TensorRT does not keep the precision of
float16, INT8 and FP8 graphs; and what it says of a failure does not hold TensorRT's reason.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, cast

from latentsync_trt.errors import EngineBuildError, OutOfMemory

Compiler = Literal["tensorrt", "tensorrt_rtx"]
"""Names of the Python modules."""

_WORKER = "latentsync_trt.runtime.compiler.worker"
_KILLED = -9
"""Exit code of a process that POSIX systems end for memory."""
_OUT_OF_MEMORY = ("bad_alloc", "out of memory", "outofmemory", "memoryerror", "insufficient memory")
_MEMORY_CURE = "close other programs; the published U-Net at 512 px takes about 9 GB"
# Windows delivers Ctrl-C between waits, never inside one.
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ContextModel:
    """The model of one node by which ONNX Runtime loads an engine; see `compiler_worker.write_context_model`."""

    path: str
    engine: str
    compute_capability: str
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]


@dataclass(frozen=True, slots=True)
class CompileOrder:
    """What to compile, and what to write.

    Args:
        compiler: which one. path: the `.onnx` file; external weights lie beside it.
        profile: smallest, usual and largest shape of each input with a variable dimension.
        target: GPU generation to compile for, e.g. "SM89"; None = the GPU of this machine.
        optimization_level: 0 to 5. workspace_bytes: most scratch memory. None = the compiler's own.
        timings: file of kernel timings to read and to write, if it is to be kept.
        engine: file to write the engine to. context: the model that loads it.
        version: what the compiler's version must begin with; another one compiles nothing.
    """

    compiler: Compiler
    path: str
    profile: Mapping[str, tuple[tuple[int, ...], ...]]
    target: str | None = None
    optimization_level: int | None = None
    workspace_bytes: int | None = None
    timings: str | None = None
    engine: str | None = None
    context: ContextModel | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the compiler says.

    `reason`: the operation and the parser's or builder's words; empty if accepted. `out_of_memory`: of the GPU.
    `layers`: TensorRT layers that the parser made of the graph, before fusion; 0 if it could not. `engine_bytes`: size
    of the engine, weights included; 0 if refused. `seconds`: parsing and building. `version`: of the compiler.
    `rejected_timings`: why it rejected the timings of earlier builds, empty if it did not.
    """

    accepted: bool
    reason: str
    out_of_memory: bool = False
    layers: int = 0
    engine_bytes: int = 0
    seconds: float = 0.0
    version: str = ""
    rejected_timings: str = ""


def run_compiler(order: CompileOrder, environment: Mapping[str, str] | None = None) -> Answer:
    """Compiles a graph; a compiler that crashes has refused it.

    Args:
        environment: variables of the compiler's process beside those of this one.

    Raises:
        OutOfMemory: the system ended the process, which systems do for memory, or it said so itself.
        EngineBuildError: the process could not be started.
    """
    done = _run_worker(json.dumps(asdict(order)), environment or {})
    answer = _answer(done.stdout)
    if answer is None:
        return Answer(False, _crash_reason(Path(order.path), done))
    return Answer(**answer)


def memory_error(path: Path, reason: str) -> OutOfMemory:
    """The error for a compiler that had too little memory of the host."""
    return OutOfMemory(f"{path}: the compiler ran out of memory ({reason}); {_MEMORY_CURE}")


def is_out_of_memory(reason: str) -> bool:
    """Whether a compiler's words mean that memory was short."""
    return any(sign in reason.lower() for sign in _OUT_OF_MEMORY)


def module_process(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and variables of a process that runs a module of this very package, whatever folder it is started in, and
    imports nothing from that folder."""
    root = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": paths, "PYTHONUTF8": "1"}


@dataclass(frozen=True, slots=True)
class _Done:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str


def _run_worker(order: str, environment: Mapping[str, str]) -> _Done:
    command, variables = module_process(_WORKER)
    # Files, not pipes, which would have to be read while the compiler works.
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, env={**variables, **environment}
            )
        except OSError as error:
            raise EngineBuildError(f"the compiler's process cannot be started ({error})") from error
        returncode = _wait(process, order)
        if returncode == -signal.SIGINT:  # Ctrl-C reached it first
            raise KeyboardInterrupt
        return _Done(returncode, *(_text(file) for file in (out, err)))


def _wait(process: "subprocess.Popen[bytes]", order: str) -> int:
    """Hands over the order and waits; whatever interrupts the wait ends the process, too."""
    stdin = cast(IO[bytes], process.stdin)
    try:
        with suppress(OSError):  # it has ended already; its exit code and last words say why
            stdin.write(order.encode() + b"\n")
            stdin.flush()
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        with suppress(OSError):  # of what was not read
            stdin.close()


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _answer(output: str) -> dict[str, Any] | None:
    """The worker's last line; None if it did not live to write it."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _crash_reason(path: Path, done: _Done) -> str:
    """Why the worker ended early.

    Raises:
        OutOfMemory: the system killed it, which systems do for memory.
    """
    last_words = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == _KILLED or is_out_of_memory(last_words):
        raise OutOfMemory(f"{path}: the compiler was killed, most likely for memory; {_MEMORY_CURE}")
    return f"the compiler crashed (exit code {done.returncode}): {last_words}"
