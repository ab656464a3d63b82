"""Dataclass fields that are also command-line options: what they declare, how values are checked
and read from text.

A parser takes text, or what Python code gives, and raises ValueError; the option says what is
`expected`. JSON becomes dataclasses by `from_json`: types, limits (`Annotated[int,
msgspec.Meta(ge=1)]`) and required fields are checked.
"""

import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache
from numbers import Integral, Rational, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from latentsync_trt.errors import SHORTER, InputError, did_you_mean

T = TypeVar("T")

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

FILES, FACES, TIME, SOUND, QUALITY, OUTPUT_FILE, HARDWARE = (
    *("Input and output", "Faces", "Time", "Sound"),
    *("Quality and speed", "Encoding", "Hardware"),
)
"""Groups of options in the help texts."""

_LIMITS = ("minimum", "maximum", "multiple")
_FLAGS = {field: name for name, field in SHORTER.items()}

ALL_DEVICES = "all"
"""`--device` for every GPU."""

RESOLUTION_STEP_PX = 64
"""Divisor of resolutions: the VAE and the U-Net each halve the image three times."""

_TIME = re.compile(r"(?:(?:(\d+):)?([0-5]?\d):)?(\d+(?:\.\d*)?|\.\d+)")
MOST_DEVICE = 63

