"""Builds engines in a child process, `latentsync-trt build`, during a run."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from latentsync_trt.config import NOT_FOR_BUILDS
from latentsync_trt.option_fields import command_line
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.stopping import ENDS_WITH_STDIN

# A build that is asked to stop removes what it has written, within two seconds.
_STOP_S = 2.0


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


class BuildProcess:
    """Runs `build_command` as a child process, which also stops when this process ends.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        stdin, lifeline = os.pipe()
        self._lifeline: int | None = lifeline
        try:
            self._process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, ENDS_WITH_STDIN: "1"},
            )
        except BaseException:
            self._hang_up()
            raise
        finally:
            os.close(stdin)

    def wait(self) -> tuple[bytes, str]:
        """Waits for its end; returns what it printed to stdout, and why it failed, empty if it did not."""
        out, err = self._process.communicate()
        self._hang_up()
        return out, failure_of(out, err, self._process.returncode) if self._process.returncode else ""

    def stop(self) -> None:
        """Ends it, if it runs: asks, then kills. While another thread is in `wait`, that returns."""
        if os.name == "nt":  # where `terminate` does not ask
            self._hang_up()
        else:
            self._process.terminate()
        deadline_s = time.monotonic() + _STOP_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        self._process.kill()

    def _hang_up(self) -> None:
        """Closes the child's stdin, which ends it."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)


class BackgroundBuild:
    """Starts building `graphs` of `engines`; `elapsed_s` and `error` (empty if none) are valid once `done`."""

    def __init__(self, engines: Engines, graphs: Sequence[str]) -> None:
        self.engines = engines
        self.error = ""
        self.elapsed_s = 0.0
        self._start_s = time.monotonic()
        self._process = BuildProcess(build_command(engines, graphs))
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
        self._process.stop()
        self._waiter.join()

    def _watch(self) -> None:
        _, self.error = self._process.wait()
        self.elapsed_s = time.monotonic() - self._start_s


def failure_of(out: bytes, err: bytes, returncode: int) -> str:
    """Why a build process failed: its own JSON error, else the last line of stderr, else its exit code."""
    try:
        return str(json.loads(out)["error"])
    except (ValueError, KeyError, TypeError):
        return err.decode(errors="replace").strip().split("\n")[-1] or f"it ended with code {returncode}"
