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

# Groups of options in the help texts.
FILES = "Input and output"
FACES = "Faces"
TIME = "Time"
SOUND = "Sound"
QUALITY = "Quality and speed"
OUTPUT_FILE = "Encoding"
HARDWARE = "Hardware"

_FLAGS = {field: name for name, field in SHORTER.items()}
"""Names of flags that are shorter than those of their fields."""

ALL_DEVICES = "all"
"""`--device` for every GPU."""

RESOLUTION_STEP_PX = 64
"""Divisor of resolutions: the VAE and the U-Net each halve the image three times."""

_TIME = re.compile(r"(?:(?:(\d+):)?([0-5]?\d):)?(\d+(?:\.\d*)?|\.\d+)")
"""A time as text: hours and minutes, if there are any, and seconds."""

MAX_DEVICE = 63
"""Largest number of a GPU."""

# Of msgspec's messages.
_BYTE = re.compile(r"\(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"
_LINE_END = b"\n"

# At the first use of a type, msgspec 0.22 collects what it knows of it; another thread that uses
# the type then crashes.
_one_thread = threading.RLock()  # again where a dataclass checks its own fields by `from_values`


def option(default: Any, help_text: str, *, group: str | None = None, **how: Any) -> Any:
    """Returns a dataclass field that is also a command-line option.

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
    """Returns the words that a field with the type `hint` may have; empty unless that is a
    `Literal`, or one or None.
    """
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is Literal:
            return get_args(kind)
    return ()


def check_limits(options: Any) -> None:
    """Checks the fields of the dataclass instance `options` and parses those that declare `parse`;
    raises `InputError` if one has a wrong type or is outside its limits.
    """
    for spec in fields(options):
        value = getattr(options, spec.name)
        if value is not spec.default:
            object.__setattr__(options, spec.name, _checked(type(options), spec, value))


def _checked(cls: type[Any], spec: Any, value: Any, *, text: bool = False) -> Any:
    """Returns `value` as the field takes it; with `text`, numbers and booleans may be text. Raises
    `InputError`.
    """
    hint = _hints(cls)[spec.name]
    metadata = spec.metadata
    if isinstance(value, Real) and not isinstance(value, bool | Fraction):  # also NumPy's
        if isinstance(value, Integral):
            value = int(value)
        else:
            value = float(value)
        if choices_of(hint):  # as in "fps": 25
            value = str(value)
    elif Path in get_args(hint) and isinstance(value, os.PathLike):
        return value
    try:
        if "parse" in metadata:
            if value is None and spec.default is None:
                return None
            return metadata["parse"](value)
        limits = (metadata.get("minimum"), metadata.get("maximum"), metadata.get("multiple"))
        return from_values(_limited(hint, *limits), value, spec.name, strict=not text)
    except (ValueError, TypeError, ArithmeticError, AttributeError):
        expected = _expected(hint, metadata)
        raise InputError(f"{flag_name(spec.name)} {show_numbers(value)}: not {expected}") from None


_KINDS_IN_WORDS = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    Path: "a path",
    str: "text",
}


def _expected(hint: Any, metadata: Mapping[str, Any]) -> str:
    """Returns in words what a field takes, such as "a whole number from 1 to 999"."""
    choices = choices_of(hint)
    if choices:
        return f"one of {', '.join(choices)}"
    if "expected" in metadata:
        return str(metadata["expected"])
    kinds = {hint, *get_args(hint)}
    words = next(word for kind, word in _KINDS_IN_WORDS.items() if kind in kinds)
    if "maximum" in metadata:
        words += f" from {metadata['minimum']} to {metadata['maximum']}"
    elif "minimum" in metadata:
        words += f" of {metadata['minimum']} or more"
    if "multiple" in metadata:
        words += f", divisible by {metadata['multiple']}"
    return words


@cache
def _limited(hint: Any, minimum: float | None, maximum: float | None, multiple: int | None) -> Any:
    """Returns the type `hint` with limits, for msgspec; paths are text to it."""
    from msgspec import Meta

    if get_origin(hint) is Literal:
        return hint
    kinds = tuple(kind for kind in (get_args(hint) or (hint,)) if kind is not Path)
    limited: Any = Annotated[kinds[0], Meta(ge=minimum, le=maximum, multiple_of=multiple)]
    if type(None) in kinds:
        return limited | None
    return limited


def flag_name(field_name: str) -> str:
    """Returns the command-line name of an option: "low_memory" → "--low-memory"."""
    return "--" + _FLAGS.get(field_name, field_name).replace("_", "-")


def field_name(name: str) -> str:
    """Returns the field of an option, which may be written as its flag: "--low-memory" →
    "low_memory".
    """
    field = name.strip().lstrip("-").replace("-", "_").casefold()
    return SHORTER.get(field, field)


def texts_by_flag(options: Any, *, leave_out: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Returns the flags that reproduce the dataclass instance `options`, without those at their
    defaults, each with the texts of its values: none of a flag that takes none.
    """
    texts: dict[str, list[str]] = {}
    for spec in fields(options):
        value = getattr(options, spec.name)
        flag = flag_name(spec.name)
        if spec.name in leave_out or value == spec.default:
            continue
        if isinstance(value, tuple) and spec.default == ():  # may be given several times
            texts[flag] = [str(item) for item in value]
        elif isinstance(value, bool):
            texts[flag if value else spec.metadata["off"]] = []
        else:
            texts[flag] = [spec.metadata.get("show", str)(value)]
    return texts


def command_line(options: Any, *, leave_out: tuple[str, ...] = ()) -> list[str]:
    """Returns the words that reproduce `options`, as `texts_by_flag` does."""
    words: list[str] = []
    for flag, texts in texts_by_flag(options, leave_out=leave_out).items():
        if not texts:
            words.append(flag)
        for text in texts:
            words += [flag, text]
    return words


def file_fields(cls: type[Any]) -> dict[str, bool]:
    """Returns the names of the fields that hold the path of a file, each with whether it is
    written.
    """
    return {
        spec.name: spec.metadata.get("written", False)
        for spec in fields(cls)
        if Path in get_args(_hints(cls)[spec.name]) and not spec.metadata.get("folder")
    }


def to_texts(options: Any) -> dict[str, Any]:
    """Returns the fields of the dataclass instance `options` that are not at their defaults, as
    JSON values.
    """
    values = {}
    for spec in fields(options):
        value = getattr(options, spec.name)
        if value != spec.default:
            values[spec.name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    # A Fraction may have no exact float; a Path and a Speaker are texts.
    if isinstance(value, bool | str | int | float) or value is None:
        return value
    return str(value)


def from_texts(cls: type[T], values: Mapping[str, Any], others: Iterable[str] = ()) -> T:
    """Returns an instance of the options dataclass `cls` from texts, as in a table or form, or from
    JSON values.

    Names may be written as flags; None and empty texts mean the default. An option that may be
    given several times takes a list, or one text with ";" between its values. `others`: names that
    the caller takes itself, for hints. Raises `InputError`.
    """
    specs = {spec.name: spec for spec in fields(cls)}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        name = field_name(key)
        if name not in specs:
            raise InputError(f"{key}: no such option{did_you_mean(name, [*specs, *others])}")
        if name in arguments:
            raise InputError(f"{key}: is given twice")
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, list | dict) for item in items):
            raise InputError(f"{flag_name(name)}: is nested; give a value, or a list of values")
        is_empty = value is None or (isinstance(value, str) and not value.strip())
        if not is_empty:
            arguments[name] = _from_text(cls, specs[name], value)
    return cls(**arguments)


