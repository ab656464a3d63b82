"""Dataclass fields that are also command-line options: what they declare, and how values are checked."""

from collections.abc import Mapping
from dataclasses import field, fields
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from latentsync_trt.errors import InputError

_KINDS: tuple[tuple[type, Any, str], ...] = (
    (bool, bool, "True or False"),
    (float, Real, "a number"),  # also NumPy's
    (int, Integral, "a whole number"),
    (Path, str | PathLike, "a path; give a str or a pathlib.Path"),
    (str, str, "text"),
)
"""A field's type, what its values may be, and how messages call that."""

FILES, FACES, TIME, SOUND, QUALITY, OUTPUT_FILE, HARDWARE = (
    *("Input and output", "Faces", "Time", "Sound"),
    *("Quality and speed", "Encoding", "Hardware"),
)
"""Groups of options in the help texts."""


def option(default: Any, help_text: str, *, group: str | None = None, advanced: bool = False, **limits: Any) -> Any:
    """A dataclass field that is also a command-line option.

    Args:
        group: heading in the help text. advanced: shown by `--help-all` only.
        limits: `minimum`, `maximum`; `off` is the flag that sets False; `parse` converts text to the value,
            shown as `metavar`, and raises `InputError`, `show` converts it back; `folder` marks the path of a folder to
            write.
    """
    return field(default=default, metadata={"help": help_text, "group": group, "advanced": advanced, **limits})


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words that a field with the type `hint` may have; empty unless that is a `Literal`, or one or None."""
    return next((get_args(each) for each in (hint, *get_args(hint)) if get_origin(each) is Literal), ())


def check_limits(options: Any) -> None:
    """Raises `InputError` if a field of the dataclass instance `options` has a wrong type or is outside its limits."""
    hints = get_type_hints(type(options))
    for spec in fields(options):
        _check_field(flag_name(spec.name), getattr(options, spec.name), hints[spec.name], spec.metadata)


def _check_field(name: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> None:
    kinds = {hint, *get_args(hint)}
    if (value is None and NoneType in kinds) or "parse" in limits:  # those have checks of their own
        return
    if choices := choices_of(hint):
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"{name} {value}: not one of {', '.join(choices)}")
        return
    for kind, accepted, words in _KINDS:
        if kind in kinds:
            if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
                raise InputError(f"{name} {value!r}: not {words}")
            break
    low, high = limits.get("minimum", -inf), limits.get("maximum", inf)
    # Negated, so that NaN is outside.
    if ("minimum" in limits or "maximum" in limits) and not low <= value <= high:
        bounds = f"{low} to {high}".replace("inf", "∞")
        raise InputError(f"{name} {value}: outside {bounds}")


def flag_name(field_name: str) -> str:
    """The command-line name of an option: "low_memory" → "--low-memory"."""
    return "--" + field_name.replace("_", "-")


def command_line(options: Any, *, leave_out: tuple[str, ...] = ()) -> list[str]:
    """The flags that reproduce the dataclass instance `options`, without those at their defaults."""
    words: list[str] = []
    for spec in fields(options):
        value = getattr(options, spec.name)
        if spec.name in leave_out or value == spec.default:
            continue
        if isinstance(value, tuple) and spec.default == ():  # may be given several times
            words += [word for item in value for word in (flag_name(spec.name), str(item))]
        elif isinstance(value, bool):
            words.append(flag_name(spec.name) if value else spec.metadata["off"])
        else:
            words += [flag_name(spec.name), spec.metadata.get("show", str)(value)]
    return words
