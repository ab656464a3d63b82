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
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from queue import Queue
from typing import IO, Any, TypeVar, cast

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Child, end_process
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.cache.store import Notice
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.notices import Notices
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.stopping import requested
from latentsync_trt.types import Denoiser, EngineTime, Float32Array, ImageCodec

T = TypeVar("T")

_MODULE = "latentsync_trt.runtime.networks.apart"
_PATIENCE_S = 2.0
_POLL_S = 0.1
_PIPE_BYTES = 1 << 20
_SIZE = struct.Struct("<Q")

# What is read of `Networks` without a call: sent with every answer.
_STATE = ("selection", "windows_per_batch", "low_memory", "building")


class NetworksApart:
    """`Networks` in a child process. Calls of one thread at a time; errors as `Networks`, and `InferenceError` where
    the process has died: `prepare` starts another one.

    Args:
        Those of `Networks`.
    """

    selection: Selection
    windows_per_batch: int
    low_memory: bool
    building: bool
    side_by_side = False

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
        self.codec = cast(ImageCodec, _Part(self._call, "codec"))
        self.denoiser = cast(Denoiser, _Part(self._call, "denoiser"))
        self._order = bundle.folder.resolve(), selection, options, may_fall_back
        self._lock, self._running = threading.Lock(), threading.Lock()
        self._start()

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        """As `Networks.encode_mel`, and so on."""
        return self.run(lambda: cast(Float32Array, self._call("encode_mel", mel)))

    def run(self, action: Callable[[], T]) -> T:
        """As `Networks.run`, with calls in turn."""
        while True:
            with self._running:
                try:
                    return action()
                except OutOfMemory:
                    if self.low_memory:
                        raise
                self._call("save_memory")

    def stage(self, _: str, action: Callable[[], T]) -> T:
        """As `Networks.stage`, without threads."""
        return action()

    def builds(self, graphs: tuple[str, ...]) -> bool:
        self._restart_if_dead()
        return bool(self._call("builds", graphs))

    def prepare(self, graphs: Iterable[str], resolution_px: int | None = None) -> None:
        self._restart_if_dead()
        self._call("prepare", tuple(graphs), resolution_px)

    def open(self, graphs: Iterable[str]) -> None:
        self._call("open", tuple(graphs))

    def warm_up(self, graphs: Iterable[str]) -> None:
        self._call("warm_up", tuple(graphs))

    def between_windows(self) -> None:
        self._call("between_windows")

    def wait_for_build(self) -> str:
        try:
            while self.building:  # in short calls, so that others come between them
                time.sleep(_POLL_S)
                self._call("times")
            return str(self._call("wait_for_build"))
        except InferenceError as error:
            return str(error)

    def times(self) -> tuple[EngineTime, ...]:
        """As `Networks.times`; empty if the process has died."""
        with suppress(InferenceError):
            return cast(tuple[EngineTime, ...], self._call("times"))
        return ()

    def take_notices(self) -> tuple[str, ...]:
        with suppress(InferenceError):
            self._call("take_notices")
        return self.notices.take()

    def close(self) -> None:
        """As `Networks.close`, and ends the process."""
        with suppress(InferenceError):
            self._call("close")
        self._child.end(_PATIENCE_S)

    def _start(self) -> None:
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
            try:
                for answer in self._answers((name, arguments, named)):
                    if answer[0] != "notice":
                        break
                    self.notices.add(answer[1])
            except BaseException:  # Ctrl-C between a call and its answer, which the next call would take for its own
                self._child.end()
                raise
            kind, value, state = answer
            vars(self).update(state)
        if kind == "failed":
            raise value
        return value

    def _answers(self, call: tuple[Any, ...]) -> Iterator[Any]:
        into, out_of = self._child.pipes
        try:
            _send(into, call)
            while True:
                yield _receive(out_of)
        except (OSError, ValueError, EOFError) as error:  # ValueError: a pipe is closed
            raise self._death() from error

    def _death(self) -> BaseException:
        """Why the child, which has closed its pipes, died."""
        ended, gpu = self._child.end(_PATIENCE_S), self._order[1].gpu
        if ended.code == -signal.SIGTERM and requested():
            return KeyboardInterrupt()  # this process has asked it to end
        last_line = f" ({ended.last_error_line})" if ended.last_error_line else ""
        return InferenceError(f"the process of {'the CPU' if gpu is None else gpu} died: {ended}{last_line}")


class _Part:
    """A part of the child's `Networks`, by its name there."""

    def __init__(self, call: Callable[..., Any], name: str) -> None:
        self._call, self._name = call, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, f"{self._name}.{method}")


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

        def opened(folder: Any, selection: Selection, options: RuntimeOptions, may_fall_back: bool) -> Networks:
            bundle = Bundle.load(folder, verify=False)  # the parent has verified it
            tell_notice = partial(tell, "notice")
            return Networks(bundle, selection, options, may_fall_back=may_fall_back, on_notice=tell_notice)

        networks: Networks | None = None
        while True:
            name, arguments, named = calls.get()
            kind, value = "done", None
            try:
                if networks is None:
                    networks = opened(*arguments)
                else:
                    value = attrgetter(name)(networks)(*arguments, **named)
            except LatentSyncError as error:
                kind, value = "failed", error
            except Exception:  # noqa: BLE001 -- a mistake, told with the place where it happened
                kind, value = "failed", RuntimeError(traceback.format_exc())
            tell(kind, value, {} if networks is None else {part: getattr(networks, part) for part in _STATE})


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
    _answer_calls()
