"""What the calls of one `LipSync` share: the model that is open, and the built-in detector; what
the stages of one clip share.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
    step_graph,
)
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.diffusion import plan_for
from latentsync_trt.errors import Busy, InputError, Notices
from latentsync_trt.runtime.engines.session_factory import BackgroundBuild
from latentsync_trt.runtime.model import Model, make_session_factory, must_build, open_model
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.stages import POLL_S, results
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.speech import speech_in
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Progress, ProgressCallback

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech
    from latentsync_trt.face.detector import MediaPipeDetector

CLOSE = "close"

_ASK_S = 0.5


def graphs_for(options: SyncOptions) -> tuple[str, ...]:
    steps = {
        step_graph(guided=options.guidance > 1.0, cached=not full) for full in plan_for(options)
    }
    return (AUDIO_ENCODER, VAE_ENCODER, *sorted(steps), VAE_DECODER)


class ModelSlot:
    """Opens a model at its first use, and again, with more graphs, when a call needs them and no
    other uses it.

    `selection`, `on_notice`, `build`: as for `LipSync`. `model`: the one that is open, if any.
    Raises as `SessionFactory`.
    """

    def __init__(
        self,
        bundle: Bundle,
        selection: Selection,
        options: RuntimeOptions,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self.bundle = bundle
        self.selection = selection
        self.options = options
        self.on_notice = on_notice
        self._factory = make_session_factory(bundle, selection, options)
        self.model: Model | None = None
        self.build: Future[str] | None = None
        self._calls = dict[int, str]()
        self._closed = False
        self._call_ended = threading.Condition()
        self._changed = threading.Condition()
        self._detector: MediaPipeDetector | None = None
        # a call may need one while another opens the model
        self._making_detector = threading.Lock()
        self._users = self._lasting = 0

    @contextmanager
    def entered(self, operation: str) -> Iterator[None]:
        """The block of a call; that of `CLOSE` waits until no other runs. Raises `InputError` in a
        callback of another, and after `CLOSE`.
        """
        thread = threading.get_ident()
        with self._call_ended:
            if thread in self._calls:
                cure = "call it when that has returned, or raise in the callback to stop it"
                raise InputError(
                    f"LipSync.{operation}: called from a callback of another call; {cure}"
                )
            if self._closed and operation != CLOSE:
                raise InputError(f"LipSync.{operation}: it is closed; open the bundle again")
            self._calls[thread] = operation
        try:
            if operation == CLOSE:
                with self._call_ended:
                    self._closed = True
                    while {*self._calls.values()} != {CLOSE}:
                        self._call_ended.wait(POLL_S)
            yield
        finally:
            with self._call_ended:
                del self._calls[thread]
                self._call_ended.notify_all()

    def detector(self) -> "MediaPipeDetector":
        """The built-in detector, open until `close`."""
        from latentsync_trt.face.detector import MediaPipeDetector

        with self._making_detector:
            self._detector = self._detector or MediaPipeDetector()
            return self._detector

    @contextmanager
    def acquired(self, graphs: Sequence[str], *, lasting: bool = False) -> Iterator[Model]:
        """A model with these graphs, open until the end of the block; waits while others use one
        without them.

        `lasting`: for a live session, for which no call should wait.

        Raises:
            Busy: live sessions use one without these graphs. Others as `open_model`.
        """
        with self._changed:
            while (model := self._model_with(graphs)) is None:
                if self._users == 0:
                    self._open_with(graphs)
                elif self._users == self._lasting:
                    names = ", ".join(
                        sorted(set(graphs) - (self.model.graphs if self.model else set()))
                    )
                    what = (
                        "live sessions use the open networks, "
                        f"and {names} would have to be opened, too"
                    )
                    raise Busy(
                        f"{what}; close them, or call `warm_up` "
                        "with these options before the first session"
                    )
                else:
                    self._changed.wait(POLL_S)
            self._users += 1
            self._lasting += lasting
        try:
            yield model
        finally:
            with self._changed:
                self._users -= 1
                self._lasting -= lasting
                self._changed.notify_all()

    @contextmanager
    def opening(self, graphs: Sequence[str]) -> Iterator[Callable[[], Model]]:
        """As `acquired`, but opens it in a thread, for which the function that the block gets
        waits.

        It begins at once where no engine has to be built: what is wrong with the inputs should wait
        for no build.
        """
        is_open = self._model_with(graphs) is not None
        with ExitStack() as held, ThreadPoolExecutor(1, thread_name_prefix="open model") as thread:
            begun = list[Future[Model]]()

            def begin() -> list[Future[Model]]:
                if not begun:
                    begun.append(thread.submit(held.enter_context, self.acquired(graphs)))
                return begun

            if is_open or not must_build(self._factory, graphs):
                begin()
            try:
                yield lambda: results(begin())[0]
            finally:
                while wait(begun, POLL_S).not_done:
                    pass

    def close(self) -> None:
        """Closes the model, which no call may use any more, see `entered`. Closing again does
        nothing.
        """
        model = self.model
        self.model = None
        self.build = None
        self._detector = None
        if model is not None:
            model.close()

    def _model_with(self, graphs: Sequence[str]) -> Model | None:
        model = self.model
        if model is not None and model.graphs.issuperset(graphs):
            return model
        return None

    def _open_with(self, graphs: Sequence[str]) -> None:
        before = self.model
        self.model = None
        self.build = None
        if before is not None:
            before.close()
        wanted = [*(before.graphs if before else ()), *graphs]
        self.model = open_model(
            self.bundle, self.selection, self.options, tuple(dict.fromkeys(wanted)), self.on_notice
        )
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


class RunContext:
    """What the stages of one clip share.

    `model()` waits for the model of `slot` that is being opened, or raises as `open_model`.
    `selection`: the provider that is tried first. `detector` finds outlines, and faces if
    `inputs.helpers` has no other; `resolution_px`: of aligned faces. `speech_in`: when somebody
    speaks in a recording, found once in a run. `start_s`: when the run began, on
    `time.perf_counter`'s scale.
    """

    def __init__(
        self,
        slot: ModelSlot,
        model: Callable[[], Model],
        inputs: Inputs,
        resolution_px: int,
        on_progress: ProgressCallback | None,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.resolution_px = resolution_px
        self.bundle = slot.bundle
        self.selection = slot.selection
        self.options = slot.options
        self.detector = slot.detector()
        self.speech_in: Callable[[Path], Speech] = cache(partial(speech_in, ask=self.ask))
        self.notices = Notices(slot.on_notice)
        self.clock = StageClock()
        self.start_s = perf_counter()
        self._on_progress = on_progress or (lambda _: None)
        self._progress = Progress("", 0, None)
        self._thread = threading.get_ident()
        self._asked_s = self.start_s

    def on_progress(self, progress: Progress) -> None:
        """Tells the caller, who raises to stop the run."""
        self._progress = progress
        self._asked_s = perf_counter()
        self._on_progress(progress)

    def ask(self) -> None:
        """Repeats the newest progress, a few times a second however often this is called, so that
        the caller can stop a run that makes none. Does nothing in other threads than that of the
        run.
        """
        if threading.get_ident() == self._thread and perf_counter() - self._asked_s > _ASK_S:
            self.on_progress(replace(self._progress, picture=None))

    def announce(self, texts: Iterable[str]) -> None:
        """Tells the user each of these notices."""
        for text in texts:
            self.notices.add(text)
