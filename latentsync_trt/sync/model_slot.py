"""What the calls of one `LipSync` share: the model that is open, the built-in detector, and who uses them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING

from latentsync_trt.errors import Busy, InputError
from latentsync_trt.runtime.background_build import BackgroundBuild
from latentsync_trt.runtime.model import Model
from latentsync_trt.runtime.stages import POLL_S, results

if TYPE_CHECKING:
    from latentsync_trt.face.detector import MediaPipeDetector

CLOSE = "close"


class Calls:
    """The calls of one `LipSync` that run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running, self._closed = dict[int, str](), False

    @contextmanager
    def entered(self, operation: str) -> Iterator[None]:
        """The block of a call; that of `CLOSE` waits until no other runs. Raises `InputError` in a callback of another,
        and after `CLOSE`."""
        thread = threading.get_ident()
        with self._changed:
            if thread in self._running:
                raise InputError(
                    f"LipSync.{operation}: called from a callback of another call, which it would wait for; call it "
                    "when that has returned, or raise in the callback to stop it"
                )
            if self._closed and operation != CLOSE:
                raise InputError(f"LipSync.{operation}: it is closed; open the bundle again")
            self._running[thread] = operation
        try:
            if operation == CLOSE:
                with self._changed:
                    self._closed = True
                    while {*self._running.values()} != {CLOSE}:
                        self._changed.wait(POLL_S)
            yield
        finally:
            with self._changed:
                del self._running[thread]
                self._changed.notify_all()


class ModelSlot:
    """Opens a model at its first use, and again, with more graphs, when a call needs them and no other uses it.

    `model`: the one that is open, if any. `build`: ends with a build of engines for the next run, see `LipSync.build`.

    Args:
        open_model: opens one with these graphs.
    """

    def __init__(self, open_model: Callable[[Sequence[str]], Model]) -> None:
        self._open_model, self._changed = open_model, threading.Condition()
        self.model: Model | None = None
        self.build: Future[str] | None = None
        self._detector: MediaPipeDetector | None = None
        self._making_detector = threading.Lock()  # a call may need one while another opens the model
        self._users = self._lasting = 0

    def detector(self) -> "MediaPipeDetector":
        """The built-in detector, open until `close`."""
        from latentsync_trt.face.detector import MediaPipeDetector

        with self._making_detector:
            self._detector = self._detector or MediaPipeDetector()
            return self._detector

    def model_with(self, graphs: Sequence[str]) -> Model | None:
        """The one that is open, if it has these graphs."""
        model = self.model
        return model if model is not None and model.graphs.issuperset(graphs) else None

    def acquire(self, graphs: Sequence[str], *, lasting: bool = False) -> Model:
        """A model with these graphs, open until `release`; waits while others use one without them.

        `lasting`: for a live session, for which no call should wait.

        Raises:
            Busy: live sessions use one without these graphs. Others as `open_model`.
        """
        with self._changed:
            while (model := self.model_with(graphs)) is None:
                if self._users == 0:
                    self._open_with(graphs)
                elif self._users == self._lasting:
                    names = ", ".join(sorted(set(graphs) - (self.model.graphs if self.model else set())))
                    raise Busy(
                        f"live sessions use the open networks, and {names} would have to be opened, too; close them, "
                        "or call `warm_up` with these options before the first session"
                    )
                else:
                    self._changed.wait(POLL_S)
            self._users += 1
            self._lasting += lasting
            return model

    def release(self, *, lasting: bool = False) -> None:
        """Who called `acquire` does not use the model any more."""
        with self._changed:
            self._users -= 1
            self._lasting -= lasting
            self._changed.notify_all()

    @contextmanager
    def acquired(self, graphs: Sequence[str]) -> Iterator[Model]:
        """The model, from `acquire` to `release`."""
        model = self.acquire(graphs)
        try:
            yield model
        finally:
            self.release()

    @contextmanager
    def opening(self, graphs: Sequence[str], *, ahead: bool = True) -> Iterator[Callable[[], Model]]:
        """`acquire` in a thread, for which the function that the block gets waits; `release` at its end.

        `ahead`: begins at once, not only when it is waited for.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="open model") as thread:
            lock, begun = threading.Lock(), [thread.submit(self.acquire, graphs)] if ahead else []

            def opened() -> Model:
                with lock:
                    if not begun:
                        begun.append(thread.submit(self.acquire, graphs))
                return results(begun)[0]

            try:
                yield opened
            finally:
                while wait(begun, POLL_S).not_done:
                    pass
                if any(not each.cancelled() and each.exception() is None for each in begun):
                    self.release()

    def close(self) -> None:
        """Closes model and detector, which no call may use any more, see `Calls`. Closing again does nothing."""
        model, detector = self.model, self._detector
        self.model = self.build = self._detector = None
        if model is not None:
            model.close()
        if detector is not None:
            detector.close()

    def _open_with(self, graphs: Sequence[str]) -> None:
        before, self.model, self.build = self.model, None, None
        if before is not None:
            before.close()
        wanted = [*(before.graphs if before else ()), *graphs]
        self.model = self._open_model(tuple(dict.fromkeys(wanted)))
        if self.model.build is not None:
            self.build = _ended(self.model.build)


def _ended(build: BackgroundBuild) -> Future[str]:
    """Done when the build has ended, with its error."""
    ended = Future[str]()

    def wait_for_it() -> None:
        try:
            ended.set_result(build.wait())
        except BaseException as error:  # noqa: BLE001 -- raised by who asks
            ended.set_exception(error)

    threading.Thread(target=wait_for_it, name="build", daemon=True).start()
    return ended
