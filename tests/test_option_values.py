"""Options made in Python with values that the command line could not give."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError

ANY = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
NUMBERS = [
    *((SyncOptions, name) for name in ("steps", "guidance", "seed", "cache_interval", "crf")),
    *((RuntimeOptions, name) for name in ("windows_per_batch", "device", "workspace_gb", "optimization_level")),
]


@given(which=st.sampled_from(NUMBERS), value=ANY)
def test_a_number_is_taken_or_refused(which: tuple[type[Any], str], value: Any) -> None:
    cls, name = which
    try:
        taken = getattr(cls(**{name: value}), name)
    except InputError as error:
        assert str(error).startswith("--" + name.replace("_", "-"))
    else:
        assert taken is None or isinstance(taken, int) or name in ("guidance", "workspace_gb")


@given(value=st.tuples(ANY, ANY) | st.lists(st.integers(-1, 25), max_size=4).map(tuple) | st.text(max_size=5))
def test_lists_of_numbers_are_taken_or_refused(value: Any) -> None:
    for name in ("full_steps", "guidance_interval"):
        try:
            SyncOptions(**{name: value})
        except InputError as error:
            assert str(error).startswith("--" + name.replace("_", "-"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": 2.5}, "--steps 2.5: not a whole number"),
        ({"steps": "8"}, "--steps '8': not a whole number"),
        ({"guidance": "strong"}, "--guidance 'strong': not a number"),
        ({"guidance": float("nan")}, "--guidance nan: outside"),
        ({"full_steps": "0,1"}, "not whole numbers"),
        ({"guidance_interval": (0.1,)}, "not two numbers"),
    ],
)
def test_wrong_kinds_of_values_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        SyncOptions(**fields)
    assert words in str(caught.value)


@given(value=ANY)
def test_times_and_speakers_are_taken_or_refused(value: Any) -> None:
    for name in ("start", "end", "speaker", "face"):
        try:
            SyncOptions(**{name: value})
        except InputError as error:
            assert str(error).startswith("--" + name)


def test_numbers_of_numpy_are_numbers() -> None:
    options = SyncOptions(steps=np.int64(8), guidance=np.float32(2), full_steps=(np.int32(0), np.int32(3)))
    assert options.sampling.steps == 8
