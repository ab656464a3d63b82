"""The command line with a command `doctor` that waits: `python -m tests.stopped_command FOLDER
HOW`.

It says "ready" on stdout when it has a temporary folder in FOLDER and a child process, then waits.
HOW:

- "python": where a signal interrupts it.
- "native": in a call that no signal interrupts, in a `finally`.
- "failing": where leaving its blocks fails.
"""

import ctypes
import sys
import time
import types
from contextlib import ExitStack
from pathlib import Path

import rich_click as click

from latentsync_trt.__main__ import main
from latentsync_trt.child import ENDING_S, ChildProcess
from latentsync_trt.child_main import OnProgress, Order, Progressed
from latentsync_trt.files import temporary_folder

FOREVER_S = 600


def work(folder: Path, on_progress: OnProgress) -> None:
    """In the child: waits."""
    with temporary_folder(folder):
        on_progress("ready")
        time.sleep(FOREVER_S)


@click.command("doctor")
@click.argument("folder", type=Path)
@click.argument("how")
def command(folder: Path, how: str) -> None:
    """Waits."""
    from tests import stopped_command  # the module that the child imports

    process = ChildProcess(stopped_command.work)
    with temporary_folder(folder) as temporary, ExitStack() as ending:
        ending.callback(process.end, ENDING_S)
        (temporary / "graphs").mkdir()
        (temporary / "graphs" / "half.onnx").write_bytes(bytes(1000))
        process.send(Order(0, folder))
        events = process.events()
        while not isinstance(next(events), Progressed):
            pass
        try:
            click.echo("ready")
            time.sleep(FOREVER_S)
        finally:
            if how == "native":
                click.echo("leaving", err=True)
                ctypes.PyDLL(None).usleep(FOREVER_S * 1_000_000)
            if how == "failing":
                raise OSError("a disk was taken out")


if __name__ == "__main__":
    sys.modules["latentsync_trt.cli.doctor"] = types.SimpleNamespace(doctor=command)  # type: ignore[assignment]
    sys.argv[1:1] = ["doctor"]
    main()
