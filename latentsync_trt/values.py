"""Values of options that are more than a number or a word, from their text."""

import math
import re
from collections.abc import Sequence
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
        try:
            x_px, y_px = map(float, rest.split(","))
        except ValueError:
            pass
        else:
            if 0 <= x_px < math.inf and 0 <= y_px < math.inf:
                return FaceChoice(kind, x_px=x_px, y_px=y_px)
    raise InputError(f"--face {text}: is none of largest, left, right, index:N, at:X,Y")


def checked_face(text: str) -> str:
    """`text`, if `parse_face` takes it."""
    parse_face(text)
    return text


def parse_speaker(text: str) -> Speaker:
    """ "0=a.wav" → face 0 and "a.wav"; raises `InputError` for anything else."""
    face, equals, voice = text.partition("=")
    if not (face.isdecimal() and equals and voice):
        raise InputError(f"--speaker {text}: is not the number of a face and a file, as in 0=a.wav")
    return Speaker(int(face), voice)


def parse_time(text: str) -> Fraction:
    """ "62.5", "1:02.5" or "0:01:02.5" in seconds; raises `InputError` for anything else."""
    parts = _TIME.fullmatch(text)
    if parts is None or (parts[2] and float(parts[3]) >= 60):
        raise InputError(f"{text}: not a time, as 62.5 or 1:02.5 or 1:00:02.5")
    hours, minutes, seconds = parts.groups()
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + Fraction(seconds)


def as_time(value: Any, name: str) -> Fraction:
    """Seconds from 0 on, given as any number or as text for `parse_time`; raises `InputError`, naming the option."""
    if isinstance(value, str):
        try:
            return parse_time(value)
        except InputError as error:
            raise InputError(f"{name} {error}") from None
    number = None
    if isinstance(value, bool):
        pass
    elif isinstance(value, Rational):
        number = Fraction(value)
    elif isinstance(value, Real) and math.isfinite(value):
        number = Fraction(repr(float(value)))  # 0.1 is a tenth
    if number is None or number < 0:
        raise InputError(f"{name} {value!r}: not a time, as 62.5 or 1:02.5 or 1:00:02.5")
    return number


def as_speakers(value: Any) -> tuple[Speaker, ...]:
    """One or several of `Speaker`, or text for `parse_speaker`; raises `InputError` for anything else."""
    if isinstance(value, str):
        return (parse_speaker(value),)
    if isinstance(value, Speaker):
        return (parse_speaker(str(value)),)
    if isinstance(value, list | tuple):
        return tuple(speaker for each in value for speaker in as_speakers(each))
    raise InputError(f"--speaker {value!r}: is not the number of a face and a file, as in 0=a.wav")


_MOST_DEVICE = 63


def parse_device(text: str) -> int | str | tuple[int, ...]:
    """ "1" → 1, "0,1" → (0, 1), "all" → "all"; raises `InputError` for anything else."""
    if text.strip() == ALL_DEVICES:
        return ALL_DEVICES
    numbers = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if not all(0 <= number <= _MOST_DEVICE for number in numbers):
        raise InputError(f"--device {text}: not numbers of GPUs from 0 to {_MOST_DEVICE}, as in 1 or 0,1, nor all")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--device {text}: names a GPU twice")
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def show_device(device: int | str | tuple[int, ...]) -> str:
    """The text that `parse_device` reads."""
    return ",".join(map(str, device)) if isinstance(device, tuple) else str(device)


def as_device(value: Any) -> int | str | tuple[int, ...]:
    """One or several numbers of GPUs, or text for `parse_device`; raises `InputError` for anything else."""
    if isinstance(value, list | tuple):
        value = ",".join("" if isinstance(number, bool) else str(number) for number in value)
    elif isinstance(value, bool) or not isinstance(value, str | Integral):
        raise InputError(f"--device {value!r}: not a whole number, as in 1, several, as in 0,1, or all")
    return parse_device(str(value))


def parse_full_steps(text: str) -> tuple[int, ...]:
    """ "0,1,5" → (0, 1, 5); raises `InputError` for anything but whole numbers and commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--full-steps {text}: not whole numbers with commas, as in 0,1,5") from None


def parse_guidance_interval(text: str) -> tuple[float, float]:
    """ "0.2-0.8" → (0.2, 0.8); raises `InputError` for anything but two numbers."""
    try:
        start, end = map(float, text.split("-"))
    except ValueError:
        raise InputError(f"--guidance-interval {text}: not two fractions of the schedule, as in 0.2-0.8") from None
    return start, end


def check_full_steps(full_steps: Sequence[int], steps: int) -> None:
    """Raises `InputError` unless `full_steps` start with 0, ascend, and are among the first `steps` steps."""
    if not isinstance(full_steps, list | tuple) or not all(isinstance(step, Integral) for step in full_steps):
        raise InputError(f"--full-steps {full_steps}: not whole numbers")
    shown = f"--full-steps {','.join(map(str, full_steps))}"
    if 0 not in list(full_steps) or list(full_steps) != sorted(set(full_steps) & set(range(steps))):
        raise InputError(f"{shown}: must begin with 0, as nothing can be reused yet, and ascend to at most {steps - 1}")


def check_guidance_interval(interval: tuple[float, float]) -> None:
    """Raises `InputError` unless `interval` ascends, within 0 to 1."""
    is_pair = isinstance(interval, list | tuple) and len(interval) == 2
    if not is_pair or not all(isinstance(end, Real) for end in interval):
        raise InputError(f"--guidance-interval {interval}: not two numbers")
    start, end = interval
    if not 0.0 <= start < end <= 1.0:
        raise InputError(f"--guidance-interval {start:g}-{end:g}: must ascend, within 0 to 1")
