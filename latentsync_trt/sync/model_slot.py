"""What the calls of one `LipSync` share: the model that is open, and the built-in detector."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
    step_graph,
)
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.diffusion import full_steps
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.runtime.model import Model, make_session_factory, must_build, open_model
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.stages import POLL_S, results

if TYPE_CHECKING:
    from latentsync_trt.face.detector import MediaPipeDetector

CLOSE = "close"
"""The operation of `ModelSlot.entered` that ends all."""


def graphs_for(options: SyncOptions) -> tuple[str, ...]:
    """Returns the graphs that a run with these options needs."""
    guided = options.guidance > 1.0
    steps = {step_graph(guided=guided, cached=not full) for full in full_steps(options)}
    return (AUDIO_ENCODER, VAE_ENCODER, *sorted(steps), VAE_DECODER)


class ModelSlot:
    """Opens a model at its first use, and again, with more graphs, when a call needs them and no
    other uses it.

    Raises as `SessionFactory`.

    Args:
        selection, on_notice: as for `LipSync`.
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
        self.model: Model | None = None
        """The model that is open, if any."""
        self.build: Future[str] | None = None
        """A build of engines for the next run, see `LipSync.build`."""
        self._factory = make_session_factory(bundle, selection, options)
        self._calls = dict[int, str]()
        self._closed = False
        self._call_ended = threading.Condition()
        self._detector: MediaPipeDetector | None = None
        # A call may need the detector while another opens the model.
        self._making_detector = threading.Lock()
        self._use_changed = threading.Condition()
        self._is_opening = False
        self._users = 0
        self._live_users = 0

    @contextmanager
    def entered(self, operation: str) -> Iterator[None]:
        """Marks a block as a call of `LipSync`; that of `CLOSE` waits until no other runs.

        Raises:
            InputError: the call comes from a callback of another one, or after `CLOSE`.
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
        """Returns the built-in detector, open until `close`."""
        from latentsync_trt.face.detector import MediaPipeDetector

        with self._making_detector:
            self._detector = self._detector or MediaPipeDetector()
            return self._detector

    @contextmanager
    def use_model(
        self, graphs: Sequence[str], *, for_live_session: bool = False
    ) -> Iterator[Model]:
        """Opens a model with these graphs until the end of the block; waits while others use one
        without them, but no call waits for a live session.

        Raises:
            Busy: live sessions use a model without these graphs. Others as `open_model`.
        """
        while (model := self._enter(graphs, for_live_session)) is None:
            self._open_with(graphs)
        try:
            yield model
        finally:
            with self._use_changed:
                self._users -= 1
                self._live_users -= for_live_session
                self._use_changed.notify_all()

    @contextmanager
    def open_in_background(self, graphs: Sequence[str]) -> Iterator[Callable[[], Model]]:
        """Opens a model with these graphs in a thread, until the end of the block, which gets a
        function that waits for the model.

        The thread begins at once where no engine has to be built; else when the function is called,
        since what is wrong with the inputs should wait for no build. Raises as `use_model`.
        """
        begun = list[Future[Model]]()
        with ExitStack() as use, ThreadPoolExecutor(1, thread_name_prefix="open model") as thread:

            def begin() -> None:
                if not begun:
                    begun.append(thread.submit(use.enter_context, self.use_model(graphs)))

            def opened() -> Model:
                begin()
                return results(begun)[0]

            if self._model_with(graphs) is not None or not must_build(self._factory, graphs):
                begin()
            try:
                yield opened
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

    def _enter(self, graphs: Sequence[str], for_live_session: bool) -> Model | None:
        """Waits for a model with these graphs and counts its use; returns None where this thread is
        to open it.
        """
        with self._use_changed:
            while (model := self._model_with(graphs)) is None:
                if not self._is_opening and not self._users:
                    self._is_opening = True
                    return None
                if self._users and self._users == self._live_users:
                    missing = set(graphs) - (self.model.graphs if self.model else set())
                    raise Busy(
                        "live sessions use the open networks, and "
                        f"{', '.join(sorted(missing))} would have to be opened, too; close them, "
                        "or call `warm_up` with these options before the first session"
                    )
                self._use_changed.wait(POLL_S)
            self._users += 1
            self._live_users += for_live_session
            return model

    def _open_with(self, graphs: Sequence[str]) -> None:
        """Opens a model with these graphs and those that were open, while no one uses it."""
        before = self.model
        self.model = None
        self.build = None
        try:
            wanted = dict.fromkeys(graphs)
            if before is not None:
                wanted = dict.fromkeys([*before.graphs, *graphs])
                before.close()
            model = open_model(
                self.bundle, self.selection, self.options, tuple(wanted), self.on_notice
            )
            if model.build is not None:
                self.build = model.build.error
            self.model = model
        finally:
            with self._use_changed:
                self._is_opening = False
                self._use_changed.notify_all()
