"""The command line: parse, call, show. One file a command, loaded only when that command runs."""

import importlib

import click

from latentsync_trt import __version__
from latentsync_trt.cli.errors import CleanErrors

# Command name → its module in this package, which exposes `command`.
COMMANDS = {
    "sync": "sync",
    "export": "export",
    "calibrate": "calibrate",
    "build": "build",
    "check": "check",
    "cache": "cache",
    "demo": "demo",
    "bench": "bench",
    "compare": "compare",
    "doctor": "doctor",
    "selftest": "selftest",
}


class LazyGroup(CleanErrors, click.Group):
    """Imports a command's module when it is asked for, so that `--help` and errors come at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands in the order a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"latentsync_trt.cli.{COMMANDS[cmd_name]}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="latentsync-trt")
def main() -> None:
    """Lip-sync a video to a speech recording with LatentSync, through ONNX Runtime and TensorRT."""
