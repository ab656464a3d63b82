"""A command in a terminal: what its screen shows, and keys that are pressed."""

import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_AS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Runs Python with arguments in a session whose terminal is its stdin, so that Ctrl-C reaches its
children, too.
"""

_PARTS = re.compile(r"([^\x1b\r\n]+)|(\r|\n)|\x1b\[\??(\d*)[\d;]*([A-Za-z])")
_ROWS = 50
_COLUMNS = 400
_PATIENCE_S = 600.0
"""Only ends hangs."""


class Terminal:
    """Runs Python with `arguments` in `folder`; a context manager that leaves no process behind."""

    def __init__(self, arguments: Sequence[object], folder: Path, **variables: str) -> None:
        import fcntl
        import termios

        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AS_TERMINAL, *map(str, arguments)],
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "TERM": "xterm", **variables},
        )
        os.close(theirs)
        self._written = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 1 << 16):
                self._written += data
        except OSError:  # as Linux tells that no process has the terminal any more
            pass

    def until_shown(self, *texts: str) -> None:
        """Waits until a line of the screen has all `texts`, which comes before the end of the
        command.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while not any(all(text in line for text in texts) for line in self.screen()[0]):
            assert self.process.poll() is None, self.screen()
            assert time.monotonic() < end_s, self.screen()
            time.sleep(0.02)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def ended(self) -> tuple[int, list[str], bool]:
        """The exit code, and `screen` when no process of the terminal is left."""
        code = self.process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        return code, *self.screen()

    def screen(self) -> tuple[list[str], bool]:
        """All lines that were not erased, and whether the cursor is shown."""
        lines = [""]
        row = 0
        column = 0
        cursor = True
        for text, control, count, what in _PARTS.findall(self._written.decode(errors="replace")):
            if text:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)
            elif control == "\r":
                column = 0
            elif control:
                row += 1
                lines += [""] * (row == len(lines))
            elif what == "A":
                row = max(row - int(count or 1), 0)
            elif what == "K":
                lines[row] = "" if count == "2" else lines[row][:column]
            elif count == "25":
                cursor = what == "h"
        return [line.rstrip() for line in lines if line.strip()], cursor
