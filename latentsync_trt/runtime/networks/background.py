"""Builds engines in a child process, `latentsync-trt build`, during a run."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from latentsync_trt.config import NOT_FOR_BUILDS, command_line
from latentsync_trt.runtime.sessions.engines import Engines

_STOP_S = 10.0


def build_command(engines: Engines, graphs: Sequence[str], *, force: bool = False) -> list[str]:
    """The command that builds `graphs` of `engines` into the same cache and reports in JSON."""
    return [
        *(sys.executable, "-m", "latentsync_trt", "build", "--json"),
        *("--bundle", str(engines.bundle.folder.resolve())),
        *("--provider", engines.selection.name),
        *(word for graph in graphs for word in ("--graph", graph)),
        *command_line(engines.options, leave_out=(*NOT_FOR_BUILDS, "engine_cache")),
        *("--engine-cache", str(engines.cache.folder)),
        *(("--force",) if force else ()),
    ]


class BackgroundBuild:
    """Starts building `graphs` of `engines`; `elapsed_s` and `error` (empty if none) are valid once `done`."""

    def __init__(self, engines: Engines, graphs: Sequence[str]) -> None:
        self.engines = engines
        self.error = ""
        self.elapsed_s = 0.0
        self._start_s = time.monotonic()
        self._process = subprocess.Popen(
            build_command(engines, graphs), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._waiter = threading.Thread(target=self._watch, name="build", daemon=True)
        self._waiter.start()

    @property
    def done(self) -> bool:
        """Whether the process has ended, with success or not."""
        return not self._waiter.is_alive()

    def wait(self) -> str:
        """Waits for the process to end; returns `error`."""
        while not self.done:  # in short waits: Windows delivers Ctrl-C only between them
            self._waiter.join(0.1)
        return self.error

    def stop(self) -> None:
        """Ends the process; an unfinished engine is never used."""
        self._process.terminate()
        self._waiter.join(_STOP_S)
        self._process.kill()
        self._waiter.join()

    def _watch(self) -> None:
        out, err = self._process.communicate()
        self.elapsed_s = time.monotonic() - self._start_s
        if self._process.returncode:
            self.error = failure_of(out, err, self._process.returncode)


def failure_of(out: bytes, err: bytes, returncode: int) -> str:
    """Why a build process failed: its own JSON error, else the last line of stderr, else its exit code."""
    try:
        return str(json.loads(out)["error"])
    except (ValueError, KeyError, TypeError):
        return err.decode(errors="replace").strip().split("\n")[-1] or f"it ended with code {returncode}"
