"""The command line. Each command is a module, imported only when that command runs.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130, 143 and 129 stopped by Ctrl-C, SIGTERM and SIGHUP.
"""

import importlib
import inspect
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

import rich_click as click

from latentsync_trt import __version__, stopping
from latentsync_trt.cli.options import add_help_all
from latentsync_trt.paths import printable

PANELS = {
    "Lip-sync": {
        "demo": "Lip-sync a built-in clip on the CPU, and look at the result.",
        "setup": "Download the published weights, export them for this machine, build engines, test, and choose the "
        "result.",
        "sync": "Lip-sync a video to a speech recording.",
        "ui": "Lip-sync on a page in the browser: drop a video and speech, follow the job, compare, download.",
        "batch": "Lip-sync many clips; models are loaded once per GPU.",
        "serve": "Lip-sync as an HTTP service: send video and speech, follow the job, fetch the result.",
        "faces": "Find and number all people of VIDEO: a contact sheet, and their tracks for `sync --faces`.",
        "download": "Download the published weights of LatentSync 1.6 or 1.5, with Whisper and the VAE that they need.",
        "export": "Export LatentSync's checkpoints to a bundle that `sync` runs without PyTorch.",
        "use": "Choose the exported bundle that commands run without `--bundle`; without NAME, show the choice.",
    },
    "Speed and quality": {
        "build": "Build a bundle's engines into the engine cache, for several GPUs once for each kind.",
        "calibrate": "Make an INT8 or FP8 bundle from a bundle, calibrated on clips.",
        "bench": "Measure a bundle: graphs, loop, whole clips; time, memory and quality.",
        "compare": "Compare bundle B with bundle A, or a finished video B with A: what each makes of the same clip.",
    },
    "Checks and maintenance": {
        "doctor": "Say what works here and, for everything missing, the line that installs it.",
        "selftest": "Build, run and reopen every graph of a bundle on a provider, and compare its results with the "
        "CPU's.",
        "cache": "Show, check and clean up the engines that were built.",
    },
}
"""Commands by heading of `--help`, each with the first line of its help text; the rest is its function's docstring.
Here, so that `--help` imports none of them."""

_MODULES = {
    "bench": ("bench", "compare"),
    "checks": ("doctor", "selftest"),
    "engines": ("build", "cache"),
    "model": ("calibrate", "download", "export", "setup", "use"),
    "serve": ("serve", "ui"),
    "sync": ("demo", "faces", "sync"),
}
"""Commands by module, where each is a function of its name; `batch` has a module of its own."""

COMMANDS = {name: line for lines in PANELS.values() for name, line in lines.items()}


class CommandLine(click.RichGroup):
    """Imports commands lazily, and prints errors of this package as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            place = next((module for module, names in _MODULES.items() if cmd_name in names), cmd_name)
            command = getattr(importlib.import_module(f"latentsync_trt.cli.{place}"), cmd_name)
            command.help = "\n\n".join(filter(None, (COMMANDS[cmd_name], inspect.cleandoc(command.help or ""))))
            add_help_all(command)
            self.add_command(command, cmd_name)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        """Lists the commands without importing them."""
        imported = self.commands
        self.commands = {name: click.RichCommand(name=name, help=line) for name, line in COMMANDS.items()}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = imported

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Runs a command; errors go to stderr, or to stdout as JSON with `--json`."""
        arguments = list(sys.argv[1:] if args is None else args)
        # Names of files and our own signs (✓, →) may be missing in the encoding of a pipe, as on Windows.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        as_json = "--json" in arguments
        try:
            # click would print its own errors as text.
            found = super().main(arguments, *rest, **extra | ({"standalone_mode": False} if as_json else {}))
            sys.exit(found if isinstance(found, int) else 0)
        except Exception as error:  # noqa: BLE001 -- the user gets one line for any error
            message, code = _explained(error, arguments)
            message = stopping.with_notes(message, error)
        stopping.end_if_requested(message)
        if as_json:
            click.echo(json.dumps({"error": message}))
        else:
            click.echo(f"error: {printable(message)}", err=True)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; an interruption is an error."""
        with stopping.interruption():
            return super().invoke(ctx)


def _explained(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """What to print, and the exit code."""
    if isinstance(error, stopping.Interrupted):
        return str(error), stopping.INTERRUPTED_CODE
    if stopping.requested():  # a failure while a command leaves its blocks is caused by that
        return stopping.interrupted_message(), stopping.INTERRUPTED_CODE
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, click.Abort):
        return "aborted", 1
    from latentsync_trt.unexpected import one_line

    message, usage = one_line(error, arguments)
    return message, 2 if usage else 1


@click.group(
    cls=CommandLine,
    panels=[click.RichCommandPanel(heading, list(lines)) for heading, lines in PANELS.items()],
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
