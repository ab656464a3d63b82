"""Errors as one line on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import rich_click as click

from latentsync_trt.errors import LatentSyncError

FAILED = 1


class CleanErrors(click.Command):
    """Turns `LatentSyncError` and Ctrl-C into one line on stderr and exit code 1."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Runs the command as click does; prints errors of this package."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            return super().main(arguments, *rest, **extra)
        except LatentSyncError as error:
            _say(str(error), as_json="--json" in arguments)
        except MemoryError:
            message = "out of memory; close other programs or use a bundle of lower resolution"
            _say(message, as_json="--json" in arguments)
        sys.exit(FAILED)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; Ctrl-C is a failure that leaves no output behind."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise LatentSyncError("interrupted; no output was written") from None


def _say(message: str, *, as_json: bool) -> None:
    line = " ".join(message.split())
    if as_json:
        click.echo(json.dumps({"error": line}))
    else:
        click.echo(f"error: {line}", err=True)
