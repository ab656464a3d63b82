"""After painting: faces fade in and out where they begin and end inside a shot; enhancers of other packages."""

import sys
from collections.abc import Generator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import Enhancer, Helpers, LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.face.choice import FADE_S, People, faded
from latentsync_trt.face.enhancer import enhanced, load_enhancer
from latentsync_trt.types import Float32Array
from tests.clips import decoded, write_clip
from tests.small import small_bundle

Shown = tuple[int, set[int], int | None]


def frames(shown: Sequence[tuple[set[int], int | None]]) -> Generator[Shown, None, None]:
    """Number, people and shot of each frame."""
    for index, (people, shot) in enumerate(shown):
        yield index, people, shot


def people_in(frame: Shown) -> People:
    """At 25 frames/s."""
    return People(Fraction(frame[0], 25), *frame[1:])


def quarters(shown: Sequence[tuple[set[int], int | None]], person: int = 0) -> list[int]:
    """How much of a person shows in each frame, of 4."""
    return [int(4 * shares.get(person, 0)) for _, shares in faded(frames(shown), people_in)]


NOBODY, ONE, BOTH = (set[int](), 0), ({0}, 0), ({0, 1}, 0)


def test_a_face_fades_around_a_gap_but_not_at_the_ends_of_the_clip() -> None:
    assert quarters([ONE] * 6 + [NOBODY] + [ONE] * 6) == [4, 4, 4, 3, 2, 1, 0, 1, 2, 3, 4, 4, 4]


def test_it_fades_at_the_ends_of_a_part_where_no_shot_is_known() -> None:
    outside = (set[int](), None)
    assert quarters([outside] + [ONE] * 7 + [outside]) == [0, 1, 2, 3, 4, 3, 2, 1, 0]


def test_nothing_fades_at_a_cut() -> None:
    assert quarters([NOBODY, *[({0}, 1)] * 5, (set(), 2)]) == [0, 4, 4, 4, 4, 4, 0]


def test_each_face_fades_for_itself() -> None:
    shown = [ONE] * 2 + [BOTH] * 6 + [({1}, 0)] * 2
    assert quarters(shown, 0) == [4, 4, 4, 4, 4, 3, 2, 1, 0, 0]
    assert quarters(shown, 1) == [0, 0, 1, 2, 3, 4, 4, 4, 4, 4]


@given(st.lists(st.tuples(st.sets(st.integers(0, 1)), st.none() | st.integers(0, 1)), max_size=30))
def test_every_frame_leaves_in_order_and_in_time(shown: list[tuple[set[int], int | None]]) -> None:
    taken, left = 0, 0

    def counted() -> Generator[Shown, None, None]:
        nonlocal taken
        for frame in frames(shown):
            taken += 1
            yield frame

    for (index, *_), shares in faded(counted(), people_in):
        assert index == left
        assert shares.keys() == shown[left][0]
        assert all(0 < share <= 1 for share in shares.values())
        left += 1
        assert taken - left <= FADE_S * 25 + 1
    assert left == len(shown)


# Enhancers of other packages get every painted face, and what they return is pasted.


FACE = np.random.default_rng(1).integers(0, 65536, (64, 64, 3), np.uint16)


class Returning:
    """An enhancer that returns the same thing for every face."""

    def __init__(self, result: object) -> None:
        self._result = result

    def enhance(self, face: Float32Array) -> Float32Array:
        return self._result  # type: ignore[return-value]


class Green:
    """An enhancer whose faces are green."""

    def enhance(self, face: Float32Array) -> Float32Array:
        return np.zeros_like(face) + np.array([0, 1, 0], np.float32)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with enhancers, as pip installs it."""
    (tmp_path / "some_enhancers.py").write_text(
        "class Same:\n    def enhance(self, face):\n        return face\n\nnot_one = dict\n", encoding="utf-8"
    )
    folder = tmp_path / "some_enhancers-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-enhancers\nVersion: 1.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(
        "[latentsync_trt.enhancers]\nsame = some_enhancers:Same\nnone = some_enhancers:not_one\n"
        "gone = some_enhancers:Gone\nlost = not_installed_at_all:Thing\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_enhancers", raising=False)


def test_an_installed_enhancer_is_found_by_its_name(installed):
    assert np.array_equal(enhanced(FACE, load_enhancer("same")), FACE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", r"enhancer other: not installed; installed: gone, lost, none, same; install a package"),
        ("none", r"some_enhancers:not_one makes no object with a method enhance"),
        ("lost", r"enhancer lost: cannot be imported: .*not_installed_at_all"),
    ],
)
def test_one_that_cannot_be_used_is_named(installed, name, message):
    with pytest.raises(InputError, match=message):
        load_enhancer(name)


WRONG: dict[str, tuple[object, str]] = {
    "list": ([1, 2], "returned list"),
    "alpha": (np.zeros((64, 64, 4), np.float32), r"returned shape \(64, 64, 4\)"),
    "stretched": (np.zeros((64, 128, 3), np.float32), r"returned shape \(64, 128, 3\)"),
    "NaN": (np.full((64, 64, 3), np.nan, np.float32), "returned float32, NaN or infinity"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_result_names_the_enhancer(case):
    result, message = WRONG[case]
    with pytest.raises(InputError, match=f"enhancer Returning: enhance {message}.*; it must return"):
        enhanced(FACE, Returning(result))


@pytest.mark.integration
def test_sync_pastes_what_the_enhancer_returns(tmp_path):
    clip = write_clip(tmp_path, 4)
    green: Enhancer = Green()
    options = SyncOptions(steps=1, guidance=1)
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        lip_sync.sync(*clip, tmp_path / "out.mp4", options, helpers=Helpers(enhancer=green))
        with pytest.raises(InputError, match="enhancer Returning"):
            lip_sync.sync(*clip, tmp_path / "none.mp4", options, helpers=Helpers(enhancer=Returning(None)))
    for before, after in zip(decoded(clip[0]), decoded(tmp_path / "out.mp4"), strict=True):
        red, shade, blue = np.moveaxis(after.astype(int), -1, 0)
        mouth = (shade > 200) & (red < 60) & (blue < 60)
        assert mouth.sum() > 0.01 * mouth.size
        assert not ((before[..., 1] > 200) & (before[..., 0] < 60)).any()
    assert not (tmp_path / "none.mp4").exists()
