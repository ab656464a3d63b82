"""Options of `sync` that say what is synced and what is heard, through the whole pipeline on small
networks.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt import Helpers, LipSync, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.faces import analyze
from latentsync_trt.types import Face, SyncReport, UInt8Array
from tests.clips import click_times, decoded, half, write_sound
from tests.people import first_person, second_person

QUICK = SyncOptions(steps=1, guidance=1.0, codec="ffv1", silence="model")
MOUTH = np.s_[110:145, 95:145]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """clip.mkv: 16 frames with clicks at 0.12 and 0.5 s; voice.wav and mix.wav with clicks at 0.05
    and 0.15 s.
    """
    made = tmp_path_factory.mktemp("choices")
    own = write_sound(made / "own.wav", 0.64, clicks_s=(0.12, 0.5))
    write_pictures(made / "clip.mkv", half(first_person(16)), lossless=True, audio=own)
    write_sound(made / "voice.wav", 0.24, clicks_s=(0.05,))
    write_sound(made / "mix.wav", 0.24, clicks_s=(0.15,))
    two = (
        np.hstack(pair)
        for pair in zip(half(first_person(16)), half(second_person(16)), strict=True)
    )
    write_pictures(made / "two.mkv", two, lossless=True)
    return made


def painted(before: Path, after: Path, place: tuple[slice, slice] = MOUTH) -> list[int]:
    """Numbers of the frames in which anything at `place` changed."""
    pairs = zip(decoded(before), decoded(after), strict=True)
    return [number for number, (own, new) in enumerate(pairs) if (own[place] != new[place]).any()]


def run(
    lip_sync: LipSync, folder: Path, output: Path, audio: str | None = "voice.wav", **fields: Any
) -> SyncReport:
    recording = None if audio is None else folder / audio
    return lip_sync.sync(folder / "clip.mkv", recording, output, replace(QUICK, **fields))


def test_only_the_part_is_synced_and_around_it_the_clip_is_heard(
    lip_sync: LipSync, folder: Path, tmp_path: Path
) -> None:
    report = run(lip_sync, folder, tmp_path / "out.mkv", start=0.24, end=0.4)
    assert (report.frames, report.frames_with_face, report.untouched) == (16, 4, ())
    assert painted(folder / "clip.mkv", tmp_path / "out.mkv") == [6, 7, 8, 9]
    assert np.allclose(click_times(tmp_path / "out.mkv"), (0.12, 0.29, 0.5), atol=0.002)


def test_a_mix_is_heard_and_the_voice_moves_the_lips(
    lip_sync: LipSync, folder: Path, tmp_path: Path
) -> None:
    run(lip_sync, folder, tmp_path / "a.mkv")
    run(lip_sync, folder, tmp_path / "b.mkv", mix=folder / "mix.wav")
    assert np.allclose(click_times(tmp_path / "b.mkv"), (0.15,), atol=0.002)
    assert np.array_equal(
        np.stack(decoded(tmp_path / "a.mkv")), np.stack(decoded(tmp_path / "b.mkv"))
    )


LEFT = np.s_[:, :240]
RIGHT = np.s_[:, 240:]


def two(
    lip_sync: LipSync, folder: Path, output: Path, audio: Path | None, **fields: Any
) -> SyncReport:
    return lip_sync.sync(folder / "two.mkv", audio, output, replace(QUICK, **fields))


def test_two_people_speak_at_once(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    speakers = (f"1={folder / 'voice.wav'}", f"0={folder / 'own.wav'}")
    report = two(lip_sync, folder, tmp_path / "out.mkv", None, speaker=speakers)
    assert (report.frames, report.windows) == (16, 2)
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", LEFT) == list(range(16))
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", RIGHT) == list(range(16))
    assert np.allclose(click_times(tmp_path / "out.mkv"), (0.05, 0.12, 0.5), atol=0.002)


def test_faces_are_painted_in_their_turns(
    lip_sync: LipSync, detector: MediaPipeDetector, folder: Path, tmp_path: Path
) -> None:
    turns = tmp_path / "talk.rttm"
    turns.write_text("SPEAKER a 1 0.0 0.04 x x ann\nSPEAKER a 1 0.52 0.12 x x ben\n")
    report = two(lip_sync, folder, tmp_path / "out.mkv", folder / "own.wav", turns=turns)
    assert any("person 0 = ann, person 1 = ben" in notice for notice in report.notices)
    assert report.quality is not None and [lips.person for lips in report.quality.lips] == [0, 1]
    spans = analyze(folder / "two.mkv", detector)[0].spans
    ann, ben = (
        (LEFT, RIGHT)
        if next(span.person for span in spans if span.rows[0, 1] < 240) == 0
        else (RIGHT, LEFT)
    )
    # Each turn has a margin of 0.2 s.
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", ann) == list(range(6))
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", ben) == list(range(8, 16))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 0.63}, r"two\.mkv: .*16 frames"),
        ({"start": 0, "end": 5}, r"--end 5: .*0\.64 s"),
        ({"offset": -500.0}, r"-0\.50 to -0\.26 s.*--offset"),
        ({"report": "page.pdf"}, r"--report page\.pdf"),
    ],
)
def test_what_does_not_fit_the_clip_is_wrong_usage(
    lip_sync: LipSync, folder: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(LatentSyncError, match=message) as caught:
        two(lip_sync, folder, tmp_path / "out.mkv", folder / "voice.wav", **fields)
    assert caught.value.usage
    assert list(tmp_path.iterdir()) == []


def test_saved_tracks_are_used_instead_of_a_search(
    lip_sync: LipSync, detector: MediaPipeDetector, folder: Path, tmp_path: Path
) -> None:
    class Blind:
        def detect(self, frame: UInt8Array) -> list[Face]:
            raise AssertionError("a face was searched")

    two(lip_sync, folder, tmp_path / "a.mkv", folder / "voice.wav", face="index:1")
    saved = save_tracks(analyze(folder / "two.mkv", detector)[0], tmp_path / "tracks.json")
    options = replace(QUICK, face="index:1", faces=saved)
    lip_sync.sync(
        folder / "two.mkv",
        folder / "voice.wav",
        tmp_path / "b.mkv",
        options,
        helpers=Helpers(Blind()),
    )
    assert np.array_equal(
        np.stack(decoded(tmp_path / "a.mkv")), np.stack(decoded(tmp_path / "b.mkv"))
    )
