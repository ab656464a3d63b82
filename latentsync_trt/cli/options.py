"""Command-line flags made from an options dataclass: one flag a field, help and default declared there once."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import click

from latentsync_trt.bundle.manifest import PRECISIONS
from latentsync_trt.config import PROVIDER_CHOICES, flag_name
from latentsync_trt.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def options_from(cls: type[Any], *, leave_out: tuple[str, ...] = ()) -> Callable[[F], F]:
    """A decorator that adds a click option for every field of the dataclass `cls` that carries a help text."""
    hints = typing.get_type_hints(cls)

    def decorate(function: F) -> F:
        for spec in reversed(dataclasses.fields(cls)):
            if "help" in spec.metadata and spec.name not in leave_out:
                function = _click_option(spec, hints[spec.name])(function)
        return function

    return decorate


def bundle_option(function: F) -> F:
    """`--bundle`, as every command means it."""
    return click.option(
        "--bundle", help="An exported model: path, name below checkpoints/, or demo.  [default: newest, else demo]"
    )(function)


def precision_option(function: F) -> F:
    """`--precision`, as every command means it that runs a bundle."""
    return click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Take a bundle in this precision: --bundle itself, or what was calibrated from it.  [default: as it is]",
    )(function)


def provider_option(function: F) -> F:
    """`--provider`, as every command means it."""
    return click.option(
        "--provider",
        type=click.Choice(PROVIDER_CHOICES),
        default="auto",
        show_default=True,
        help="What runs the graphs; a named one is a demand.",
    )(function)


def _fields_of(cls: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Those of `values` that are fields of `cls`."""
    names = {spec.name for spec in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """An instance of the options dataclass `cls`; what it refuses is wrong usage, exit code 2."""
    try:
        return cls(**_fields_of(cls, values))
    except InputError as error:
        raise click.UsageError(str(error)) from error


def _click_option(spec: dataclasses.Field[Any], hint: Any) -> Callable[[F], F]:
    flag = flag_name(spec.name)
    limits = spec.metadata
    common = {"help": limits["help"], "default": spec.default, "show_default": spec.default is not None}
    if bool in {hint, *typing.get_args(hint)}:
        return click.option(f"{flag}/{limits['off']}" if "off" in limits else flag, is_flag=True, **common)
    if "parse" in limits:
        return click.option(flag, spec.name, type=_Parsed(limits["parse"], limits["metavar"]), **common)
    return click.option(flag, spec.name, type=_click_type(hint, limits), **common)


class _Parsed(click.ParamType[Any]):
    """A value that the option's own function reads from the text."""

    def __init__(self, parse: Callable[[str], Any], name: str) -> None:
        self._parse = parse
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of the text; what is no text was read before."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


def _click_type(hint: Any, limits: typing.Mapping[str, Any]) -> click.ParamType[Any]:
    if "choices" in limits:
        return click.Choice([str(choice) for choice in limits["choices"]])
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
    if float in kinds:
        return click.FloatRange(limits.get("minimum"), limits.get("maximum"))
    if int in kinds:
        return click.IntRange(limits.get("minimum"), limits.get("maximum"))
    return click.STRING
