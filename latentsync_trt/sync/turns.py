"""One operation at a time on an object that several threads share, and none after it is closed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latentsync_trt.errors import InputError

# Waits are cut into pieces, since Windows cannot deliver Ctrl-C inside an untimed wait.
_POLL_S = 0.1


class Turns:
    """Lets one operation at a time run; the others wait. `owner`: name of the object, for messages."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.local()

    @contextmanager
    def take(self, operation: str, *, last: bool = False) -> Iterator[None]:
        """Waits for its turn, which lasts as long as the block; after a `last` turn, only such ones are possible.

        Raises:
            InputError: the object is closed, or the call comes from a callback of a running operation, for which it
                would wait forever.
        """
        if self._in_operation:
            raise InputError(
                f"{self._owner}.{operation}: called from a callback of another call, which it would wait for; call it "
                "when that has returned, or raise in the callback to stop it"
            )
        while not self._lock.acquire(timeout=_POLL_S):
            pass
        try:
            if self._closed and not last:
                raise InputError(f"{self._owner}.{operation}: it is closed; open the bundle again")
            self._closed = self._closed or last
            with self._marked():
                yield
        finally:
            self._lock.release()

    def callback(self, function: Callable[[str], None]) -> Callable[[str], None]:
        """`function`, from which `take` raises, whatever thread of an operation calls it."""

        def marked(text: str) -> None:
            with self._marked():
                function(text)

        return marked

    @property
    def _in_operation(self) -> bool:
        return bool(getattr(self._thread, "marked", False))

    @contextmanager
    def _marked(self) -> Iterator[None]:
        before, self._thread.marked = self._in_operation, True
        try:
            yield
        finally:
            self._thread.marked = before
