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
