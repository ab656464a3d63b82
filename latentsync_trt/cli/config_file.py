"""`--config`: a TOML file whose table of a command holds the defaults of its options."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.cli.options import LocalPath
from latentsync_trt.errors import InputError, did_you_mean
from latentsync_trt.option_fields import field_name, show_numbers
from latentsync_trt.paths import path_exists, read_text, user_folder, why_missing

CONFIG = "latentsync-trt.toml"

_MAX_CONFIG_BYTES = 1_000_000

_REFUSED_IN_LOCAL_CONFIG = (
    "host",
    "no_key",
    "ray",
    "stun",
    "provider_option",
    "overwrite",
    "redo",
    "yes",
)
"""Options that a file in the current folder, which may be a stranger's, cannot set: they let others
in or name other machines, load code, replace files, or agree to a download. Neither can it name
what is written, as folders of engines, which are code, nor give values with addresses.
"""


def add_config(command: click.Command) -> None:
    """Adds `--config` to a command."""
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


def _take_defaults(ctx: click.Context, _: click.Parameter, named: Path | None) -> None:
    from latentsync_trt.cli import echo

    local = Path(CONFIG)
    places = [local]
    with suppress(InputError):  # no home folder
        places.append(user_folder("config") / CONFIG)
    path = named or next(filter(path_exists, places), None)
    if path is None:
        return
    table = _read_tables(path).get(str(ctx.info_name), {})
    is_local = named is None and path == local
    cure = ""
    if is_local:
        cure = f"give it on the command line, in {places[-1]}, or in a file that --config names"
    ctx.default_map = _option_defaults(ctx.command, table, f"{path}: [{ctx.info_name}]", cure)
    is_quiet = not {"--json", "--quiet", "-q"}.isdisjoint(ctx.obj or ())
    if is_local and table and not is_quiet:
        echo(f"note: {path} in the current folder holds defaults of {', '.join(table)}", err=True)


def _read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the tables of a file, by command. Raises `InputError` if it has anything else."""
    if not path_exists(path):
        raise InputError(why_missing(path))
    import tomllib

    from latentsync_trt.cli import COMMANDS

    text = read_text(path, most_bytes=_MAX_CONFIG_BYTES)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from error
    for name, table in tables.items():
        if name not in COMMANDS or not isinstance(table, dict):
            hint = did_you_mean(name, COMMANDS)
            raise InputError(f"{path}: {name}: is no table of a command, as [sync]{hint}")
    return tables


def _option_defaults(
    command: click.Command, table: dict[str, Any], where: str, cure: str
) -> dict[str, Any]:
    """Returns the defaults of a command, and of those below it, by parameter. Raises `InputError`.

    Args:
        where: the table, for messages.
        cure: where else options can be set that a local file cannot set; empty for other files.
    """
    options = {}
    for param in command.params:
        if isinstance(param, click.Option) and param.expose_value:
            options[str(param.name)] = param
    subcommands: dict[str, click.Command] = getattr(command, "commands", {})
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        name = field_name(key)
        if key in subcommands and isinstance(value, dict):
            place = f"{where} [{key}]"
            defaults[key] = _option_defaults(subcommands[key], value, place, cure)
            continue
        if name not in options or isinstance(value, dict):
            hint = did_you_mean(name, [*options, *subcommands])
            raise InputError(f"{where} {key}: no such option{hint}")
        option = options[name]
        is_written = getattr(option.type, "written", False)
        is_refused = name in _REFUSED_IN_LOCAL_CONFIG or is_written or "://" in str(value)
        if cure and is_refused:
            raise InputError(f"{where} {key}: is not taken from the current folder; {cure}")
        is_list = isinstance(value, list)
        if option.multiple:
            defaults[name] = value if is_list else [value]
        else:
            defaults[name] = show_numbers(value) if is_list else value
    return defaults
