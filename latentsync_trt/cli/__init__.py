"""The command line: parse, call, show. One file per command, imported only when that command runs."""

import importlib

import rich_click as click

from latentsync_trt import __version__
from latentsync_trt.cli.errors import CleanErrors
from latentsync_trt.cli.options import add_help_all

PANELS = {
    "Lip-sync": ["demo", "sync", "export"],
    "Speed and quality": ["build", "calibrate", "bench", "compare"],
    "Checks and maintenance": ["doctor", "selftest", "check", "cache"],
}
"""Commands by heading of `--help`; each is the `command` of the module of its name in this package."""

COMMANDS = tuple(name for names in PANELS.values() for name in names)


class LazyGroup(CleanErrors, click.RichGroup):
    """Imports a command's module when it is needed, so that errors and other commands do not wait for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands."""
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


@click.group(
    cls=LazyGroup,
    panels=[click.RichCommandPanel(heading, names) for heading, names in PANELS.items()],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        # No boxes: the same text in a terminal and in a file.
        "rich_help_config": {
            "theme": "default-slim",
            "default_string": r"\[default: {}]",
            "errors_panel_title": "Error:",
            "style_errors_panel_box": "BLANK",
        },
    },
)
@click.version_option(__version__, prog_name="latentsync-trt")
def main() -> None:
    """Lip-sync a video to a speech recording with LatentSync, through ONNX Runtime and TensorRT."""
