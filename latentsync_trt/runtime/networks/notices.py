"""What a run tells its user, each sentence once."""

import threading

from latentsync_trt.runtime.cache.store import Notice


class Notices:
    """Collects notices and passes them on to `on_notice`, if there is one. Thread-safe."""

    def __init__(self, on_notice: Notice | None = None) -> None:
        self.on_notice = on_notice
        self._texts: list[str] = []
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        """Adds a notice, unless there is the same one since `take`."""
        with self._lock:
            if text in self._texts:  # a network that is reopened has the same problem each time
                return
            self._texts.append(text)
        if self.on_notice is not None:
            self.on_notice(text)

    def take(self) -> tuple[str, ...]:
        """The notices since the last call."""
        with self._lock:
            texts, self._texts = self._texts, []
        return tuple(texts)
