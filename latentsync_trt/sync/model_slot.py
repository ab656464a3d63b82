"""The model that is open, and who uses it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

from latentsync_trt.errors import Busy, InputError
from latentsync_trt.runtime.model import Model
from latentsync_trt.runtime.stages import POLL_S, results


class ModelSlot:
    """Opens a model at its first use, and again, with more graphs, when a call needs them and no other uses it.

    Args:
        open_model: opens one with these graphs.
    """

    def __init__(self, open_model: Callable[[Sequence[str]], Model]) -> None:
        self._open_model, self._changed = open_model, threading.Condition()
        self._model: Model | None = None
        self._users = self._lasting = 0
        self._closed = False

    @property
    def model(self) -> Model | None:
        """The one that is open, if any."""
        return self._model

    def model_with(self, graphs: Sequence[str]) -> Model | None:
        """The one that is open, if it has these graphs."""
        model = self._model
        return model if model is not None and model.graphs.issuperset(graphs) else None

    def acquire(self, graphs: Sequence[str], *, lasting: bool = False) -> Model:
        """A model with these graphs, open until `release`; waits while others use one without them.

        `lasting`: for a live session, for which no call should wait.

        Raises:
            Busy: live sessions use one without these graphs. InputError: the slot is closed. Others as `open_model`.
        """
        with self._changed:
            while (model := self.model_with(graphs)) is None:
                self._check_open()
                if self._users == 0:
                    self._open_with(graphs)
                elif self._users == self._lasting:
                    names = ", ".join(sorted(set(graphs) - (self._model.graphs if self._model else set())))
                    raise Busy(
                        f"live sessions use the open networks, and {names} would have to be opened, too; close them, "
                        "or call `warm_up` with these options before the first session"
                    )
                else:
                    self._changed.wait(POLL_S)
            self._check_open()
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
    def opening(self, graphs: Sequence[str], *, ahead: bool = True) -> Iterator[Callable[[], Model]]:
        """`acquire` in a thread, for which the function that the block gets waits; `release` at its end.

        `ahead`: it begins at once, not only when it is waited for.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="open model") as thread:
            lock, begun = threading.Lock(), list[Future[Model]]()

            def acquired() -> Future[Model]:
                with lock:
                    if not begun:
                        begun.append(thread.submit(self.acquire, graphs))
                    return begun[0]

            if ahead:
                acquired()
            try:
                yield lambda: results([acquired()])[0]
            finally:
                with suppress(CancelledError):  # where `results` was interrupted
                    while begun and not wait(begun, POLL_S).done:
                        pass
                    if begun and begun[0].exception() is None:
                        self.release()

    def close(self) -> None:
        """Waits until no call uses the model, and closes it. Closing again does nothing."""
        with self._changed:
            self._closed = True
            while self._users:
                self._changed.wait(POLL_S)
            model, self._model = self._model, None
        if model is not None:
            model.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("LipSync: it is closed; open the bundle again")

    def _open_with(self, graphs: Sequence[str]) -> None:
        before, self._model = self._model, None
        wanted = [*(before.graphs if before else ()), *graphs]
        if before is not None:
            before.close()
        self._model = self._open_model(tuple(dict.fromkeys(wanted)))
