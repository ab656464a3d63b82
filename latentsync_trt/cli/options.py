"""Command-line options from option dataclasses: one per field, with the field's help and
default.
"""

import dataclasses
import typing
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from click.types import StringParamType

from latentsync_trt.errors import InputError, did_you_mean
from latentsync_trt.option_fields import (
    HARDWARE,
    QUALITY,
    choices_of,
    field_name,
    flag_name,
    show_numbers,
)
from latentsync_trt.paths import (
    check_folder_to_write,
    local_path,
    path_exists,
    read_text,
    user_folder,
    why_missing,
)
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES


class RareOption(click.RichOption):
    """One that no help text shows: measurement and diagnosis need it."""


F = TypeVar("F", bound=Callable[..., Any])

CONFIG = "latentsync-trt.toml"

_MOST_CONFIG_BYTES = 1_000_000

_DOORS = ["host", "no_key", "ray", "stun", "provider_option", "overwrite", "yes"]
"""Options that let others in or name other machines; load code; replace files, or agree to a
download. Of others, those that name what is written, as folders of jobs and of engines, which are
code; and values with addresses.
"""


class LocalPath(click.Path):
    """A path on this machine; URLs and empty names are refused before `pathlib` hides what was
    typed. `written`: whether that file is written; a `folder` always is.
    """

    def __init__(self, *, folder: bool = False, written: bool = False) -> None:
        super().__init__(path_type=Path)
        self._folder = folder
        self.written = folder or written

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        what = param.opts[0] if isinstance(param, click.Option) else ""
        path = local_path(value, what)
        if self._folder:
            check_folder_to_write(path, what)
        return super().convert(value, param, ctx)


class OutputFolder(StringParamType):
    """A folder to write to, or the URL of one."""

    written = True


def path_option(
    *names: str, folder: bool = False, written: bool = False, **how: Any
) -> Callable[[F], F]:
    """An option that takes a `LocalPath`; `how`: as for `click.option`."""
    return click.option(*names, type=LocalPath(folder=folder, written=written), **how)


