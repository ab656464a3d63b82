"""The command line. Each command is a module, imported only when that command runs.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import rich_click as click

from latentsync_trt import __version__
from latentsync_trt.cli.options import add_help_all
from latentsync_trt.errors import LatentSyncError

PANELS = {
    "Lip-sync": ["demo", "sync", "export", "use"],
    "Speed and quality": ["build", "calibrate", "bench", "compare"],
    "Checks and maintenance": ["doctor", "selftest", "check", "cache"],
}
"""Commands by heading of `--help`; each is `command` in the module of the same name."""

COMMANDS = tuple(name for names in PANELS.values() for name in names)


class CommandLine(click.RichGroup):
    """Imports commands lazily, and prints errors of this package as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            command = importlib.import_module(f"latentsync_trt.cli.{cmd_name}").command
            add_help_all(command)
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Runs a command; errors go to stderr, or to stdout as JSON with `--json`."""
        arguments = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in arguments
        try:
            # click would print its own errors as text.
            found = super().main(arguments, *rest, **extra | ({"standalone_mode": False} if as_json else {}))
            sys.exit(found if isinstance(found, int) else 0)
        except LatentSyncError as error:
            message, code = " ".join(str(error).split()), 2 if error.usage else 1
        except click.ClickException as error:
            message, code = error.format_message(), error.exit_code
        except click.Abort:
            message, code = "aborted", 1
        except MemoryError:
            message, code = "out of memory; close other programs or use a bundle of lower resolution", 1
        if as_json:
            click.echo(json.dumps({"error": message}))
        else:
            click.echo(f"error: {message}", err=True)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; Ctrl-C is an error."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise LatentSyncError("interrupted; no output was written") from None


@click.group(
    cls=CommandLine,
    panels=[click.RichCommandPanel(heading, names) for heading, names in PANELS.items()],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        # No boxes: terminals and files get the same text.
        "rich_help_config": {
            "theme": "default-slim",
            "default_string": r"\[default: {}]",
            "commands_before_options": True,
            "errors_panel_title": "Error:",
            "style_errors_panel_box": "BLANK",
            "padding_errors_panel": 0,
        },
    },
)
@click.version_option(__version__, prog_name="latentsync-trt")
def main() -> None:
    """Lip-sync a video to a speech recording with LatentSync, through ONNX Runtime and TensorRT."""
