"""Networks in a process of their own, used like those of this process.

ONNX Runtime sets up its attention kernels once a process, for the GPU that runs them first: on another GPU of the same
process they fail with "invalid argument". With a process for each further GPU, its crash also leaves the others alone.

Calls and answers are pickles, whose arrays follow them without being copied.
"""

import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue
from typing import IO, Any

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Child, end_process
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InferenceError
from latentsync_trt.runtime.cache.store import Notice
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.notices import Notices
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions.trace import Trace
from latentsync_trt.types import EngineTime, Float32Array, UInt8Array, UInt16Array, WindowBatch

_MODULE = "latentsync_trt.runtime.networks.apart"
_PATIENCE_S = 2.0
_PIPE_BYTES = 1 << 20
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _State:
    """What is read of `Networks` without a call; sent with every answer."""

    selection: Selection
    windows_per_batch: int
    low_memory: bool
    building: bool


class NetworksApart:
    """`Networks` in a child process. Calls of one thread at a time; errors as `Networks`, and `InferenceError` where
    the process has died: `prepare` starts another one.

    Args:
        Those of `Networks`.
    """

    def __init__(
        self,
        bundle: Bundle,
        selection: Selection,
        options: RuntimeOptions,
        *,
        may_fall_back: bool = False,
        on_notice: Notice | None = None,
    ) -> None:
        self.bundle, self.notices = bundle, Notices(on_notice)
        self.codec, self.denoiser = _Codec(self._call), _Denoiser(self._call)
        self._order = bundle.folder.resolve(), selection, options, may_fall_back
        self._lock = threading.RLock()
        self._times: tuple[EngineTime, ...] = ()
        self._start()

    @property
    def selection(self) -> Selection:
        """As `Networks.selection`, and so on."""
        return self._state.selection

    @property
    def windows_per_batch(self) -> int:
        return self._state.windows_per_batch

    @property
    def low_memory(self) -> bool:
        return self._state.low_memory

    @property
    def building(self) -> bool:
        return self._state.building

    def take_notices(self) -> tuple[str, ...]:
        return self.notices.take()

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        features: Float32Array = self._call("encode_mel", mel)
        return features

    def builds(self, graphs: tuple[str, ...]) -> bool:
        self._restart_if_dead()
        return bool(self._call("builds", graphs))

    def prepare(self, graphs: Iterable[str]) -> None:
        self._restart_if_dead()
        self._call("prepare", tuple(graphs))

    def open(self, graphs: Iterable[str]) -> None:
        self._call("open", tuple(graphs))

    def warm_up(self, graphs: Iterable[str]) -> None:
        self._call("warm_up", tuple(graphs))

    def between_windows(self) -> None:
        self._call("between_windows")

    def wait_for_build(self) -> str:
        return str(self._call("wait_for_build")) if self.building else ""

    def times(self) -> tuple[EngineTime, ...]:
        with suppress(InferenceError):
            self._times = self._call("times")
        return self._times

    def end(self) -> tuple[Iterable[EngineTime], Iterable[Trace]]:
        """As `Networks.end`, and ends the process."""
        found: tuple[Iterable[EngineTime], Iterable[Trace]] = (), ()
        with suppress(InferenceError):
            found = self._call("end")
        self._child.end(_PATIENCE_S)
        return found

    def _start(self) -> None:
        self._times = ()
        self._child = Child(_MODULE, binary=True)
        for stream in self._child.pipes:
            _widen(stream)
        try:
            self._call("open", *self._order)
        except BaseException:
            self._child.end()
            raise

    def _restart_if_dead(self) -> None:
        if not self._child.alive:
            self._child.end()
            self._start()

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The result of a method in the child, or its error."""
        with self._lock:
            into, out_of = self._child.pipes
            try:
                _send(into, (name, arguments, named))
                while (answer := _receive(out_of))[0] == "notice":
                    self.notices.add(answer[1])
            except (OSError, EOFError, ValueError) as error:
                gpu = self._order[1].gpu
                raise InferenceError(
                    f"the process of {'the CPU' if gpu is None else gpu} died: {self._child.wait()}"
                ) from error
            except BaseException:  # Ctrl-C between a call and its answer, which the next call would take for its own
                self._child.end()
                raise
            kind, value, state = answer
            if state is not None:
                self._state: _State = state
        if kind == "failed":
            raise value
        return value


class _Codec:
    """An `ImageCodec`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        found: tuple[Float32Array, Float32Array] = self._call("codec.encode_faces", faces, mask)
        return found

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        found: list[UInt16Array] = self._call("codec.decode_faces", latents)
        return found


