"""`SyncOptions`: presets, overrides, limits, and the command-line options made from it."""

from dataclasses import fields
from fractions import Fraction
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import SyncOptions
from latentsync_trt.cli.options import build, options_from
from latentsync_trt.config import Sampling
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import command_line
from latentsync_trt.values import Speaker

DEFAULT = Sampling(steps=20, solver="ddim", cache_interval=3)


def test_presets() -> None:
    assert SyncOptions(preset="quality").sampling == Sampling(20, "ddim", 1)
    assert SyncOptions(preset="fast").sampling == Sampling(4, "dpmpp", 1)
    assert SyncOptions(preset="draft").sampling == Sampling(2, "dpmpp", 1)


def test_options_override_the_preset() -> None:
    given = SyncOptions(preset="fast", steps=30, solver="ddim", cache_interval=4)
    assert given.sampling == Sampling(30, "ddim", 4)
    assert SyncOptions(preset="fast", steps=10).sampling == Sampling(10, "dpmpp", 1)
    assert SyncOptions(preset="fast", cache_interval=3).sampling == Sampling(4, "dpmpp", 3)
    assert SyncOptions(preset="quality", cache_interval=(0, 7)).sampling.cache_interval == (0, 7)
    assert SyncOptions(solver="dpmpp").sampling == Sampling(20, "dpmpp", 3)


def test_times_are_numbers_or_text() -> None:
    wanted = Fraction(125, 2)
    assert (
        SyncOptions(start=62.5).start == SyncOptions(start="1:02.5").start == SyncOptions(start=wanted).start == wanted
    )
    assert SyncOptions(start=0.1, end=np.float32(0.25)).start == Fraction(1, 10)


def test_speakers_are_objects_or_text() -> None:
    ann, ben = Speaker(0, "a.wav"), Speaker(3, "b=c.wav")
    assert (
        SyncOptions(speaker=["0=a.wav", ben]).speaker == SyncOptions(speaker=(ann, "3=b=c.wav")).speaker == (ann, ben)
    )
    assert SyncOptions(speaker="0=a.wav").speaker == SyncOptions(speaker=ann).speaker == (ann,)


EVERY = """
--preset fast --steps 9 --solver ddim --guidance 1.75 --guidance-interval 0.2-0.85 --seed 7 --cache-interval 0,1,5
--turns t.rttm --faces f.json --paste mask --enhancer sharp --fps 25
--length longest --extend hold --start 2.5 --end 1:00:00 --offset -40 --mix m.wav --silence model --codec prores
--audio-segments public
--encoder prores:hq --crf 20 --no-mark --c2pa c.pem --resume --strict
--report page.html --resolution 320 --speaker 0=a.wav --speaker 2=b.wav
"""


def parsed(words: list[str]) -> SyncOptions:
    found: list[SyncOptions] = []

    @click.command()
    @options_from(SyncOptions)
    def command(**values: Any) -> None:
        found.append(build(SyncOptions, values))

    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return found[0]


def test_options_come_back_from_the_command_line() -> None:
    every = parsed(EVERY.split())
    at_default = [spec.name for spec in fields(every) if getattr(every, spec.name) == spec.default]
    assert at_default == ["face"]  # which exclude others
    for options in (every, SyncOptions(cache_interval=4, face="at:10,20.5")):
        assert parsed(command_line(options)) == options


WRONG = [
    ({"solver": "euler"}, "--solver euler: not one of ddim, dpmpp"),
    ({"steps": 0}, "--steps 0: not a whole number from 1 to 999"),
    ({"resolution": 300}, "--resolution 300: not a whole number from 64 to 2048, divisible by 64"),
    *(({"cache_interval": value}, "--cache-interval .*: not a number") for value in (0, (0, 3, 3), (0, 2.5))),
    ({"cache_interval": (1, 3)}, "--cache-interval 1,3: does not ascend from 0"),
    ({"cache_interval": (0, 4), "preset": "fast"}, "at most 3"),
    ({"guidance_interval": (0.5, 0.5)}, "--guidance-interval 0.5,0.5: not two ascending fractions"),
    ({"guidance_interval": (float("nan"), 1.0)}, "--guidance-interval nan,1.0: not two"),
    ({"guidance_interval": (0.2, 0.8), "guidance": 1.0}, "--guidance 1 uses no guidance at any step"),
    ({"start": 3, "end": 3}, "--end 3: is not after --start 3"),
    ({"end": float("nan")}, "--end nan: not a time"),
    ({"start": "1:77"}, "--start 1:77: not a time"),
    ({"speaker": 5}, "--speaker 5: not the number of a face and a file"),
    ({"speaker": "0=a.wav", "face": "left"}, "--face left and --speaker exclude each other"),
    ({"face": "index:one"}, "--face index:one: not largest, left, right"),
    ({"offset": float("inf")}, "--offset inf: not a number from"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_invalid_values_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SyncOptions(**fields)  # type: ignore[arg-type]
