"""A command's options as one frozen dataclass: each field declares its flag, help and default."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from click.types import StringParamType

from latentsync_trt.option_fields import HARDWARE, QUALITY, choices_of, flag_name, option
from latentsync_trt.paths import check_folder_to_write, local_path
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES

T = TypeVar("T")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class RareOption(click.RichOption):
    """An option that no help text shows: measurement and diagnosis need it."""


class LocalPath(click.Path):
    """A path on this machine.

    URLs and empty names are refused before `pathlib` hides what was typed.
    """

    def __init__(self, *, folder: bool = False, written: bool = False) -> None:
        super().__init__(path_type=Path)
        self._folder = folder
        self.written = folder or written
        """Whether the command writes there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        flag = param.opts[0] if isinstance(param, click.Option) else ""
        path = local_path(value, flag)
        if self._folder:
            check_folder_to_write(path, flag)
        return super().convert(value, param, ctx)


class OutputFolder(StringParamType):
    """A folder to write to, or the URL of one."""

    written = True


def command_field(default: Any, help_text: str, **how: Any) -> Any:
    """Returns a field that is an option of one command; under the heading "Options" unless `group`
    says another.
    """
    return option(default, help_text, **{"group": "Options", **how})


def argument(metavar: str | None = None, **how: Any) -> Any:
    """Returns a field that is an argument, which has no flag; `how`: as for `click.argument`."""
    return dataclasses.field(metadata={"argument": {"metavar": metavar, **how}})


def options_of(**which: Any) -> Any:
    """Returns a field whose type is an options dataclass: every field of that with a help text is
    an option, except those to `leave_out`, or only those of the `groups`.
    """
    return dataclasses.field(metadata={"options": which})


bundle_option = partial(
    command_field,
    None,
    "Exported model: a path, a name below checkpoints/, or demo.  "
    "[default: the one chosen with `setup --use`, else the only exported one]",
    group=QUALITY,
)
provider_option = partial(
    command_field,
    "auto",
    "Execution provider; auto takes the fastest available, naming one disables fallback.",
    group=HARDWARE,
    choices=PROVIDER_CHOICES,
)
workers_option = partial(
    command_field,
    None,
    "Processes of one clip at a time.  [default: one for each GPU of --device, of two clips at a "
    "time]",
    group=HARDWARE,
    type=click.IntRange(1, 4096),
)
ray_option = partial(
    command_field,
    None,
    "Ray cluster to run on; auto: this machine's.",
    group=HARDWARE,
    metavar="ADDRESS",
)
overwrite_option = partial(command_field, False, "Replace what an earlier call has written.")
quiet_option = partial(command_field, False, "Print errors only.", names=("--quiet", "-q"))
json_option = partial(
    command_field,
    False,
    "Print one JSON object, or the error, to stdout, and nothing else.",
    names=("--json",),
)


def takes(
    request_class: type[T],
) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Returns a decorator: the command takes the options that `request_class` declares, and its
    function gets an instance.
    """

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**values: Any) -> None:
            function(_request(request_class, values))

        command: Callable[..., None] = call
        # Help texts show first what is added last.
        for add in reversed([*_click_parameters(request_class)]):
            command = add(command)
        return command

    return decorate


def _click_parameters(request_class: type[Any]) -> Iterator[Decorator]:
    hints = typing.get_type_hints(request_class)
    for spec in dataclasses.fields(request_class):
        hint = hints[spec.name]
        if "options" in spec.metadata:
            option_hints = typing.get_type_hints(hint)
            for option_spec in _option_fields(hint, **spec.metadata["options"]):
                yield _click_option(option_spec, option_hints[option_spec.name])
        elif "argument" in spec.metadata:
            how = {"type": _parameter_type(spec, hint), **spec.metadata["argument"]}
            yield click.argument(spec.name, **how)
        else:
            yield _click_option(spec, hint)


def _request(request_class: type[T], values: dict[str, Any]) -> T:
    hints = typing.get_type_hints(request_class)
    arguments = {}
    for spec in dataclasses.fields(request_class):  # type: ignore[arg-type]
        if "options" in spec.metadata:
            options_class = hints[spec.name]
            options = _option_fields(options_class, **spec.metadata["options"])
            by_name = {option_spec.name: values[option_spec.name] for option_spec in options}
            arguments[spec.name] = options_class(**by_name)
        else:
            arguments[spec.name] = values[spec.name]
    return request_class(**arguments)


def _option_fields(
    cls: type[Any], *, leave_out: tuple[str, ...] = (), groups: tuple[str, ...] | None = None
) -> Iterator[dataclasses.Field[Any]]:
    for spec in dataclasses.fields(cls):
        is_option = "help" in spec.metadata and spec.name not in leave_out
        if is_option and (groups is None or spec.metadata["group"] in groups):
            yield spec


def _click_option(spec: dataclasses.Field[Any], hint: Any) -> Decorator:
    """Returns the option that a field declares by its type, its default and its metadata."""
    metadata = spec.metadata
    default = spec.default
    has_default = default not in (None, ())
    how = {
        "help": metadata["help"],
        "show_default": has_default,
        "panel": metadata["group"] or "Main options",
        "hidden": metadata["advanced"] or metadata["rare"],
        "cls": RareOption if metadata["rare"] else click.RichOption,
        "required": metadata.get("required", False),
    }
    if not how["required"]:  # a default counts as given, even None
        how["default"] = default
    names = [spec.name, *metadata.get("names", (flag_name(spec.name),))]
    if bool in _kinds(hint):
        if "off" in metadata:
            names[-1] += f"/{metadata['off']}"
        return click.option(*names, is_flag=True, **how)
    if "parse" in metadata and has_default:  # the dataclass makes the value
        how["default"] = metadata.get("show", str)(default)
    if "given_alone" in metadata:
        how |= {"is_flag": False, "flag_value": metadata["given_alone"]}
    kind = _parameter_type(spec, hint)
    how["metavar"] = metadata.get("metavar") or _METAVARS.get(kind)
    multiple = default == () or metadata.get("several", False)
    return click.option(*names, type=kind, multiple=multiple, **how)


_METAVARS: dict[click.ParamType[Any], str] = {click.FLOAT: "NUMBER", click.INT: "INTEGER"}
"""What help texts call values of a type, where click's own word says less."""


def _parameter_type(spec: dataclasses.Field[Any], hint: Any) -> click.ParamType[Any]:
    metadata = spec.metadata
    choices = metadata.get("choices") or choices_of(hint)
    kinds = _kinds(hint)
    if "type" in metadata:
        kind = metadata["type"]
    elif choices:
        kind = click.Choice(choices)
    elif "parse" in metadata:
        kind = click.STRING
    elif float in kinds:
        kind = click.FLOAT
    elif int in kinds:
        kind = click.INT
    elif Path in kinds:
        kind = LocalPath(
            folder=metadata.get("folder", False), written=metadata.get("written", False)
        )
    else:
        kind = click.STRING
    return kind


def _kinds(hint: Any) -> set[Any]:
    """Returns a type and, of a union or a tuple, its members."""
    return {hint, *typing.get_args(hint)}


def add_help_all(command: click.Command) -> None:
    """Adds `--help-all` to a command with advanced options, which `--help` omits."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    advanced = [param for param in options if param.hidden and not isinstance(param, RareOption)]

    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            for param in advanced:
                param.hidden = False
            click.echo(ctx.get_help())
            for param in advanced:
                param.hidden = True
            ctx.exit()

    if advanced:
        help_all = click.RichOption(
            ["--help-all"],
            help="Show the advanced options, too, and exit.",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=show,
        )
        command.params.append(help_all)
