"""What runs in a child process, which carries out the orders of its parent.

A parent sends an `Order` for each call, a `Cancel` for one that is not wanted any longer, and None
at the end. A child answers each order with any number of `Progressed` and one `CallEnded`; while it
works, it shows with None, twice a second, that it lives.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NoReturn

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.files import making_folders, remove_all

OnProgress = Callable[[Any], None]
Handler = Callable[[Any, OnProgress], Any]
"""What a child does with an order: a function at the top of a module, or an object that can be
pickled. It gets a callback for progress, which raises `CallCanceled` once the call is canceled.
"""

LIFE_S = 0.5
"""How often a child that works shows that it lives."""


@dataclass(frozen=True, slots=True)
class Order:
    """Asks a child to carry out `content`; `number` is that of the call."""

    number: int
    content: Any


@dataclass(frozen=True, slots=True)
class Cancel:
    """Asks a child to give up a call at its next progress."""

    number: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """A call has passed `value` to its callback for progress."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has ended, with a result or an error."""

    number: int
    result: Any = None
    error: LatentSyncError | None = None


ChildEvent = Progressed | CallEnded | None


class CallCanceled(LatentSyncError):
    """A call has ended early, as it was asked to."""


def serve_parent() -> None:
    """Carries out orders until the parent asks for the end, or has ended."""
    # Ctrl-C reaches this process, too, but its parent decides. Other signals would end it without
    # removing its files.
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):  # of another system
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))
    parent = _inherited(int(sys.argv[-1]))
    lock = threading.Lock()

    def emit(event: ChildEvent) -> None:
        with lock:
            try:
                parent.send(event)
            except OSError:  # the parent has ended, which is no error of the handler
                end_process(1)

    with suppress(EOFError, OSError):
        serve_orders(parent.recv(), _received(parent), emit)
    end_process(1)


def serve_orders(
    handler: Handler,
    messages: Iterator[Order | Cancel | None],
    emit: Callable[[ChildEvent], None],
) -> None:
    """Carries out each order in a thread of its own, so that this one can handle signals and
    cancels. A message None is a moment without one.
    """
    canceled = dict[int, threading.Event]()

    def carry_out(order: Order) -> None:
        is_canceled = canceled[order.number].is_set

        def report(value: Any) -> None:
            if is_canceled():
                raise CallCanceled("canceled")
            emit(Progressed(order.number, value))

        try:
            try:
                answer = CallEnded(order.number, handler(order.content, report))
            except LatentSyncError as error:
                answer = CallEnded(order.number, error=error)
            give_memory_back()
            del canceled[order.number]
            emit(answer)
        except BaseException:  # noqa: BLE001 -- the parent would wait forever
            traceback.print_exc()
            end_process(1)

    for message in messages:
        if isinstance(message, Order):
            canceled[message.number] = threading.Event()
            threading.Thread(target=carry_out, args=(message,), daemon=True).start()
        elif isinstance(message, Cancel):
            if message.number in canceled:  # else it has just ended
                canceled[message.number].set()
        elif canceled:
            emit(None)


def give_memory_back() -> None:
    """Returns to the system what this process has freed, for what follows may need less for hours.
    PyAV's frames form cycles, and glibc keeps what is not at the end of its heaps.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):  # of another C library
            ctypes.CDLL(None).malloc_trim(0)


def end_process(code: int) -> NoReturn:
    """Removes the temporary folders of this process and ends it at once; from any thread."""
    with making_folders:
        remove_all()
        os._exit(code)


def _inherited(handle: int) -> "connection.Connection[Any, Any]":
    if sys.platform == "win32":
        return connection.PipeConnection(handle)
    return connection.Connection(handle)


def _received(parent: "connection.Connection[Any, Any]") -> Iterator[Order | Cancel | None]:
    """Yields messages until the parent asks for the end, and None where none comes for a while."""
    while True:
        if not parent.poll(LIFE_S):
            yield None
            continue
        message = parent.recv()
        if message is None:
            return
        yield message
