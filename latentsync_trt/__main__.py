"""The command `latentsync-trt`, also as `python -m latentsync_trt`."""

import sys

from latentsync_trt import stopping


def main() -> None:
    """Runs the command line; handles signals before it imports anything else."""
    stopping.install()
    try:
        _run()
    finally:
        stopping.end_if_requested()


def _run() -> None:
    try:
        from latentsync_trt.cli import main as command_line
    except KeyboardInterrupt:
        stopping.end_if_requested(stopping.interrupted_message())
        raise
    except ImportError as error:
        sys.stderr.write(f"error: a package does not load ({error}); pip install --force-reinstall latentsync-trt\n")
        sys.exit(1)
    command_line(prog_name="latentsync-trt")


if __name__ == "__main__":
    main()
