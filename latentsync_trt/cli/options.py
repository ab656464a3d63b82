"""Command-line options from option dataclasses: one per field, with the field's help and default."""

import copy
import dataclasses
import math
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from click.types import FuncParamType

from latentsync_trt.config import PROVIDER_CHOICES
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import HARDWARE, QUALITY, choices_of, flag_name
from latentsync_trt.paths import check_folder_to_write, local_path

F = TypeVar("F", bound=Callable[..., Any])

_UNGROUPED = "Main options"


class LocalPath(click.Path):
    """A path on this machine; URLs and empty names are refused before `pathlib` hides what was typed."""

    def __init__(self, *, folder: bool = False, as_text: bool = False) -> None:
        """`folder`: to be written. `as_text`: gives str instead of Path."""
        super().__init__(path_type=str if as_text else Path)
        self._folder = folder

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path; raises `InputError` with the option's name if it cannot be one."""
        what = param.opts[0] if param is not None else ""
        path = local_path(value, what)
        if self._folder:
            check_folder_to_write(path, what)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within limits; unlike click's, never NaN, which no comparison finds outside them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return float(number)


# Shown instead of click's INTEGER RANGE; the range itself is in the help text.
_METAVARS: dict[type, str] = {click.IntRange: "INTEGER", Number: "NUMBER"}


def options_from(
    cls: type[Any], *, leave_out: tuple[str, ...] = (), groups: tuple[str, ...] | None = None
) -> Callable[[F], F]:
    """A decorator that adds a click option for every field of the dataclass `cls` with a help text.

    `groups`: only those of these groups.
    """
    hints = typing.get_type_hints(cls)

    def decorate(function: F) -> F:
        for spec in reversed(dataclasses.fields(cls)):
            wanted = groups is None or spec.metadata.get("group") in groups
            if "help" in spec.metadata and wanted and spec.name not in leave_out:
                function = _click_option(spec, hints[spec.name])(function)
        return function

    return decorate


bundle_option = click.option(
    "--bundle",
    panel=QUALITY,
    help="Exported model: a path, a name below checkpoints/, or demo.  "
    "[default: the one chosen with `latentsync-trt use`, else the only exported one]",
)
"""`--bundle`, the same in every command."""

provider_option = click.option(
    "--provider",
    type=click.Choice(PROVIDER_CHOICES),
    default="auto",
    show_default=True,
    panel=HARDWARE,
    help="Execution provider; auto takes the fastest available, naming one disables fallback.",
)
"""`--provider`, the same in every command."""


def worker_options(function: F) -> F:
    """`--workers`, `--ray` and `--gpus-per-worker`, the same in every command with workers."""
    options = (
        click.option(
            "--workers",
            type=click.IntRange(1, 4096),
            metavar="INTEGER",
            panel=HARDWARE,
            help="Clips that run at the same time.  [default: one for each GPU of --device]",
        ),
        click.option(
            "--ray",
            metavar="ADDRESS",
            panel=HARDWARE,
            help="Run on a Ray cluster: its address, or auto for that of this machine; needs the extra cluster.",
        ),
        click.option(
            "--gpus-per-worker",
            type=Number(0.0, 16.0),
            metavar="NUMBER",
            panel=HARDWARE,
            help="With --ray: GPUs to reserve for a worker, also a fraction; 0 = the CPU.  [default: 1 where there are "
            "any]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """An instance of the options dataclass `cls` from its fields in `values`.

    Raises:
        click.UsageError: the dataclass rejects a value.
    """
    names = {spec.name for spec in dataclasses.fields(cls)}
    try:
        return cls(**{name: value for name, value in values.items() if name in names})
    except InputError as error:
        raise click.UsageError(str(error)) from error


def add_help_all(command: click.Command) -> None:
    """Adds `--help-all` to a command with advanced options, which `--help` omits."""
    if any(isinstance(param, click.Option) and param.hidden for param in command.params):
        flag = click.RichOption(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_full_help,
            help="Show all options, also the advanced ones, and exit.",
        )
        command.params.append(flag)


def _print_full_help(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    full = copy.copy(ctx.command)
    full.params = [copy.copy(param) for param in full.params]
    for param in full.params:
        if isinstance(param, click.Option):
            param.hidden = False
    click.echo(full.get_help(click.RichContext(full, parent=ctx.parent, info_name=ctx.info_name)))
    ctx.exit()


def _click_option(spec: dataclasses.Field[Any], hint: Any) -> Callable[[F], F]:
    flag, metadata = flag_name(spec.name), spec.metadata
    common = {
        "help": metadata["help"],
        "default": spec.default,
        "show_default": spec.default is not None,
        "panel": metadata["group"] or _UNGROUPED,
        "hidden": metadata["advanced"],
    }
    if bool in {hint, *typing.get_args(hint)}:
        return click.option(f"{flag}/{metadata['off']}" if "off" in metadata else flag, is_flag=True, **common)
    kind = _click_type(hint, metadata)
    if spec.default == ():
        common |= {"multiple": True, "show_default": False}
    metavar = metadata.get("metavar", _METAVARS.get(type(kind)))
    return click.option(flag, spec.name, type=kind, metavar=metavar, **common)


def _click_type(hint: Any, metadata: typing.Mapping[str, Any]) -> click.ParamType[Any]:
    if "parse" in metadata:
        return FuncParamType(_reporting(metadata["parse"]))
    if choices := choices_of(hint):
        return click.Choice(choices)
    kinds = {hint, *typing.get_args(hint)}
    limits = metadata.get("minimum"), metadata.get("maximum")
    if float in kinds:
        return Number(*limits)
    if int in kinds:
        return click.IntRange(*limits)
    return LocalPath(folder=metadata.get("folder", False), as_text=True) if Path in kinds else click.STRING


def _reporting(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Wraps `parse` to turn its errors into usage errors; defaults are parsed already."""

    def parsed(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except InputError as error:
            raise click.BadParameter(str(error)) from error

    return parsed
