"""Networks in a process of their own, used like those of this process.

ONNX Runtime sets up its attention kernels once a process, for the GPU that runs them first: on
another GPU of the same process they fail with "invalid argument".
"""

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Child, Emit, Event
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.cache import Notice
from latentsync_trt.runtime.networks.networks import Delegate, Networks, Notices
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.stopping import requested
from latentsync_trt.types import Denoiser, EngineTime, Float32Array, ImageCodec

T = TypeVar("T")

_PATIENCE_S = 2.0

# What is read of `Networks` without a call: sent with every answer.
_STATE = ("selection", "windows_per_batch", "low_memory", "building")


class SubprocessNetworks:
    """`Networks` in a child process. Calls of one thread at a time; errors as `Networks`, and
    `InferenceError` where the process has died.

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
        self.codec = cast(ImageCodec, Delegate(self._call, "codec."))
        self.denoiser = cast(Denoiser, Delegate(self._call, "denoiser."))
        self._lock, self._running = threading.Lock(), threading.Lock()
        self._name = "the CPU" if selection.gpu is None else f"{selection.gpu}"
        self._child = Child(_answer_calls)
        try:
            self._call("open", bundle.folder.resolve(), selection, options, may_fall_back)
        except BaseException:
            self._child.end()
            raise

    def encode_mel(self, mel: Float32Array) -> Float32Array:
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
        return action()

    def __getattr__(self, name: str) -> Any:
        """A method of `Networks`: `builds`, `prepare`, `open`, `warm_up`, `between_windows`."""
        return partial(self._call, name)

    def wait_for_build(self) -> str:
        try:
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
        with suppress(InferenceError):
            self._call("close")
        self._child.end(_PATIENCE_S)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            try:
                answer = self._answer((name, arguments, named))
            except BaseException:  # e.g. Ctrl-C: the next call would take the answer for its own
                self._child.end()
                raise
            vars(self).update(answer["state"])
        if "error" in answer:
            raise answer["error"]
        return answer["value"]

    def _answer(self, call: tuple[Any, ...]) -> Event:
        self._child.send(call)
        for event in self._child.events():
            if "notice" not in event:
                return event
            self.notices.add(event["notice"])
        raise self._death()

    def _death(self) -> BaseException:
        """Why the child, which has closed its connection, died."""
        ended = self._child.end(_PATIENCE_S)
        if requested():
            return KeyboardInterrupt()  # this process has asked it to end
        last_line = f" ({ended.last_error_line})" if ended.last_error_line else ""
        return InferenceError(f"the process of {self._name} died: {ended}{last_line}")


def _answer_calls(calls: Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]], emit: Emit) -> None:
    """In the child: the first call opens `Networks`, others are calls of its methods."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    networks: Networks | None = None
    for name, arguments, named in calls:
        try:
            if networks is None:
                folder, selection, options, may_fall_back = arguments
                bundle = Bundle.load(folder, verify=False)  # the parent has verified it
                networks = Networks(
                    bundle,
                    selection,
                    options,
                    may_fall_back=may_fall_back,
                    on_notice=lambda text: emit(notice=text),
                )
                answer: dict[str, Any] = {"value": None}
            else:
                answer = {"value": attrgetter(name)(networks)(*arguments, **named)}
        except LatentSyncError as error:
            answer = {"error": error}
        except Exception:  # noqa: BLE001 -- a mistake, told with the place where it happened
            answer = {"error": RuntimeError(traceback.format_exc())}
        emit(**answer, state={} if networks is None else {part: getattr(networks, part) for part in _STATE})
