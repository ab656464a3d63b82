"""Children for `WorkerHandle` whose clips do as files beside their outputs say, and one that dies
while it opens.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

from latentsync_trt.batch import local
from latentsync_trt.batch.tasks import Canceled, Task, WorkerSettings
from latentsync_trt.child import Emit
from latentsync_trt.types import Progress

LARGE_BYTES = 400_000_000


class Held:
    """Clips end when their output exists; the one named large takes `LARGE_BYTES` when "grow"
    exists, the one named crash ends its process by a signal when "crash" exists, and the one named
    stuck hangs in native code that keeps the interpreter's lock.
    """

    provider = "cuda"

    def __init__(self, settings: WorkerSettings, on_notice: Callable[[str], None]) -> None:
        on_notice("opens")

    def run(
        self, task: Task, on_progress: Callable[[Progress], None], canceled: Event
    ) -> dict[str, Any]:
        on_progress(Progress("lip-sync", 1, 2))
        if task.id == "stuck":
            ctypes.PyDLL(None).sleep(600)
        output = Path(task.output)
        held = list[bytes]()
        while not output.exists():
            if task.id == "large" and not held and output.with_name("grow").exists():
                held.append(b"x" * LARGE_BYTES)
            if task.id == "crash" and output.with_name("crash.now").exists():
                os.kill(os.getpid(), signal.SIGSEGV)
            if canceled.wait(0.01):
                raise Canceled("canceled")
        return {"frames": 1, "wall_s": 0.0}


def hold(orders: Iterator[Any], emit: Emit) -> None:
    local.Worker = Held  # type: ignore[misc, assignment]
    local.work(orders, emit)


def die(orders: Iterator[Any], emit: Emit) -> None:
    next(iter(orders))
    sys.exit("no such driver")
