"""Dataclass fields that are also command-line options: what they declare, and how values are checked."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from latentsync_trt.errors import InputError

T = TypeVar("T")

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

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
            write, `written` that of a file.
    """
    return field(default=default, metadata={"help": help_text, "group": group, "advanced": advanced, **limits})


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words that a field with the type `hint` may have; empty unless that is a `Literal`, or one or None."""
    return next((get_args(each) for each in (hint, *get_args(hint)) if get_origin(each) is Literal), ())


def check_limits(options: Any) -> None:
    """Raises `InputError` if a field of the dataclass instance `options` has a wrong type or is outside its limits."""
    hints = _hints(type(options))
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


def field_name(given: str) -> str:
    """The field of an option, which may be written as its flag: "--low-memory" → "low_memory"."""
    return given.strip().lstrip("-").replace("-", "_").casefold()


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


def file_fields(cls: type[Any]) -> dict[str, bool]:
    """Names of the fields that hold the path of a file, each with whether it is written."""
    return {
        spec.name: spec.metadata.get("written", False)
        for spec in fields(cls)
        if Path in get_args(_hints(cls)[spec.name]) and not spec.metadata.get("folder")
    }


def to_texts(options: Any) -> dict[str, Any]:
    """The fields of the dataclass instance `options` that are not at their defaults, as JSON values."""
    values = {spec: getattr(options, spec.name) for spec in fields(options)}
    return {spec.name: _plain(value) for spec, value in values.items() if value != spec.default}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    # A Fraction may have no exact float; a Path and a Speaker are texts.
    return float(value) if isinstance(value, Real) and not isinstance(value, Fraction) else str(value)


def from_texts(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of the options dataclass `cls` from texts, as in a table or form, or from JSON values.

    Names may be written as flags; None and empty texts mean the default. An option that may be given several times
    takes a list, or one text with ";" between its values.

    Raises:
        InputError: there is no such option, or its value cannot be used.
    """
    specs, hints = {spec.name: spec for spec in fields(cls)}, _hints(cls)  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = field_name(given)
        if name not in specs:
            similar = get_close_matches(name, specs, n=1)
            raise InputError(f"{given}: no such option" + (f"; did you mean {similar[0]}?" if similar else ""))
        if name in found:
            raise InputError(f"{given}: is given twice")
        if value is not None and not (isinstance(value, str) and not value.strip()):
            found[name] = _from_text(specs[name], hints[name], value)
    return cls(**found)


def _from_text(spec: Any, hint: Any, value: Any) -> Any:
    """The value of one field; what is not text is left to the checks of the dataclass."""
    kinds, text = {hint, *get_args(hint)}, value
    if isinstance(value, str):
        text = value.strip()
    elif isinstance(value, list):
        return tuple(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not kinds & {bool, int, float, Fraction}:
        return str(value)  # as in "fps": 25
    if not isinstance(text, str):
        return text
    try:
        if spec.default == ():
            return tuple(part.strip() for part in text.split(";") if part.strip())
        if Fraction in kinds and "/" in text:
            return Fraction(text)
        if "parse" in spec.metadata:
            return spec.metadata["parse"](text)
        if bool in kinds:
            return _BOOLS[text.casefold()]
        if kinds & {int, float}:
            return int(text) if int in kinds else float(text)
        return text if choices_of(hint) else value  # a name may begin or end with a space
    except (KeyError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        words = next(words for kind, _, words in (*_KINDS, (Fraction, None, "a time")) if kind in kinds)
        raise InputError(f"{flag_name(spec.name)} {text}: not {words}") from None
