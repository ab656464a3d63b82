"""The command `latentsync-trt`, also as `python -m latentsync_trt`."""

import signal
import sys
import warnings


def main() -> None:
    """Runs the command line; handles signals before it imports anything else."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # until the next two lines are done: no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from latentsync_trt import stopping

    try:
        stopping.install()
        _run()
    except KeyboardInterrupt:  # outside of a command, as during imports
        # Of a text that Python runs, as for each dataclass, it remembers the interruption, and
        # `python -m` would end by SIGINT instead of with this code; it forgets it when it runs
        # another text.
        exec("")  # noqa: S102
        if "--json" in sys.argv:
            sys.stdout.write(f'{{"error": "{stopping.INTERRUPTED_MESSAGE}"}}\n')
        else:
            sys.stderr.write(f"{stopping.INTERRUPTED_MESSAGE}\n")
        sys.exit(stopping.exit_code() or stopping.INTERRUPTED_CODE)


def _run() -> None:
    try:
        from latentsync_trt.cli import main as command_line
    except ImportError as error:
        sys.stderr.write(
            f"error: a package does not load ({error}); "
            "pip install --force-reinstall latentsync-trt\n"
        )
        sys.exit(1)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of other libraries tell a user nothing
    command_line(prog_name="latentsync-trt")


if __name__ == "__main__":
    main()
