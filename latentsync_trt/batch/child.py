"""The child process of `local.LocalWorker`: opens a `Worker` and runs its tasks.

Orders: first `{"settings": …}`, then `{"run": number, "task": …}` and `{"cancel": number}`. Events: `ready`, or
`refused` if the settings cannot work; then for each run, with its number, `progress` and one of `done`, `failed`,
`canceled` and `lost`, after which the process ends. At any time, `notice`.
"""

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from queue import Queue
from time import monotonic

from latentsync_trt.batch.tasks import Cancelled, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Emit, Event, converse, end_process
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Progress
from latentsync_trt.unexpected import one_line

# More often, nobody could read it.
_PROGRESS_S = 0.2


def work(orders: Iterator[Event], emit: Emit) -> None:
    """Takes orders in the main thread, which so handles signals at once, and runs tasks in another one."""
    tune_process()
    _handle_signals()
    settings = WorkerSettings.from_json(next(orders)["settings"])
    tasks, cancelled = Queue[Event](), dict[int, threading.Event]()

    def run_tasks() -> None:
        try:
            _run_tasks(Worker(settings, lambda text: emit(notice=text)), tasks, cancelled, emit)
        except BaseException:  # noqa: BLE001 -- a parent would wait forever
            traceback.print_exc()
        end_process(1)

    threading.Thread(target=run_tasks, name="worker", daemon=True).start()
    for order in orders:
        if "run" in order:
            cancelled[order["run"]] = threading.Event()
            tasks.put(order)
        elif (event := cancelled.get(order["cancel"])) is not None:  # else that run has ended
            event.set()


def _handle_signals() -> None:
    """Ctrl-C reaches this process, too, but its parent decides; other signals end it without its files."""
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))


def opened(worker: Worker) -> Event:
    """Opens a worker; returns the event `refused` or `lost` if that failed, else an empty one."""
    try:
        worker.open()
    except WorkerLost as error:
        return {"lost": str(error)}
    except Exception as error:  # noqa: BLE001 -- the parent reports it
        message, usage = one_line(error, ["batch"])
        return {"refused": message, "usage": usage, "kind": type(error).__name__}
    return {}


def outcome(worker: Worker, task: Task, on_progress: Callable[[Progress], None], cancelled: threading.Event) -> Event:
    """Runs a task; returns its last event."""
    try:
        return {"done": asdict(worker.run(task, on_progress, cancelled))}
    except TaskError as error:
        return {"failed": str(error), "usage": error.usage}
    except Cancelled as error:
        return {"canceled": str(error)}
    except WorkerLost as error:
        return {"lost": str(error)}


def _run_tasks(worker: Worker, tasks: "Queue[Event]", cancelled: dict[int, threading.Event], emit: Emit) -> None:
    """Opens the worker and runs its tasks; returns when it cannot run another."""
    event = opened(worker)
    emit(**(event or {"ready": True}))
    while "refused" not in event and "lost" not in event:
        order = tasks.get()
        number, task = order["run"], Task.from_json(order["task"])
        event = outcome(worker, task, _throttled(partial(emit, run=number)), cancelled[number])
        del cancelled[number]
        emit(run=number, **event)


def _throttled(tell: Emit) -> Callable[[Progress], None]:
    """Tells a new stage at once, and otherwise one progress in `_PROGRESS_S`."""
    stage, next_s = "", 0.0

    def report(progress: Progress) -> None:
        nonlocal stage, next_s
        if progress.stage != stage or monotonic() >= next_s:
            stage, next_s = progress.stage, monotonic() + _PROGRESS_S
            tell(progress=asdict(progress))

    return report


if __name__ == "__main__":
    converse(work)
