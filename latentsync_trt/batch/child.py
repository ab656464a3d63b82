"""The child process of `local.LocalWorker`: opens a `Worker` and runs its tasks.

Orders: first `{"settings": …}`, then `{"run": number, "task": …}` and `{"cancel": number}`. Events: `error`, None if
the settings work; then for each run, with its number, `progress`, and `done` or `error`; after `WorkerLost` the process
ends. At any time, `notice`.
"""

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import Queue
from time import monotonic

from latentsync_trt.batch.tasks import Canceled, TaskError, WorkerLost
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Emit, Event, converse, end_process
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Progress
from latentsync_trt.unexpected import one_line

# Seconds between two of a clip; more often, no one could read it.
_PROGRESS_S = 0.2


def work(orders: Iterator[Event], emit: Emit) -> None:
    """Takes orders in the main thread, which so handles signals at once; another one runs them."""
    tune_process()
    _handle_signals()
    tasks, canceled = Queue[Event](), dict[int, threading.Event]()
    worker = Worker(next(orders)["settings"], lambda text: emit(notice=text))
    threading.Thread(target=_run_tasks, args=(worker, tasks, canceled, emit), name="worker", daemon=True).start()
    for order in orders:
        if "run" in order:
            tasks.put(order)
        else:  # it may come before its run, or after that has ended
            canceled.setdefault(order["cancel"], threading.Event()).set()


def _handle_signals() -> None:
    """Ignores Ctrl-C, as the parent decides; other signals remove unfinished files and end the process."""
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))


def _run_tasks(worker: Worker, tasks: "Queue[Event]", canceled: dict[int, threading.Event], emit: Emit) -> None:
    """Opens the worker and runs its tasks; ends the process when it cannot run another."""
    try:
        error = _opening_error(worker)
        emit(error=error)
        while error is None or isinstance(error, TaskError | Canceled):
            order = tasks.get()
            number, error = order["run"], None
            stop, done = canceled.setdefault(number, threading.Event()), None
            try:
                done = worker.run(order["task"], _throttled(partial(emit, run=number)), stop)
            except (TaskError, Canceled, WorkerLost) as failure:
                error = failure
            del canceled[number]
            emit(run=number, done=done, error=error)
    except BaseException:  # noqa: BLE001 -- a parent would wait forever
        traceback.print_exc()
    end_process(1)


def _opening_error(worker: Worker) -> LatentSyncError | None:
    """Opens a worker; returns why that failed."""
    try:
        worker.open()
    except LatentSyncError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- the parent reports it
        return LatentSyncError(one_line(error, ["batch"])[0])
    return None


def _throttled(tell: Emit) -> Callable[[Progress], None]:
    """Tells a new stage at once, and otherwise one progress in `_PROGRESS_S`."""
    stage, next_s = "", 0.0

    def report(progress: Progress) -> None:
        nonlocal stage, next_s
        if progress.stage != stage or monotonic() >= next_s:
            stage, next_s = progress.stage, monotonic() + _PROGRESS_S
            tell(progress=Progress(stage, progress.done, progress.total))

    return report


if __name__ == "__main__":
    converse(work)