# Of msgspec's messages.
_BYTE = re.compile(r"\(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"
_LINE_END = b"\n"

# At the first use of a type, msgspec 0.22 collects what it knows of it; another thread that uses
# the type then crashes.
_one_thread = threading.RLock()  # again where a dataclass checks its own fields by `from_values`


def option(default: Any, help_text: str, *, group: str | None = None, **how: Any) -> Any:
    """A dataclass field that is also a command-line option.

    Args:
        group: heading in the help text.
        how: `advanced` is shown by `--help-all` only, `rare` by no help text; `minimum`, `maximum`,
            `multiple`; `off` is the flag that sets False; `parse` makes the value from text, shown
            as `metavar`, or from what Python code gives, and raises ValueError unless that is
            `expected`; `show` makes text of it again; `given_alone` is the value of the flag
            without one; `folder` marks the path of a folder to write, `written` that of a file.
    """
    return field(
        default=default,
        metadata={"help": help_text, "group": group, "advanced": False, "rare": False, **how},
    )


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words that a field with the type `hint` may have; empty unless that is a `Literal`, or
    one or None.
    """
    return next(
        (get_args(each) for each in (hint, *get_args(hint)) if get_origin(each) is Literal), ()
    )


def check_limits(options: Any) -> None:
    """Checks the fields of the dataclass instance `options` and parses those that declare `parse`;
    raises `InputError` if one has a wrong type or is outside its limits.
    """
    for spec in fields(options):
        value = getattr(options, spec.name)
        if value is not spec.default:
            object.__setattr__(options, spec.name, _checked(type(options), spec, value))


def _checked(cls: type[Any], spec: Any, value: Any, *, text: bool = False) -> Any:
    """`value` as the field takes it; numbers and booleans may be `text`."""
    hint = _hints(cls)[spec.name]
    limits = spec.metadata
    if isinstance(value, Real) and not isinstance(value, bool | Fraction):  # also NumPy's
        value = int(value) if isinstance(value, Integral) else float(value)
        value = str(value) if choices_of(hint) else value  # as in "fps": 25
    elif Path in get_args(hint) and isinstance(value, os.PathLike):
        return value
    try:
        if "parse" in limits:
            if value is None and spec.default is None:
                return None
            return limits["parse"](value)
        return from_values(
            _limited(hint, *map(limits.get, _LIMITS)), value, spec.name, strict=not text
        )
    except (ValueError, TypeError, ArithmeticError, AttributeError):
        if isinstance(value, list | tuple):
            shown = ",".join(map(str, value))
        else:
            shown = value
        raise InputError(f"{flag_name(spec.name)} {shown}: not {_expected(hint, limits)}") from None


def _expected(hint: Any, limits: Mapping[str, Any]) -> str:
    """What a field takes, in words, such as "a whole number from 1 to 999"."""
    if choices := choices_of(hint):
        return f"one of {', '.join(choices)}"
    kinds = {hint, *get_args(hint)}
    words = {
        bool: "true or false",
        float: "a number",
        int: "a whole number",
        Path: "a path",
        str: "text",
    }
    if "minimum" in limits:
        span = f" from {limits['minimum']} to {limits['maximum']}"
    else:
        span = ""
    span += f", divisible by {limits['multiple']}" if "multiple" in limits else ""
    return (
        limits.get("expected") or next(word for kind, word in words.items() if kind in kinds) + span
    )


@cache
def _limited(hint: Any, minimum: float | None, maximum: float | None, multiple: int | None) -> Any:
    """The type `hint` with limits, for msgspec; paths are text to it."""
    from msgspec import Meta

    if get_origin(hint) is Literal:
        return hint
    kinds = tuple(kind for kind in (get_args(hint) or (hint,)) if kind is not Path)
    limited: Any = Annotated[kinds[0], Meta(ge=minimum, le=maximum, multiple_of=multiple)]
    if type(None) in kinds:
        return limited | None
    return limited


def flag_name(field_name: str) -> str:
    """The command-line name of an option: "low_memory" → "--low-memory"."""
    return "--" + _FLAGS.get(field_name, field_name).replace("_", "-")


def field_name(given: str) -> str:
    """The field of an option, which may be written as its flag: "--low-memory" → "low_memory"."""
    name = given.strip().lstrip("-").replace("-", "_").casefold()
    return SHORTER.get(name, name)


def command_line(options: Any, *, leave_out: tuple[str, ...] = ()) -> list[str]:
    """The flags that reproduce the dataclass instance `options`, without those at their
    defaults.
    """
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
    """The fields of the dataclass instance `options` that are not at their defaults, as JSON
    values.
    """
    values = {spec: getattr(options, spec.name) for spec in fields(options)}
    return {spec.name: _plain(value) for spec, value in values.items() if value != spec.default}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    # A Fraction may have no exact float; a Path and a Speaker are texts.
    if isinstance(value, bool | str | int | float) or value is None:
        return value
    return str(value)


def from_texts(cls: type[T], values: Mapping[str, Any], others: Iterable[str] = ()) -> T:
    """An instance of the options dataclass `cls` from texts, as in a table or form, or from JSON
    values.

    Names may be written as flags; None and empty texts mean the default. An option that may be
    given several times takes a list, or one text with ";" between its values. `others`: names that
    the caller knows. Raises `InputError`.
    """
    specs = {spec.name: spec for spec in fields(cls)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = field_name(given)
        if name not in specs:
            raise InputError(f"{given}: no such option{did_you_mean(name, [*specs, *others])}")
        if name in found:
            raise InputError(f"{given}: is given twice")
        if any(
            isinstance(each, list | dict)
            for each in (value if isinstance(value, list) else [value])
        ):
            raise InputError(f"{flag_name(name)}: is nested; give a value, or a list of values")
        if value is not None and not (isinstance(value, str) and not value.strip()):
            found[name] = _from_text(cls, specs[name], value)
    return cls(**found)


def _from_text(cls: type[Any], spec: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    # a name may begin or end with a space
    if not isinstance(value, str) or str in get_args(_hints(cls)[spec.name]):
        return value
    text = value.strip()
    if spec.default == ():
        return tuple(part.strip() for part in text.split(";") if part.strip())
    if isinstance(spec.default, bool):
        text = {"yes": "true", "no": "false"}.get(text.casefold(), text.casefold())
    return _checked(cls, spec, text, text=True)


def from_json(
    cls: type[T], data: bytes | str, source: object, error: Callable[[str], Exception] = ValueError
) -> T:
    """An instance of the dataclass (or other type) `cls` from JSON text; fields that it does not
    have are ignored. Raises `error` for other text: its message begins with `source`, and says
    where, as in "(line 3, column 7)" or "- at `$.graphs[0].file`".
    """
    import msgspec

    try:
        with _one_thread:
            return msgspec.json.decode(data, type=cls)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise error(f"{source}: {_with_line(str(problem), data)}") from problem


def _with_line(problem: str, data: bytes | str) -> str:
    """A message of msgspec about JSON text with a line and a column in place of the number of a
    byte.
    """
    content = data.encode(errors="replace") if isinstance(data, str) else data
    number = _BYTE.search(problem)
    if number is None:
        if problem == _TRUNCATED:
            return f"{problem}, at line {content.count(_LINE_END) + 1}"
        return problem
    before = content[: int(number[1])]
    column = len(before.rpartition(_LINE_END)[2].decode(errors="replace")) + 1
    return problem.replace(number[0], f"(line {before.count(_LINE_END) + 1}, column {column})")


def from_values(
    cls: type[T],
    values: Any,
    source: object,
    error: Callable[[str], Exception] = ValueError,
    *,
    strict: bool = True,
) -> T:
    """As `from_json`, from parsed JSON, or other dicts, lists and plain values; unless `strict`,
    also "1" as 1.
    """
    import msgspec

    try:
        with _one_thread:
            return msgspec.convert(values, cls, strict=strict)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise error(f"{source}: {problem}") from problem


@dataclass(frozen=True, slots=True)
class Speaker:
    """The number of a person, and the recording or, with RTTM turns, the name of their speaker
    there.
    """

    face: int
    voice: str

    def __str__(self) -> str:
        return f"{self.face}={self.voice}"


@dataclass(frozen=True, slots=True)
class FaceChoice:
    """Which face is synced. `kind`: "largest", "left", "right", "speaking", "index" (uses
    `number`), "at" (uses `x_px`, `y_px`).
    """

    kind: str
    number: int = 0
    x_px: float = 0.0
    y_px: float = 0.0


def parse_face(text: str) -> FaceChoice:
    """ "left" or "index:2" or "at:640,360" as a choice."""
    kind, _, rest = str(text).partition(":")
    if kind in ("largest", "left", "right", "speaking") and not rest:
        return FaceChoice(kind)
    if kind == "index" and rest.isdecimal():
        return FaceChoice(kind, number=int(rest))
    x_px, y_px = map(float, rest.split(","))
    if kind != "at" or not (0 <= x_px < math.inf and 0 <= y_px < math.inf):
        raise ValueError(text)
    return FaceChoice(kind, x_px=x_px, y_px=y_px)


def checked_face(text: str) -> str:
    parse_face(text)
    return text


def parse_speakers(value: Any) -> tuple[Speaker, ...]:
    """One or several of `Speaker`, or "0=a.wav" as face 0 and "a.wav"."""
    if isinstance(value, list | tuple):
        return tuple(speaker for each in value for speaker in parse_speakers(each))
    face, _, voice = str(value).partition("=")
    if not (isinstance(value, str | Speaker) and face.isdecimal() and voice):
        raise ValueError(value)
    return (Speaker(int(face), voice),)


def parse_time(value: Any) -> Fraction:
    """ "62.5", "1:02.5" or "0:01:02.5", or any number of seconds from 0 on."""
    parts = _TIME.fullmatch(value) if isinstance(value, str) else None
    if parts is not None and not (parts[2] and float(parts[3]) >= 60):
        hours, minutes, seconds = parts.groups()
        return 3600 * int(hours or 0) + 60 * int(minutes or 0) + Fraction(seconds)
    # The shortest text of a float is what its author meant: 0.1 is a tenth. Text has the form of a
    # fraction: "1/3".
    exact = Fraction(
        repr(float(value)) if isinstance(value, Real) and not isinstance(value, Rational) else value
    )
    if isinstance(value, bool) or exact < 0 or (isinstance(value, str) and "/" not in value):
        raise ValueError(value)
    return exact


def parse_device(value: Any) -> int | str | tuple[int, ...]:
    """1 or "1" → 1, "0,1" → (0, 1), "all" → "all"."""
    text = show_numbers(value)
    if text.strip() == ALL_DEVICES:
        return ALL_DEVICES
    numbers = tuple(int(part) for part in text.split(","))
    if isinstance(value, bool) or len(set(numbers) & set(range(MOST_DEVICE + 1))) < len(numbers):
        raise ValueError(value)
    if len(numbers) == 1:
        return numbers[0]
    return numbers


def show_numbers(value: Any) -> str:
    """The text that `parse_device` and `parse_cache_interval` read: one value, or several with
    commas.
    """
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def parse_cache_interval(value: Any) -> int | tuple[int, ...]:
    """ "3" or 3 → 3, "0,1,5" → (0, 1, 5)."""
    numbers = tuple(int(part) for part in show_numbers(value).split(","))
    several = isinstance(value, list | tuple) or len(numbers) > 1
    if numbers != tuple(sorted(set(numbers))) or numbers[0] < (0 if several else 1):
        raise ValueError(value)
    if several:
        return numbers
    return numbers[0]


def parse_provider_options(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(option for each in value for option in parse_provider_options(each))
    if not all(value.partition("=")[::2]):
        raise ValueError(value)
    return (value,)