class _Denoiser:
    """A `Denoiser`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def begin(self, batch: WindowBatch) -> None:
        self._call("denoiser.begin", batch)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        self._call("denoiser.step", timestep, coefficients, cached=cached, guided=guided)

    def latents(self) -> Float32Array:
        found: Float32Array = self._call("denoiser.latents")
        return found


def _answer_calls() -> None:
    """In the child: calls methods of its `Networks` as they are asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    calls: Queue[tuple[str, tuple[Any, ...], dict[str, Any]]] = Queue()
    with os.fdopen(os.dup(0), "rb") as out_of, os.fdopen(os.dup(1), "wb") as into:
        os.dup2(2, 1)  # for what native code prints
        threading.Thread(target=_read_calls, args=(out_of, calls), daemon=True).start()
        lock = threading.Lock()

        def tell(*answer: Any) -> None:
            with lock:
                _send(into, answer)

        networks: Networks | None = None
        while True:
            name, arguments, named = calls.get()
            try:
                if networks is None:
                    value = None
                    networks = _opened(arguments, lambda text: tell("notice", text))
                else:
                    value = _method(networks, name)(*arguments, **named)
            except Exception as error:  # noqa: BLE001 -- the parent raises it
                tell("failed", _portable(error), None if networks is None else _state_of(networks))
            else:
                tell("done", value, _state_of(networks))


def _opened(order: tuple[Any, ...], on_notice: Notice) -> Networks:
    folder, selection, options, may_fall_back = order
    bundle = Bundle.load(folder, verify=False)  # the parent has verified it
    return Networks(bundle, selection, options, may_fall_back=may_fall_back, on_notice=on_notice)


def _method(networks: Networks, name: str) -> Callable[..., Any]:
    part, _, method = name.rpartition(".")
    found: Callable[..., Any] = getattr(getattr(networks, part) if part else networks, method)
    return found


def _state_of(networks: Networks) -> _State:
    return _State(networks.selection, networks.windows_per_batch, networks.low_memory, networks.building)


def _portable(error: Exception) -> Exception:
    """`error`, or what says the same if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 -- made here
    except Exception:  # noqa: BLE001 -- whatever an unknown class raises
        return InferenceError(f"{type(error).__name__}: {error}")
    return error


def _read_calls(stream: IO[bytes], calls: "Queue[Any]") -> None:
    """Runs in a thread, so that this process ends with its parent even while native code runs."""
    with suppress(EOFError, OSError):
        while True:
            calls.put(_receive(stream))
    end_process(1)


def _send(stream: IO[bytes], message: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    parts: list[Any] = [pickle.dumps(message, protocol=5, buffer_callback=buffers.append)]
    parts += [buffer.raw() for buffer in buffers]
    stream.write(b"".join(map(_SIZE.pack, (len(parts), *(memoryview(part).nbytes for part in parts)))))
    for part in parts:
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    (count,) = _SIZE.unpack(_read(stream, _SIZE.size))
    sizes = [_SIZE.unpack(_read(stream, _SIZE.size))[0] for _ in range(count)]
    data, *buffers = (_read(stream, size) for size in sizes)
    return pickle.loads(data, buffers=buffers)  # noqa: S301 -- from this package's own process


def _read(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    return data


def _widen(pipe: IO[bytes]) -> None:
    """Makes a pipe hold more than 64 kB, where the system lets us: half the time of a window's pictures."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


if __name__ == "__main__":
    from latentsync_trt.runtime.networks import apart  # whose classes the parent knows, unlike those of `__main__`

    apart._answer_calls()
