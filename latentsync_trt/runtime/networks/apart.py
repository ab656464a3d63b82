"""Networks in a process of their own, used like those of this process.

ONNX Runtime sets up its attention kernels once a process, for the GPU that runs them first: on
another GPU of the same process they fail with "invalid argument".
"""

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Child, Emit
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InferenceError, LatentSyncError
from latentsync_trt.runtime.cache import Notice
from latentsync_trt.runtime.networks.networks import Delegate, Networks, Notices
from latentsync_trt.runtime.networks.threads import Shared, Stage, results
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.stopping import requested
from latentsync_trt.types import Denoiser, EngineTime, Float32Array, ImageCodec

T = TypeVar("T")

_PATIENCE_S = 2.0

# What is read of `Networks` without a call: sent with every answer.
_STATE = ("selection", "windows_per_batch", "side_by_side", "low_memory", "building", "built")


class SubprocessNetworks(Shared):
    """`Networks` in a child process. Calls of several threads at a time; errors as `Networks`, and
    `InferenceError` where the process has died.

    They open while the caller goes on. The first call waits for that; each raises `EngineBuildError` if it failed.

    Args:
        Those of `Networks`.

    Raises:
        OSError: no process can be started.
    """

    side_by_side = low_memory = building = built = False
    windows_per_batch = 1

    def __init__(
        self,
        bundle: Bundle,
        selection: Selection,
        options: RuntimeOptions,
        *,
        may_fall_back: bool = False,
        on_notice: Notice | None = None,
    ) -> None:
        super().__init__()
        self.bundle, self.selection, self.notices = bundle, selection, Notices(on_notice)
        self.codec = cast(ImageCodec, Delegate(self._call, "codec."))
        self.denoiser = cast(Denoiser, Delegate(self._call, "denoiser."))
        self._stages = {stage: threading.Lock() for stage in get_args(Stage)}
        self._name = "the CPU" if selection.gpu is None else f"{selection.gpu}"
        self._lock, self._numbers = threading.Lock(), count()
        self._waiting: dict[int, Future[Any]] = {}
        self._dead = False
        self._child = Child(_answer_calls)
        threading.Thread(target=self._read_answers, name=f"answers of {self._name}", daemon=True).start()
        self._opened = self._start("open", bundle.folder.resolve(), selection, options, may_fall_back)

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        return self.run(lambda: cast(Float32Array, self._call("encode_mel", mel)))

    def save_memory(self) -> None:
        """As `Networks.save_memory`."""
        self._call("save_memory")

    def is_ready(self, graphs: tuple[str, ...]) -> bool:
        return bool(self._call("is_ready", graphs))

    def open_all(self, graphs: tuple[str, ...]) -> None:
        self._call("open_all", graphs)
        if self.side_by_side:  # the child sees single steps of windows, and cannot record CUDA graphs in one
            self._call("warm_up", graphs)

    def _change_to_built(self) -> None:
        self._call("between_windows")

    def stage(self, stage: Stage, action: Callable[[], T], **_: int) -> T:
        """Runs a part of what `run` runs, of each stage one at a time, in any order."""
        with self._stages[stage]:
            return action()

    def __getattr__(self, name: str) -> Any:
        """A method of `Networks`: `builds`, `open`, `warm_up`."""
        return partial(self._call, name)

    def wait_for_build(self) -> str:
        try:
            return str(self._call("wait_for_build"))
        except LatentSyncError as error:
            return str(error)

    def times(self) -> tuple[EngineTime, ...]:
        """As `Networks.times`; empty if the process has died."""
        with suppress(LatentSyncError):
            return cast(tuple[EngineTime, ...], self._call("times"))
        return ()

    def take_notices(self) -> tuple[str, ...]:
        with suppress(LatentSyncError):
            self._call("take_notices")
        return self.notices.take()

    def close(self) -> None:
        with suppress(LatentSyncError):
            self._call("close")
        self._child.end(_PATIENCE_S)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        try:
            self._result(self._opened)
        except InferenceError:  # it has died
            raise
        except LatentSyncError as error:
            raise EngineBuildError(str(error)) from error
        return self._result(self._start(name, *arguments, **named))

    def _start(self, name: str, *arguments: Any, **named: Any) -> Future[Any]:
        """Sends a call, and returns what will be its answer."""
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            self._waiting[number] = answer
            if self._dead:
                raise self._death()
        self._child.send((number, name, arguments, named))
        return answer

    def _result(self, answer: Future[Any]) -> Any:
        try:
            return results([answer])[0]
        except BaseException:
            if not answer.done():  # as at Ctrl-C: the child would go on with the call
                self._child.end()
            raise

    def _read_answers(self) -> None:
        """In a thread: gives each answer to the call that waits for it, until the child ends."""
        for event in self._child.events():
            if "notice" in event:
                self.notices.add(event["notice"])
                continue
            vars(self).update(event["state"])
            answer = self._waiting.pop(event["number"])
            if "error" in event:
                answer.set_exception(event["error"])
            else:
                answer.set_result(event["value"])
        with self._lock:
            self._dead, waiting = True, list(self._waiting.values())
        for answer in waiting:
            answer.set_exception(self._death())

    def _death(self) -> BaseException:
        """Why the child, which has closed its connection, died."""
        ended = self._child.end(_PATIENCE_S)
        if requested():
            return KeyboardInterrupt()  # this process has asked it to end
        last_line = f" ({ended.last_error_line})" if ended.last_error_line else ""
        return InferenceError(f"the process of {self._name} died: {ended}{last_line}")


Call = tuple[int, str, tuple[Any, ...], dict[str, Any]]
"""Number, name, and arguments."""


def _answer_calls(calls: Iterator[Call], emit: Emit) -> None:
    """In the child: the first call opens `Networks`, others are calls of its methods, each in a thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    networks: Networks | None = None

    def answer(number: int, made: Callable[[], Any]) -> None:
        try:
            told = {"value": made()}
        except LatentSyncError as error:
            told = {"error": error}
        except Exception:  # noqa: BLE001 -- a mistake, told with the place where it happened
            told = {"error": RuntimeError(traceback.format_exc())}
        state = {} if networks is None else {part: getattr(networks, part) for part in _STATE}
        emit(**told, number=number, state=state)

    def open_networks(folder: Path, selection: Selection, options: RuntimeOptions, may_fall_back: bool) -> None:
        nonlocal networks
        bundle = Bundle.load(folder, verify=False)  # the parent has verified it
        networks = Networks(
            bundle, selection, options, may_fall_back=may_fall_back, on_notice=lambda text: emit(notice=text)
        )

    with ThreadPoolExecutor(len(get_args(Stage)), thread_name_prefix="call") as threads:
        for number, name, arguments, named in calls:
            if networks is None:
                answer(number, partial(open_networks, *arguments))
            else:
                threads.submit(answer, number, partial(attrgetter(name)(networks), *arguments, **named))
