"""The command line with a command `doctor` that waits: `python -m tests.stopped_command FOLDER HOW`.

It says "ready" on stdout when it has a temporary folder in FOLDER and a child process, then waits. HOW:

- "python": where a signal interrupts it.
- "native": in a call that no signal interrupts; "patient": with ten minutes to leave it after the first signal.
- "cleaning": in such a call of a `finally`.
- "holding": in calls that keep Python's lock for half a second each.
- "starving": where a signal interrupts it, and Python's lock is kept for half a second before each line of output.
- "swallowing": where every exception is caught.
"""

import ctypes
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import rich_click as click

from latentsync_trt import stopping
from latentsync_trt.__main__ import main
from latentsync_trt.files import temporary_folder

FOREVER_S = 600


def sleep_natively(seconds: float, *, holding: bool = False) -> None:
    """Sleeps in C, with or without Python's lock."""
    # Like a computation, and unlike a system call, it goes on when a signal arrives.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    (ctypes.PyDLL if holding else ctypes.CDLL)(None).usleep(round(seconds * 1e6))


def wait(how: str) -> None:
    """Waits as the module says."""
    if how == "patient":
        stopping._LEAVE_S = FOREVER_S
    if how in {"native", "patient"}:
        sleep_natively(FOREVER_S)
    if how == "starving":
        say = stopping._say
        stopping._say = lambda text: (sleep_natively(0.5, holding=True), say(text))[1]
    while how == "holding":
        sleep_natively(0.5, holding=True)
    while how == "swallowing":
        try:
            time.sleep(FOREVER_S)
        except BaseException:  # noqa: BLE001 -- as some libraries do
            continue
    try:
        time.sleep(FOREVER_S)
    finally:
        if how == "cleaning":
            sleep_natively(FOREVER_S)


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True)
@click.argument("folder", type=Path)
@click.argument("how")
def command(folder: Path, how: str, as_json: bool) -> None:
    """Waits."""
    with temporary_folder(folder) as temporary:
        (temporary / "graphs").mkdir()
        (temporary / "graphs" / "half.onnx").write_bytes(bytes(1000))
        code = f"import time; print(); time.sleep({FOREVER_S})"
        child = subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        click.echo("ready")
        wait(how)


if __name__ == "__main__":
    sys.modules["latentsync_trt.cli.checks"] = types.SimpleNamespace(doctor=command)  # type: ignore[assignment]
    sys.argv[1:1] = ["doctor"]
    main()
