"""The command line. Each command is a module, imported only when that command runs.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130, 143 and 129 stopped by Ctrl-C, SIGTERM and SIGHUP.
"""

import importlib
import inspect
import io
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rich_click as click
from click.exceptions import NoArgsIsHelpError

from latentsync_trt import __version__, stopping
from latentsync_trt.cli.config_file import add_config
from latentsync_trt.cli.options import add_help_all
from latentsync_trt.errors import LatentSyncError, did_you_mean
from latentsync_trt.paths import PrintableLines, printable

BEGAN_S = time.monotonic()
"""When the process began, but for the start of Python itself."""

PANELS = {
    "Lip-sync": {
        "demo.demo": "Lip-sync a built-in clip on the CPU, and look at the result.",
        "setup.setup": "Download the published weights, export them, "
        "build engines, test, and choose the result.",
        "sync.sync": "Lip-sync a video to a speech recording.",
        "serve.ui": "Lip-sync on a page in the browser: drop a video "
        "and speech, follow the job, compare, download.",
        "live.live": "A face that speaks while the speech is "
        "still being made, on a page in the browser.",
        "batch.batch": "Lip-sync many clips; models are loaded once per GPU.",
        "serve.serve": "Lip-sync as an HTTP service: send video "
        "and speech, follow the job, fetch the result.",
        "faces.faces": "Find and number all people of VIDEO: a contact "
        "sheet, and their tracks for `sync --faces`.",
        "export.download": "Download the published weights of LatentSync "
        "1.6 or 1.5, with Whisper and the VAE.",
        "export.export": "Export LatentSync's checkpoints to a "
        "bundle that `sync` runs without PyTorch.",
    },
    "Speed and quality": {
        "engines.build": "Build a bundle's engines into the engine cache.",
        "calibrate.calibrate": "Make an INT8 or FP8 bundle from a bundle, calibrated on clips.",
        "bench.bench": "Measure `sync` with a bundle, by provider and preset: time, memory, lips.",
        "compare.compare": "Compare what two bundles make of a clip, or two finished videos of it.",
    },
    "Checks and maintenance": {
        "doctor.doctor": "Say what works here and, for everything "
        "missing, the line that installs it.",
        "selftest.selftest": "Build, run and reopen a bundle's graphs on "
        "a provider; compare results with the CPU's.",
        "engines.cache": "Show, check and clean up the engines that were built.",
    },
}
"""Commands by heading of `--help`, as "module.function"; first lines of their help texts."""

_COMMAND_MODULES: dict[str, str] = {}
COMMANDS: dict[str, str] = {}
"""The first line of each command's help text, by its name."""

for _lines in PANELS.values():
    for _place, _line in _lines.items():
        _module, _name = _place.split(".")
        _COMMAND_MODULES[_name] = _module
        COMMANDS[_name] = _line

EXAMPLES = {
    "live": ("live --video idle.mp4", "live --video idle.mp4 --bundle 1.5-256-fp16 --hop 4"),
    "demo": ("demo", "demo --audio speech.wav --output mine"),
    "setup": ("setup --model 1.5 --yes", "setup --use 1.6-512-fp16"),
    "sync": (
        "sync in.mp4 speech.wav",
        "sync in.mp4 speech.wav --preset fast --output done/out.mp4",
    ),
    "ui": ("ui", "ui --bundle demo --port 7861"),
    "batch": ("batch jobs.csv --device all", "batch jobs.csv --skip-bad --workers 2"),
    "serve": ("serve --device all", "serve --host 0.0.0.0 --port 8080 --max-clip-s 600"),
    "faces": ("faces clip.mp4", "faces clip.mp4 --output people/clip"),
    "download": ("download", "download 1.5"),
    "export": ("export", "export --model 1.5 --precision fp32"),
    "build": ("build", "build --provider tensorrt --device 1"),
    "calibrate": (
        "calibrate --video me.mp4 --audio me.wav",
        "calibrate --clips folder --precision fp8",
    ),
    "bench": ("bench", "bench --bundle 1.6-512-fp16 --output bench.json"),
    "compare": (
        "compare 1.6-512-fp16 1.6-512-int8",
        "compare a.mp4 b.mp4 --video in.mp4 --audio speech.wav",
    ),
    "doctor": ("doctor", "doctor --json"),
    "selftest": ("selftest --provider tensorrt", "selftest --bundle 1.6-512-fp16 --json"),
    "cache": ("cache ls", "cache prune --max-gb 20"),
}
"""Two calls of each command, shown at the end of its help text."""


