"""Tasks and options as JSON, as rows of a table and as forms give them."""

import json
from dataclasses import fields
from fractions import Fraction
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import SyncOptions
from latentsync_trt.batch.tasks import Task
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import choices_of, file_fields, from_texts

NAMES = st.text("abc /ü.-", min_size=1, max_size=8).filter(str.strip)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "guidance_interval": st.sampled_from([(0.0, 1.0), (1e-9, 0.3), (0.1, 1 / 3)]),
    "cache_interval": st.sampled_from([3, (0,), (0, 3, 7)]),
    "face": st.sampled_from(["left", "index:3", "at:1.5,20"]),
    "speaker": st.lists(st.builds(lambda face, file: f"{face}={file}", st.integers(0, 9), NAMES), max_size=3),
    "start": st.fractions(0, 3600),
    "end": st.fractions(3601, 7200),
    "device": st.sampled_from([0, 3, (0, 2), "all"]),
}


def value_of(cls: type[Any], name: str) -> st.SearchStrategy[Any]:
    """Values of a field, also others than its default."""
    spec = cls.__dataclass_fields__[name]
    hint = get_type_hints(cls)[name]
    kinds = {hint, *get_args(hint)}
    low, high = spec.metadata.get("minimum"), spec.metadata.get("maximum")
    if name in SPECIAL:
        return SPECIAL[name]
    if choices := choices_of(hint):
        return st.sampled_from(choices)
    if bool in kinds:
        return st.booleans()
    if float in kinds:
        return st.floats(low, high)
    return st.integers(low, high) if int in kinds else NAMES


@st.composite
def options_of(draw: st.DrawFn, cls: type[Any]) -> Any:
    """Any options that fit each other."""
    names = draw(st.sets(st.sampled_from([spec.name for spec in fields(cls)])))
    try:
        return cls(**{name: draw(value_of(cls, name)) for name in sorted(names)})
    except InputError:  # contradictions
        return cls()


@given(options_of(SyncOptions))
def test_a_task_survives_json(options: SyncOptions) -> None:
    task = Task("a1", "s3://clips/a.mp4", None, "ü.mp4", options)
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([spec.name for spec in fields(SyncOptions)]), JSON_VALUES)
def test_whatever_a_row_says_is_an_option_or_an_input_error(name: str, value: Any) -> None:
    try:
        assert isinstance(from_texts(SyncOptions, {name: value}), SyncOptions)
    except InputError as error:
        assert name.replace("_", "-") in str(error) or "not a time" in str(error)


def test_text_of_a_cell_becomes_values() -> None:
    cells = {"crf": " 20 ", "--mark": "No", "start": "1:02", "speaker": "0=a.wav; 1=b.wav", "fps": 25, "mix": ""}
    wanted = SyncOptions(crf=20, mark=False, start=Fraction(62), speaker=("0=a.wav", "1=b.wav"), fps="25")  # type: ignore[arg-type]
    assert from_texts(SyncOptions, {**cells, "cache_interval": None}) == wanted


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"crff": "1"}, "did you mean crf"),
        ({"crf": "1", "--crf": "2"}, "given twice"),
        ({"mark": "perhaps"}, "--mark perhaps: not true or false"),
    ],
)
def test_errors_name_the_option(cells: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_texts(SyncOptions, cells)


def test_every_file_of_a_task_can_be_replaced() -> None:
    given = {name: f"{name}.x" for name in file_fields(SyncOptions) if name != "turns"}
    task = Task("1", "v", "a", "o", SyncOptions(speaker=("0=s.wav",), **given))  # type: ignore[arg-type]
    written = {file for file, written in task.files() if written}
    read = {file for file, written in task.files() if not written}
    assert written == {"o", "report.x"}
    assert read == {"v", "a", "s.wav", "mix.x", "faces.x", "c2pa.x"}
    moved = task.with_files(lambda file, written: f"{'out' if written else 'in'}/{file}")
    assert {file for file, _ in moved.files()} == {f"out/{file}" for file in written} | {f"in/{file}" for file in read}
    named = Task("1", "v", "a", "o", SyncOptions(speaker=("0=ann",), turns="t.rttm"))  # type: ignore[arg-type]
    assert dict(named.files()) == {"v": False, "a": False, "o": True, "t.rttm": False}
