"""Values of options that are more than a number or a word.

A parser takes text, or what Python code gives, and raises ValueError; the option says what is `expected`.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

ALL_DEVICES = "all"
"""`--device` for every GPU."""

RESOLUTION_STEP_PX = 64
"""Divisor of resolutions: the VAE and the U-Net each halve the image three times."""

_TIME = re.compile(r"(?:(?:(\d+):)?([0-5]?\d):)?(\d+(?:\.\d*)?|\.\d+)")
MOST_DEVICE = 63


@dataclass(frozen=True, slots=True)
class Speaker:
    """The number of a face, and its recording or, with RTTM turns, the name of its speaker there."""

    face: int
    voice: str

    def __str__(self) -> str:
        return f"{self.face}={self.voice}"


@dataclass(frozen=True, slots=True)
class FaceChoice:
    """Which face is synced. `kind`: "largest", "left", "right", "speaking", "index" (uses `number`), "at" (uses `x_px`,
    `y_px`)."""

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
    # The shortest text of a float is what its author meant: 0.1 is a tenth. Text has the form of a fraction: "1/3".
    exact = Fraction(repr(float(value)) if isinstance(value, Real) and not isinstance(value, Rational) else value)
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
    return numbers[0] if len(numbers) == 1 else numbers


def show_numbers(value: Any) -> str:
    """The text that `parse_device` and `parse_cache_interval` read: one value, or several with commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_cache_interval(value: Any) -> int | tuple[int, ...]:
    """ "3" or 3 → 3, "0,1,5" → (0, 1, 5)."""
    numbers = tuple(int(part) for part in show_numbers(value).split(","))
    several = isinstance(value, list | tuple) or len(numbers) > 1
    if numbers != tuple(sorted(set(numbers))) or numbers[0] < (0 if several else 1):
        raise ValueError(value)
    return numbers if several else numbers[0]


def parse_provider_options(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(option for each in value for option in parse_provider_options(each))
    if not all(value.partition("=")[::2]):
        raise ValueError(value)
    return (value,)
