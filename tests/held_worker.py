"""What children of a `WorkerHandle` do here: clips do as files beside their outputs say, or it
dies while it opens.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from latentsync_trt.batch.tasks import Task
from latentsync_trt.child_main import OnProgress
from latentsync_trt.types import Progress

LARGE_BYTES = 400_000_000


def run(task: Task, on_progress: OnProgress) -> dict[str, Any]:
    """Ends when the output of the clip exists. The one named large takes `LARGE_BYTES` when "grow"
    exists, the one named crash ends its process by a signal when "crash.now" exists, and the one
    named stuck hangs in native code that keeps the interpreter's lock.
    """
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
        time.sleep(0.01)
        on_progress(Progress("waiting", 1, 2))
    return {"frames": 1, "wall_s": 0.0}


def hold(order: Any, on_progress: OnProgress) -> Any:
    if isinstance(order, Task):
        return run(order, on_progress)
    return "cuda"


def die(order: Any, on_progress: OnProgress) -> None:
    sys.exit("no such driver")