def combined(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator that adds all these options, in this order."""
    return lambda function: reduce(lambda made, add: add(made), reversed(options), function)


def options_from(
    cls: type[Any], *, leave_out: tuple[str, ...] = (), groups: tuple[str, ...] | None = None
) -> Callable[[F], F]:
    """A decorator that adds a click option for every field of the dataclass `cls` with a help text,
    of all `groups`.
    """
    hints = typing.get_type_hints(cls)
    specs = [spec for spec in dataclasses.fields(cls) if "help" in spec.metadata]
    wanted = (spec for spec in specs if groups is None or spec.metadata["group"] in groups)
    return combined(
        *(_click_option(spec, hints[spec.name]) for spec in wanted if spec.name not in leave_out)
    )


bundle_option = click.option(
    "--bundle",
    panel=QUALITY,
    help="Exported model: a path, a name below checkpoints/, or demo.  "
    "[default: the one chosen with `setup --use`, else the only exported one]",
)
provider_option = click.option(
    "--provider",
    type=click.Choice(PROVIDER_CHOICES),
    default="auto",
    show_default=True,
    panel=HARDWARE,
    help="Execution provider; auto takes the fastest available, naming one disables fallback.",
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace what an earlier call has written."
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object, or the error, to stdout, and nothing else.",
)
worker_options = combined(
    click.option(
        "--workers",
        type=click.IntRange(1, 4096),
        panel=HARDWARE,
        help="Processes of one clip at a time.  [default: one "
        "for each GPU of --device, of two clips at a time]",
    ),
    click.option(
        "--ray",
        metavar="ADDRESS",
        panel=HARDWARE,
        help="Ray cluster to run on; auto: this machine's.",
    ),
)


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """An instance of the options dataclass `cls` from its fields in `values`; raises `InputError`
    as that does.
    """
    return cls(
        **{spec.name: values[spec.name] for spec in dataclasses.fields(cls) if spec.name in values}
    )


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
        how: dict[str, Any] = {
            "is_flag": True,
            "is_eager": True,
            "expose_value": False,
            "callback": show,
        }
        command.params.append(
            click.RichOption(
                ["--help-all"], help="Show the advanced options, too, and exit.", **how
            )
        )


def add_config(command: click.Command) -> None:
    """Adds `--config`: a file whose table of this command holds the defaults of its options."""
    config = click.RichOption(
        ["--config"],
        type=LocalPath(),
        is_eager=True,
        expose_value=False,
        callback=_take_defaults,
        hidden=any(isinstance(param, click.Option) and param.hidden for param in command.params),
        help="TOML file of defaults by command.  [default: "
        f"{CONFIG} here, else in the user's config folder]",
    )
    command.params.append(config)


def _take_defaults(ctx: click.Context, _: click.Parameter, given: Path | None) -> None:
    places = [Path(CONFIG)]
    with suppress(InputError):  # no home folder
        places.append(user_folder("config") / CONFIG)
    path = given or next(filter(path_exists, places), None)
    if path is None:
        return
    if not path_exists(path):
        raise InputError(why_missing(path))
    import tomllib

    from latentsync_trt.cli import COMMANDS, echo

    text = read_text(path, most_bytes=_MOST_CONFIG_BYTES)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from error
    for name, table in tables.items():
        if name not in COMMANDS or not isinstance(table, dict):
            raise InputError(
                f"{path}: {name}: is no table of a command, as [sync]{did_you_mean(name, COMMANDS)}"
            )
    name = str(ctx.info_name)
    table = tables.get(name, {})
    found_here = given is None and path == places[0]
    elsewhere = f"give it on the command line, in {places[-1]}, or in a file that --config names"
    ctx.default_map = _defaults(
        ctx.command, table, f"{path}: [{name}]", elsewhere if found_here else ""
    )
    if found_here and table and not {"--json", "--quiet", "-q"} & {*(ctx.obj or ())}:
        echo(f"note: {path} in the current folder holds defaults of {', '.join(table)}", err=True)


def _is_door(option: click.Option, value: Any) -> bool:
    """Whether only the user may set the option, or give it that value."""
    return option.name in _DOORS or getattr(option.type, "written", False) or "://" in str(value)


def _defaults(
    command: click.Command, table: dict[str, Any], where: str, elsewhere: str
) -> dict[str, Any]:
    """The defaults of a command, and of those below it, by parameter; raises `InputError` for
    unknown names. `elsewhere`: where options can be given that are doors, if they cannot here.
    """
    options = {
        param.name: param
        for param in command.params
        if isinstance(param, click.Option) and param.expose_value
    }
    below: dict[str, click.Command] = getattr(command, "commands", {})
    found: dict[str, Any] = {}
    for given, value in table.items():
        name = field_name(given)
        if given in below and isinstance(value, dict):
            found[given] = _defaults(below[given], value, f"{where} [{given}]", elsewhere)
        elif name not in options or isinstance(value, dict):
            raise InputError(
                f"{where} {given}: no such "
                f"option{did_you_mean(name, [*filter(None, options), *below])}"
            )
        elif elsewhere and _is_door(options[name], value):
            raise InputError(f"{where} {given}: is not taken from the current folder; {elsewhere}")
        else:
            several = options[name].multiple
            is_list = isinstance(value, list)
            found[name] = (
                value if several == is_list else [value] if several else show_numbers(value)
            )
    return found


def _click_option(spec: dataclasses.Field[Any], hint: Any) -> Callable[[F], F]:
    flag = flag_name(spec.name)
    metadata = spec.metadata
    kinds = {hint, *typing.get_args(hint)}
    common = {
        "help": metadata["help"],
        "default": spec.default,
        "show_default": spec.default not in (None, ()),
        "panel": metadata["group"] or "Main options",
        "hidden": metadata["advanced"] or metadata["rare"],
        "cls": RareOption if metadata["rare"] else click.RichOption,
    }
    if bool in kinds:
        return click.option(
            f"{flag}/{metadata['off']}" if "off" in metadata else flag, is_flag=True, **common
        )
    kind: click.ParamType[Any] = click.STRING
    metavar = metadata.get("metavar")
    if choices := choices_of(hint):
        kind = click.Choice(choices)
    elif "parse" in metadata:  # the dataclass makes the value
        common["default"] = (
            metadata.get("show", str)(spec.default)
            if spec.default not in (None, ())
            else spec.default
        )
    elif kinds & {float, int}:
        kind, name = (click.FLOAT, "NUMBER") if float in kinds else (click.INT, "INTEGER")
        metavar = metavar or name
    elif Path in kinds:
        kind = LocalPath(
            folder=metadata.get("folder", False), written=metadata.get("written", False)
        )
    if "given_alone" in metadata:
        common |= {"is_flag": False, "flag_value": metadata["given_alone"]}
    return click.option(
        flag, spec.name, type=kind, metavar=metavar, multiple=spec.default == (), **common
    )
