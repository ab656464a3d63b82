"""Dataclass fields that are also command-line options: what they declare, how values are checked and read from text."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from fractions import Fraction
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from latentsync_trt.errors import SHORTER, InputError, did_you_mean
from latentsync_trt.validation import from_values

T = TypeVar("T")

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

FILES, FACES, TIME, SOUND, QUALITY, OUTPUT_FILE, HARDWARE = (
    *("Input and output", "Faces", "Time", "Sound"),
    *("Quality and speed", "Encoding", "Hardware"),
)
"""Groups of options in the help texts."""

_LIMITS = ("minimum", "maximum", "multiple")
_FLAGS = {field: name for name, field in SHORTER.items()}


def option(default: Any, help_text: str, *, group: str | None = None, **how: Any) -> Any:
    """A dataclass field that is also a command-line option.

    Args:
        group: heading in the help text.
        how: `advanced` is shown by `--help-all` only, `rare` by no help text; `minimum`, `maximum`, `multiple`; `off`
            is the flag that sets False; `parse` makes the value from text, shown as `metavar`, or from what Python code
            gives, and raises ValueError unless that is `expected`; `show` makes text of it again; `given_alone` is the
            value of the flag without one; `folder` marks the path of a folder to write, `written` that of a file.
    """
    return field(default=default, metadata={"help": help_text, "group": group, "advanced": False, "rare": False, **how})


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words that a field with the type `hint` may have; empty unless that is a `Literal`, or one or None."""
    return next((get_args(each) for each in (hint, *get_args(hint)) if get_origin(each) is Literal), ())


def check_limits(options: Any) -> None:
    """Checks the fields of the dataclass instance `options` and parses those that declare `parse`.

    Raises:
        InputError: a field has a wrong type or is outside its limits.
    """
    for spec in fields(options):
        value = getattr(options, spec.name)
        if value is not spec.default:
            object.__setattr__(options, spec.name, _checked(type(options), spec, value))


def _checked(cls: type[Any], spec: Any, value: Any, *, text: bool = False) -> Any:
    """`value` as the field takes it; numbers and booleans may be `text`."""
    hint, limits = _hints(cls)[spec.name], spec.metadata
    if isinstance(value, Real) and not isinstance(value, bool | Fraction):  # also NumPy's
        value = int(value) if isinstance(value, Integral) else float(value)
        value = str(value) if choices_of(hint) else value  # as in "fps": 25
    elif Path in get_args(hint) and isinstance(value, os.PathLike):
        return value
    try:
        if "parse" in limits:
            return None if value is None and spec.default is None else limits["parse"](value)
        return from_values(_limited(hint, *map(limits.get, _LIMITS)), value, spec.name, strict=not text)
    except (ValueError, TypeError, ArithmeticError, AttributeError):
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        raise InputError(f"{flag_name(spec.name)} {shown}: not {_expected(hint, limits)}") from None


def _expected(hint: Any, limits: Mapping[str, Any]) -> str:
    """What a field takes, in words, such as "a whole number from 1 to 999"."""
    if choices := choices_of(hint):
        return f"one of {', '.join(choices)}"
    kinds = {hint, *get_args(hint)}
    words = {bool: "true or false", float: "a number", int: "a whole number", Path: "a path", str: "text"}
    span = f" from {limits['minimum']} to {limits['maximum']}" if "minimum" in limits else ""
    span += f", divisible by {limits['multiple']}" if "multiple" in limits else ""
    return limits.get("expected") or next(word for kind, word in words.items() if kind in kinds) + span


@cache
def _limited(hint: Any, minimum: float | None, maximum: float | None, multiple: int | None) -> Any:
    """The type `hint` with limits, for msgspec; paths are text to it."""
    from msgspec import Meta

    if get_origin(hint) is Literal:
        return hint
    kinds = tuple(kind for kind in (get_args(hint) or (hint,)) if kind is not Path)
    limited: Any = Annotated[kinds[0], Meta(ge=minimum, le=maximum, multiple_of=multiple)]
    return limited | None if type(None) in kinds else limited


def flag_name(field_name: str) -> str:
    """The command-line name of an option: "low_memory" → "--low-memory"."""
    return "--" + _FLAGS.get(field_name, field_name).replace("_", "-")


def field_name(given: str) -> str:
    """The field of an option, which may be written as its flag: "--low-memory" → "low_memory"."""
    name = given.strip().lstrip("-").replace("-", "_").casefold()
    return SHORTER.get(name, name)


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
    # A Fraction may have no exact float; a Path and a Speaker are texts.
    return value if isinstance(value, bool | str | int | float) or value is None else str(value)


def from_texts(cls: type[T], values: Mapping[str, Any], others: Iterable[str] = ()) -> T:
    """An instance of the options dataclass `cls` from texts, as in a table or form, or from JSON values.

    Names may be written as flags; None and empty texts mean the default. An option that may be
    given several times takes a list, or one text with ";" between its values. `others`: names known to the caller only.

    Raises:
        InputError: there is no such option, or its value cannot be used.
    """
    specs = {spec.name: spec for spec in fields(cls)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = field_name(given)
        if name not in specs:
            raise InputError(f"{given}: no such option{did_you_mean(name, [*specs, *others])}")
        if name in found:
            raise InputError(f"{given}: is given twice")
        if any(isinstance(each, list | dict) for each in (value if isinstance(value, list) else [value])):
            raise InputError(f"{flag_name(name)}: is nested; give a value, or a list of values")
        if value is not None and not (isinstance(value, str) and not value.strip()):
            found[name] = _from_text(cls, specs[name], value)
    return cls(**found)


def _from_text(cls: type[Any], spec: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str) or str in get_args(_hints(cls)[spec.name]):  # a name may begin or end with a space
        return value
    text = value.strip()
    if spec.default == ():
        return tuple(part.strip() for part in text.split(";") if part.strip())
    if isinstance(spec.default, bool):
        text = {"yes": "true", "no": "false"}.get(text.casefold(), text.casefold())
    return _checked(cls, spec, text, text=True)
