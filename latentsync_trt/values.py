"""Values of options that are more than a number or a word. Each parser also takes what Python code gives."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any

from latentsync_trt.errors import InputError

ALL_DEVICES = "all"
"""`--device` for every GPU."""

RESOLUTION_STEP_PX = 64
"""Divisor of resolutions: the VAE and the U-Net each halve the image three times."""

_TIME = re.compile(r"(?:(?:(\d+):)?([0-5]?\d):)?(\d+(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"\d+/[1-9]\d*")
_MOST_DEVICE = 63


@dataclass(frozen=True, slots=True)
class Speaker:
    """The number of a face, and its recording or, with RTTM turns, the name of its speaker there."""

    face: int
    voice: str

    def __str__(self) -> str:
        return f"{self.face}={self.voice}"


@dataclass(frozen=True, slots=True)
class FaceChoice:
    """Which face is synced. `kind`: "largest", "left", "right", "index" (uses `number`), "at" (uses `x_px`, `y_px`)."""

    kind: str
    number: int = 0
    x_px: float = 0.0
    y_px: float = 0.0


def check_resolution(name: str, resolution_px: int | None) -> None:
    """Raises `InputError`, naming the option and the nearest resolutions, if one is given that no network has."""
    if resolution_px is not None and resolution_px % RESOLUTION_STEP_PX:
        below = resolution_px // RESOLUTION_STEP_PX * RESOLUTION_STEP_PX
        raise InputError(
            f"{name} {resolution_px}: not divisible by {RESOLUTION_STEP_PX}; "
            f"the nearest are {below or RESOLUTION_STEP_PX} and {below + RESOLUTION_STEP_PX}"
        )


def parse_face(text: str) -> FaceChoice:
    """ "left" or "index:2" or "at:640,360" as a choice; raises `InputError` for anything else."""
    kind, _, rest = str(text).partition(":")
    if kind in ("largest", "left", "right") and not rest:
        return FaceChoice(kind)
    if kind == "index" and rest.isdecimal():
        return FaceChoice(kind, number=int(rest))
    if kind == "at":
        point = _numbers(rest, ",")
        if len(point) == 2 and all(0 <= number < math.inf for number in point):
            return FaceChoice(kind, x_px=point[0], y_px=point[1])
    raise InputError(f"--face {text}: is none of largest, left, right, index:N, at:X,Y")


def checked_face(text: str) -> str:
    """`text`, if `parse_face` takes it."""
    parse_face(text)
    return text


def parse_speakers(value: Any) -> tuple[Speaker, ...]:
    """One or several of `Speaker`, or "0=a.wav" as face 0 and "a.wav"; raises `InputError` for anything else."""
    if isinstance(value, list | tuple):
        return tuple(speaker for each in value for speaker in parse_speakers(each))
    face, equals, voice = str(value).partition("=")
    if not (isinstance(value, str | Speaker) and face.isdecimal() and equals and voice):
        raise InputError(f"--speaker {value}: is not the number of a face and a file, as in 0=a.wav")
    return (Speaker(int(face), voice),)


def parse_time(value: Any) -> Fraction:
    """ "62.5", "1:02.5" or "0:01:02.5", or any number of seconds from 0 on; raises `InputError` for anything else."""
    if isinstance(value, str):
        if _FRACTION.fullmatch(value):
            return Fraction(value)
        parts = _TIME.fullmatch(value)
        if parts is not None and not (parts[2] and float(parts[3]) >= 60):
            hours, minutes, seconds = parts.groups()
            return 3600 * int(hours or 0) + 60 * int(minutes or 0) + Fraction(seconds)
    elif not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) < math.inf:
        return Fraction(value) if isinstance(value, Rational) else Fraction(repr(float(value)))  # 0.1 is a tenth
    raise InputError(f"{value}: not a time, as 62.5 or 1:02.5 or 1:00:02.5")


def parse_device(value: Any) -> int | str | tuple[int, ...]:
    """1 or "1" → 1, "0,1" → (0, 1), "all" → "all"; raises `InputError` for anything else."""
    text = show_numbers(value)
    if text.strip() == ALL_DEVICES:
        return ALL_DEVICES
    numbers = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if isinstance(value, bool | float) or not all(0 <= number <= _MOST_DEVICE for number in numbers):
        raise InputError(f"--device {text}: not numbers of GPUs from 0 to {_MOST_DEVICE}, as in 1 or 0,1, nor all")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--device {text}: names a GPU twice")
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def show_numbers(value: Any) -> str:
    """The text that `parse_device` and `parse_cache_interval` read: one value, or several with commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_cache_interval(value: Any) -> int | tuple[int, ...]:
    """ "3" or 3 → 3, "0,1,5" → (0, 1, 5); raises `InputError` for anything else."""
    if isinstance(value, str):
        value = [int(part) if part.strip().isdecimal() else part for part in value.split(",")]
        value = value[0] if len(value) == 1 else value
    steps = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(step, Integral) and not isinstance(step, bool) for step in steps):
        raise InputError(f"--cache-interval {show_numbers(value)}: not a whole number, or several as in 0,1,5")
    if not isinstance(value, list | tuple):
        return int(value)
    return tuple(map(int, steps))


def check_cache_interval(interval: int | tuple[int, ...], steps: int = 1) -> None:
    """Raises `InputError` for an interval below 1, or numbers of steps that do not ascend from 0 to below `steps`."""
    if isinstance(interval, int):
        if interval < 1:
            raise InputError(f"--cache-interval {interval}: less than 1")
    elif 0 not in interval or list(interval) != sorted(set(interval) & set(range(steps))):
        raise InputError(
            f"--cache-interval {show_numbers(interval)}: must begin with 0, as nothing can be reused yet, and "
            f"ascend to at most {steps - 1}"
        )


def parse_guidance_interval(value: Any) -> tuple[float, float]:
    """ "0.2-0.8" → (0.2, 0.8); raises `InputError` for anything but two ascending numbers within 0 to 1."""
    parts = _numbers(value, "-") if isinstance(value, str) else value
    if not (isinstance(parts, list | tuple) and len(parts) == 2 and all(isinstance(part, Real) for part in parts)):
        raise InputError(f"--guidance-interval {value}: not two fractions of the schedule, as in 0.2-0.8")
    start, end = map(float, parts)
    if not 0.0 <= start < end <= 1.0:
        raise InputError(f"--guidance-interval {start:g}-{end:g}: must ascend, within 0 to 1")
    return start, end


def parse_provider_options(value: Any) -> tuple[str, ...]:
    """One or several "key=value"; raises `InputError` for anything else."""
    if isinstance(value, list | tuple):
        return tuple(option for each in value for option in parse_provider_options(each))
    if not (isinstance(value, str) and all(value.partition("=")[::2])):
        raise InputError(f"--provider-option {value}: is not KEY=VALUE")
    return (value,)


def as_mapping(provider_options: tuple[str, ...]) -> Mapping[str, str]:
    """The keys and values of "key=value" texts; of the same key, the last counts."""
    pairs = (each.partition("=") for each in provider_options)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _numbers(text: str, separator: str) -> list[float]:
    """The numbers of a text; empty if one is none."""
    try:
        return [float(part) for part in text.split(separator)]
    except ValueError:
        return []
