"""Sentences for the user, each told once."""

import threading
from collections.abc import Callable


class Notices:
    """Keeps sentences in `texts`, each once, and passes it to `on_notice`. Thread-safe."""

    def __init__(self, on_notice: Callable[[str], None] | None = None) -> None:
        self._on_notice, self._lock = on_notice, threading.Lock()
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        with self._lock:
            if text in self.texts:
                return
            self.texts.append(text)
        if self._on_notice is not None:
            self._on_notice(text)
