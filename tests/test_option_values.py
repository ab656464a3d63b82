"""Options made in Python with values that the command line could not give."""

from dataclasses import fields
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import flag_name

ANY = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
OTHERS = [np.zeros(2), Path("a"), b"a", object(), Fraction(1, 3), {}]


@pytest.mark.parametrize("cls", [SyncOptions, RuntimeOptions])
@given(data=st.data(), value=ANY | st.tuples(ANY, ANY) | st.sampled_from(OTHERS))
def test_a_field_takes_what_fits_its_type_or_the_error_names_its_flag(
    cls: type[Any], data: st.DataObject, value: Any
) -> None:
    spec = data.draw(st.sampled_from(fields(cls)))
    hint = get_type_hints(cls)[spec.name]
    kinds = {hint, *get_args(hint)}
    try:
        taken = getattr(cls(**{spec.name: value}), spec.name)
    except InputError as error:
        assert str(error).startswith(flag_name(spec.name))
        return
    if taken is None:
        assert type(None) in kinds
    elif isinstance(taken, bool):
        assert bool in kinds
    elif isinstance(taken, Real):
        assert kinds & {int, float, Fraction}
    elif isinstance(taken, Path):
        assert Path in kinds
    else:
        assert isinstance(taken, str | tuple | list)


@given(value=st.lists(st.integers(-1, 25), max_size=4).map(tuple))
def test_steps_are_taken_or_refused(value: tuple[int, ...]) -> None:
    try:
        SyncOptions(cache_interval=value)
    except InputError as error:
        assert str(error).startswith("--cache-interval")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": 2.5}, "--steps 2.5: not a whole number"),
        ({"steps": "8"}, "--steps 8: not a whole number"),
        ({"offset": None}, "--offset None: not a number"),
        ({"guidance": "strong"}, "--guidance strong: not a number"),
        ({"guidance": float("nan")}, "--guidance nan: not a number"),
        ({"cache_interval": "0,b"}, "not a whole number, or several"),
        ({"cache_interval": 2.5}, "--cache-interval 2.5: not a whole number"),
        ({"guidance_interval": (0.1,)}, "not two fractions"),
        ({"resume": "no"}, "--resume no: not true or false"),
        ({"mix": 5}, "--mix 5: not a path"),
        ({"enhancer": Path("x")}, "not text"),
        ({"start": True}, "--start True: not a time"),
        ({"codec": np.zeros(2)}, "not one of h264"),
    ],
)
def test_wrong_kinds_of_values_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        SyncOptions(**fields)
    assert words in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    options = SyncOptions(steps=np.int64(8), guidance=np.float32(2), cache_interval=(np.int32(0), np.int32(3)))
    assert options.sampling.steps == 8