def echo(text: str, *, err: bool = False, fg: str | None = None, bold: bool | None = None) -> None:
    """Prints a line to stdout, or stderr, in a color if that is a terminal."""
    click.secho(printable(text), err=err, fg=fg, bold=bold)


class Interrupted(LatentSyncError):
    """A signal stopped the command."""


@contextmanager
def interruption(message: str = stopping.INTERRUPTED_MESSAGE) -> Iterator[None]:
    """Raises `Interrupted` with `message`, and the notes of the error, for a KeyboardInterrupt in
    the block.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(_with_notes(message, error)) from None


def _with_notes(message: str, error: BaseException) -> str:
    notes = [note for note in getattr(error, "__notes__", ()) if note not in message]
    return "; ".join([message, *notes])


class CommandLine(click.RichGroup):
    """Imports commands lazily, and prints errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module = importlib.import_module(f"{__name__}.{_COMMAND_MODULES[cmd_name]}")
            command = getattr(module, cmd_name)
            texts = [COMMANDS[cmd_name], inspect.cleandoc(command.help or "")]
            command.help = "\n\n".join(filter(None, texts))
            calls = [f"latentsync-trt {call}" for call in EXAMPLES[cmd_name]]
            command.epilog = "\n\n".join(["Examples:", *calls])
            add_config(command)
            add_help_all(command)
            self.add_command(command, cmd_name)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        imported = self.commands  # listed without importing others
        self.commands = {
            name: click.RichCommand(name=name, help=line) for name, line in COMMANDS.items()
        }
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = imported

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no such command '{args[0]}'{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Runs a command; errors go to stderr, or to stdout as JSON with `--json`. To be stopped is
        no error.
        """
        if args is None:
            args = sys.argv[1:]
        arguments = list(args)
        # Names of files and our own signs (✓, →) may be missing in the encoding of a pipe, as on
        # Windows.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableLines())
            logging.lastResort.addFilter(_is_for_users)
        try:
            extra |= {"standalone_mode": False, "obj": arguments}
            result = super().main(arguments, *rest, **extra)
            sys.exit(result if isinstance(result, int) else 0)
        except NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except Exception as error:  # noqa: BLE001 -- the user gets one line for any error
            message, code = _explained(error, arguments)
            is_stopped = isinstance(error, Interrupted | click.Abort) or bool(stopping.exit_code())
        if "--json" in arguments:
            click.echo(json.dumps({"error": message}))
        else:
            echo(message if is_stopped else f"error: {message}", err=True)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        with interruption():
            return super().invoke(ctx)


def _is_for_users(record: logging.LogRecord) -> bool:
    """Returns whether a command shows a record: ours, and errors of other libraries, whose
    warnings are for developers.
    """
    return record.name.startswith("latentsync_trt") or record.levelno >= logging.ERROR


def _explained(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    if isinstance(error, Interrupted):
        return str(error), stopping.exit_code() or stopping.INTERRUPTED_CODE
    if stopping.exit_code():  # a failure while a command leaves its blocks is caused by that
        return stopping.INTERRUPTED_MESSAGE, stopping.exit_code()
    if isinstance(error, click.UsageError):
        text = error.format_message().rstrip(".")
        path = error.ctx.command_path if error.ctx else "latentsync-trt"
        message = f"{text[:1].lower()}{text[1:]}; see `{path} --help`"
        return message, error.exit_code
    if isinstance(error, click.Abort):
        return "aborted", 1
    from latentsync_trt.unexpected import one_line

    message, usage = one_line(error, arguments)
    return _with_notes(message, error), 2 if usage else 1


# No boxes: terminals and files get the same text.
_PLAIN_HELP = {
    "theme": "default-slim",
    "default_string": r"\[default: {}]",
    "commands_before_options": True,
}


@click.group(
    cls=CommandLine,
    panels=[
        click.RichCommandPanel(heading, [place.partition(".")[2] for place in lines])
        for heading, lines in PANELS.items()
    ],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "rich_help_config": _PLAIN_HELP,
    },
)
@click.version_option(__version__, prog_name="latentsync-trt")
def main() -> None:
    """Lip-sync a video to a speech recording with LatentSync, through ONNX Runtime and TensorRT."""
