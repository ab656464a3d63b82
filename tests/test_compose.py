"""After painting: faces fade in and out where they begin and end inside a shot; enhancers of other
packages.
"""

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import Enhancer, Helpers, LipSync, SyncOptions
from latentsync_trt.compositing.enhancer import enhanced, load_enhancer
from latentsync_trt.compositing.fading import PaintedPeople, faded
from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array
from tests.clips import decoded, write_clip

PeopleAndShot = tuple[set[int], int | None]

NO_FACE = (set[int](), 0)
ONE = ({0}, 0)
BOTH = ({0, 1}, 0)
OTHER = ({1}, 0)
OUTSIDE = (set[int](), None)


@pytest.mark.parametrize(
    ("frames_of_people", "quarters"),
    [
        pytest.param(
            [*[ONE] * 6, *[NO_FACE] * 4, *[ONE] * 6],
            ["4443210000123444"],
            id="around a gap, not at the ends",
        ),
        pytest.param(
            [*[ONE] * 2, NO_FACE, ONE, *[NO_FACE] * 3, ONE], ["44040004"], id="not around a flash"
        ),
        pytest.param([OUTSIDE, *[ONE] * 7, OUTSIDE], ["012343210"], id="where no shot is known"),
        pytest.param([NO_FACE, *[({0}, 1)] * 5, (set(), 2)], ["0444440"], id="not at a cut"),
        pytest.param(
            [*[ONE] * 5, ({0}, 1), *[(set(), 1)] * 5],
            ["44444100000"],
            id="not before a cut, after which the face is lost",
        ),
        pytest.param(
            [*[ONE] * 2, *[BOTH] * 6, *[OTHER] * 2],
            ["4444432100", "0012344444"],
            id="each for itself",
        ),
    ],
)
def test_faces_fade(frames_of_people: list[PeopleAndShot], quarters: list[str]) -> None:
    frames = (
        PaintedPeople(Fraction(index, 25), people, shot)
        for index, (people, shot) in enumerate(frames_of_people)
    )
    opacities = [each for _, each in faded(frames, lambda frame: frame)]
    for person, expected in enumerate(quarters):
        assert "".join(str(int(4 * each.get(person, 0))) for each in opacities) == expected


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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package with enhancers, as pip installs it."""
    site = tmp_path_factory.mktemp("site")
    (site / "some_enhancers.py").write_text(
        "class Same:\n    def enhance(self, face):\n  "
        "      return face\n\nclass Other:\n    pass\n",
        encoding="utf-8",
    )
    folder = site / "some_enhancers-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: some-enhancers\nVersion: 1.0\n", encoding="utf-8"
    )
    (folder / "entry_points.txt").write_text(
        "[latentsync_trt.enhancers]\nsame = "
        "some_enhancers:Same\nlost = not_installed_at_all:Thing\n"
        "none = some_enhancers:Other\n",
        encoding="utf-8",
    )
    sys.path.insert(0, str(site))
    yield
    sys.path.remove(str(site))


def test_an_installed_enhancer_is_found_by_its_name(installed):
    assert np.array_equal(enhanced(FACE, load_enhancer("same")), FACE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", "other: not installed; installed: lost, none"),
        ("lost", r"enhancer lost: cannot be imported: .*not_installed_at_all"),
        ("none", "none: Other has no method"),
    ],
)
def test_one_that_cannot_be_used_is_named(installed, name, message):
    with pytest.raises(InputError, match=message):
        load_enhancer(name)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros((64, 128, 3), np.float32), r"returned float32 \(64, 128"),
        (np.full((64, 64, 3), np.nan, np.float32), "returned NaN or infinity"),
    ],
    ids=["stretched", "NaN"],
)
def test_a_wrong_result_names_the_enhancer(result, message):
    with pytest.raises(InputError, match=f"Returning: enhance {message}"):
        enhanced(FACE, Returning(result))


@pytest.mark.integration
def test_sync_pastes_what_the_enhancer_returns(tmp_path: Path, lip_sync: LipSync) -> None:
    clip = write_clip(tmp_path, 4)
    green: Enhancer = Green()
    options = SyncOptions(steps=1, guidance=1)
    lip_sync.sync(*clip, tmp_path / "out.mp4", options, helpers=Helpers(enhancer=green))
    with pytest.raises(InputError, match="enhancer Returning"):
        lip_sync.sync(
            *clip, tmp_path / "none.mp4", options, helpers=Helpers(enhancer=Returning(None))
        )
    for before, after in zip(decoded(clip[0]), decoded(tmp_path / "out.mp4"), strict=True):
        red, shade, blue = np.moveaxis(after.astype(int), -1, 0)
        mouth = (shade > 200) & (red < 60) & (blue < 60)
        assert mouth.sum() > 0.01 * mouth.size
        assert not ((before[..., 1] > 200) & (before[..., 0] < 60)).any()
    assert not (tmp_path / "none.mp4").exists()