def _from_text(cls: type[Any], spec: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    # a name may begin or end with a space
    if not isinstance(value, str) or str in get_args(_hints(cls)[spec.name]):
        return value
    text = value.strip()
    if spec.default == ():
        parts = [part.strip() for part in text.split(";")]
        return tuple(filter(None, parts))
    if isinstance(spec.default, bool):
        text = text.casefold()
        text = {"yes": "true", "no": "false"}.get(text, text)
    return _checked(cls, spec, text, text=True)


def from_json(
    cls: type[T], data: bytes | str, source: object, error: Callable[[str], Exception] = ValueError
) -> T:
    """Returns an instance of the dataclass (or other type) `cls` from JSON text; fields that it
    does not have are ignored. Raises `error` for other text: its message begins with `source`, and
    says where, as in "(line 3, column 7)" or "- at `$.graphs[0].file`".
    """
    import msgspec

    try:
        with _one_thread:
            return msgspec.json.decode(data, type=cls)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise error(f"{source}: {_with_line(str(problem), data)}") from problem


def _with_line(problem: str, data: bytes | str) -> str:
    """Returns a message of msgspec about JSON text with a line and a column in place of the number
    of a byte.
    """
    content = data.encode(errors="replace") if isinstance(data, str) else data
    number = _BYTE.search(problem)
    if number is None:
        if problem == _TRUNCATED:
            return f"{problem}, at line {content.count(_LINE_END) + 1}"
        return problem
    lines = content[: int(number[1])].split(_LINE_END)
    column = len(lines[-1].decode(errors="replace")) + 1
    return problem.replace(number[0], f"(line {len(lines)}, column {column})")


def from_values(
    cls: type[T],
    values: Any,
    source: object,
    error: Callable[[str], Exception] = ValueError,
    *,
    strict: bool = True,
) -> T:
    """Returns what `from_json` does, from parsed JSON, or other dicts, lists and plain values;
    unless `strict`, also "1" as 1.
    """
    import msgspec

    try:
        with _one_thread:
            return msgspec.convert(values, cls, strict=strict)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise error(f"{source}: {problem}") from problem


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks with which voice."""

    face: int
    """The number of a person."""
    voice: str
    """Their recording or, with RTTM turns, the name of their speaker there."""

    def __str__(self) -> str:
        return f"{self.face}={self.voice}"


@dataclass(frozen=True, slots=True)
class FaceChoice:
    """Which face is synced."""

    kind: str
    """ "largest", "left", "right", "speaking", "index" or "at"."""
    number: int = 0
    """Of the person, for "index"."""
    x_px: float = 0.0
    y_px: float = 0.0
    """A point of the face, for "at"."""


def parse_face(text: str) -> FaceChoice:
    """Returns the choice that "left" or "index:2" or "at:640,360" names."""
    kind, _, rest = str(text).partition(":")
    if kind in ("largest", "left", "right", "speaking") and not rest:
        return FaceChoice(kind)
    if kind == "index" and rest.isdecimal():
        return FaceChoice(kind, number=int(rest))
    x_px, y_px = map(float, rest.split(","))
    is_place = 0 <= x_px < math.inf and 0 <= y_px < math.inf
    if kind != "at" or not is_place:
        raise ValueError(text)
    return FaceChoice(kind, x_px=x_px, y_px=y_px)


def checked_face(text: str) -> str:
    parse_face(text)
    return text


def parse_speakers(value: Any) -> tuple[Speaker, ...]:
    """Returns speakers from one or several of `Speaker`, or from texts as "0=a.wav"."""
    if isinstance(value, list | tuple):
        return tuple(speaker for each in value for speaker in parse_speakers(each))
    face, _, voice = str(value).partition("=")
    if not (isinstance(value, str | Speaker) and face.isdecimal() and voice):
        raise ValueError(value)
    return (Speaker(int(face), voice),)


def parse_time(value: Any) -> Fraction:
    """Returns the seconds that "62.5", "1:02.5" or "0:01:02.5" names, or any number from 0 on."""
    if isinstance(value, bool):
        raise TypeError(value)
    if isinstance(value, str):
        return _parse_time_text(value)
    if isinstance(value, Real) and not isinstance(value, Rational):
        # The shortest text of a float is what its author meant: 0.1 is a tenth.
        value = repr(float(value))
    time_s = Fraction(value)
    if time_s < 0:
        raise ValueError(value)
    return time_s


def _parse_time_text(text: str) -> Fraction:
    parts = _TIME.fullmatch(text)
    if parts is None and "/" in text:  # the text of a fraction
        return parse_time(Fraction(text))
    if parts is None:
        raise ValueError(text)
    hours, minutes, seconds = parts.groups()
    if minutes and float(seconds) >= 60:
        raise ValueError(text)
    whole_minutes = 60 * int(hours or 0) + int(minutes or 0)
    return 60 * whole_minutes + Fraction(seconds)


def parse_device(value: Any) -> int | str | tuple[int, ...]:
    """Returns one or several numbers of GPUs, or "all": 1 or "1" → 1, "0,1" → (0, 1)."""
    text = show_numbers(value)
    if text.strip() == ALL_DEVICES:
        return ALL_DEVICES
    numbers = tuple(int(part) for part in text.split(","))
    is_distinct = len(set(numbers)) == len(numbers)
    if isinstance(value, bool) or not is_distinct:
        raise ValueError(value)
    if min(numbers) < 0 or max(numbers) > MAX_DEVICE:
        raise ValueError(value)
    if len(numbers) == 1:
        return numbers[0]
    return numbers


def show_numbers(value: Any) -> str:
    """Returns the text that `parse_device` and `parse_cache_interval` read: one value, or several
    with commas.
    """
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def parse_cache_interval(value: Any) -> int | tuple[int, ...]:
    """Returns an interval or numbers of steps: "3" or 3 → 3, "0,1,5" → (0, 1, 5)."""
    numbers = tuple(int(part) for part in show_numbers(value).split(","))
    if isinstance(value, list | tuple) or len(numbers) > 1:
        if numbers != tuple(sorted(set(numbers))) or numbers[0] < 0:
            raise ValueError(value)
        return numbers
    if numbers[0] < 1:
        raise ValueError(value)
    return numbers[0]


def parse_provider_options(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(option for each in value for option in parse_provider_options(each))
    if not all(value.partition("=")[::2]):
        raise ValueError(value)
    return (value,)
