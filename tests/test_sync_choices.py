"""Options of `sync` that say what is synced and what is heard, through the whole pipeline on small networks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import save_tracks
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.analysis import analyse
from latentsync_trt.types import Face, Float32Array, SyncReport, UInt8Array
from tests.clips import click_times, decoded, write_sound
from tests.people import first_person, second_person
from tests.small import small_bundle

QUICK = SyncOptions(steps=1, guidance=1.0, lossless=True, silence="model", color_match=False)
MOUTH = np.s_[220:290, 190:290]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def lip_sync() -> Iterator[LipSync]:
    with LipSync.from_bundle(small_bundle(), "cpu") as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """clip.mkv: 20 frames with clicks at 0.12 and 0.7 s; voice.wav and mix.wav with clicks at 0.05 and 0.15 s."""
    made = tmp_path_factory.mktemp("choices")
    own = write_sound(made / "own.wav", 0.8, clicks_s=(0.12, 0.7))
    write_pictures(made / "clip.mkv", first_person(20), lossless=True, audio=own)
    write_sound(made / "voice.wav", 0.24, clicks_s=(0.05,))
    write_sound(made / "mix.wav", 0.24, clicks_s=(0.15,))
    two = (np.hstack(pair) for pair in zip(first_person(20), second_person(20), strict=True))
    write_pictures(made / "two.mkv", two, lossless=True)
    return made


def painted(before: Path, after: Path, place: tuple[slice, slice] = MOUTH) -> list[int]:
    """Numbers of the frames in which anything at `place` changed."""
    pairs = zip(decoded(before), decoded(after), strict=True)
    return [number for number, (own, new) in enumerate(pairs) if (own[place] != new[place]).any()]


def run(lip_sync: LipSync, folder: Path, output: Path, audio: str | None = "voice.wav", **fields: Any) -> SyncReport:
    recording = None if audio is None else folder / audio
    return lip_sync.sync(folder / "clip.mkv", recording, output, replace(QUICK, **fields))


def test_only_the_part_is_synced_and_around_it_the_clip_is_heard(
    lip_sync: LipSync, folder: Path, tmp_path: Path
) -> None:
    report = run(lip_sync, folder, tmp_path / "out.mkv", start=0.24, end=0.4)
    assert (report.frames, report.frames_with_face, report.untouched) == (20, 4, ())
    assert painted(folder / "clip.mkv", tmp_path / "out.mkv") == [6, 7, 8, 9]
    assert np.allclose(click_times(tmp_path / "out.mkv"), (0.12, 0.29, 0.7), atol=0.002)


def test_a_part_ends_with_its_speech(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    run(lip_sync, folder, tmp_path / "out.mkv", start="0:00.24", offset=40)
    assert painted(folder / "clip.mkv", tmp_path / "out.mkv") == list(range(6, 13))
    assert np.allclose(click_times(tmp_path / "out.mkv"), (0.12, 0.33, 0.7), atol=0.002)


def test_a_video_can_be_its_own_speech(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    run(lip_sync, folder, tmp_path / "out.mkv", "clip.mkv", start=0.24, end=0.4)
    assert painted(folder / "clip.mkv", tmp_path / "out.mkv") == [6, 7, 8, 9]
    assert np.allclose(click_times(tmp_path / "out.mkv"), (0.12, 0.7), atol=0.002)


@pytest.mark.parametrize(("offset", "clicks_s"), [(80.0, [0.13]), (-40.0, [0.01])])
def test_an_offset_moves_the_speech(
    lip_sync: LipSync, folder: Path, tmp_path: Path, offset: float, clicks_s: list[float]
) -> None:
    report = run(lip_sync, folder, tmp_path / "out.mkv", offset=offset)
    assert report.frames == 6 + offset / 40
    assert np.allclose(click_times(tmp_path / "out.mkv"), clicks_s, atol=0.002)


def test_lips_follow_the_moved_speech(
    lip_sync: LipSync, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[float]] = []
    monkeypatch.setattr(
        "latentsync_trt.audio.encoder.SpeechStream.windows",
        lambda self, times_s: asked.append(list(map(float, times_s))) or np.zeros((len(times_s), 50, 32), np.float32),
    )
    run(lip_sync, folder, tmp_path / "out.mkv", start=0.24, offset=40)
    assert np.allclose(asked[0][:7], np.arange(7) / 25 - 0.04)


def test_a_mix_is_heard_and_the_voice_moves_the_lips(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    run(lip_sync, folder, tmp_path / "a.mkv")
    run(lip_sync, folder, tmp_path / "b.mkv", mix=folder / "mix.wav")
    assert np.allclose(click_times(tmp_path / "b.mkv"), (0.15,), atol=0.002)
    assert np.array_equal(np.stack(decoded(tmp_path / "a.mkv")), np.stack(decoded(tmp_path / "b.mkv")))


def test_windows_can_overlap(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    plain = run(lip_sync, folder, tmp_path / "a.mkv", "clip.mkv")
    blended = run(lip_sync, folder, tmp_path / "b.mkv", "clip.mkv", overlap=4)
    assert plain.windows == blended.windows == 2
    frames = zip(decoded(tmp_path / "a.mkv"), decoded(tmp_path / "b.mkv"), strict=True)
    changed = [number for number, (a, b) in enumerate(frames) if (a != b).any()]
    assert changed[:4] == [12, 13, 14, 15]  # what follows depends on them, as outlines are smoothed over time


LEFT, RIGHT = np.s_[:, :480], np.s_[:, 480:]


def two(lip_sync: LipSync, folder: Path, output: Path, audio: Path | None, **fields: Any) -> SyncReport:
    return lip_sync.sync(folder / "two.mkv", audio, output, replace(QUICK, **fields))


def test_one_of_two_faces(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    for face, place, other in (("left", LEFT, RIGHT), ("at:720,200", RIGHT, LEFT)):
        two(lip_sync, folder, tmp_path / "out.mkv", folder / "voice.wav", face=face)
        before = tmp_path / "before.mkv"
        write_pictures(before, decoded(folder / "two.mkv")[:6], lossless=True)
        assert painted(before, tmp_path / "out.mkv", place) == list(range(6))
        assert painted(before, tmp_path / "out.mkv", other) == []


def listening(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """What the lips of each speaker followed: its number and the time of the frame."""
    from latentsync_trt.sync.speech import OpenVoices

    heard: list[tuple[int, float]] = []
    windows = OpenVoices.windows

    def noted(self: OpenVoices, speaker: int, frames: Any) -> Float32Array:
        heard.extend((speaker, float(frame.time_s)) for frame in frames)
        return windows(self, speaker, frames)

    monkeypatch.setattr(OpenVoices, "windows", noted)
    return heard


def test_two_people_speak_at_once(
    lip_sync: LipSync, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = listening(monkeypatch)
    speakers = (f"1={folder / 'voice.wav'}", f"0={folder / 'own.wav'}")
    report = two(lip_sync, folder, tmp_path / "out.mkv", None, speaker=speakers)
    assert (report.frames, report.windows) == (20, 4)
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", LEFT) == list(range(20))
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", RIGHT) == list(range(20))
    assert {speaker for speaker, _ in heard} == {0, 1}
    assert np.allclose(click_times(tmp_path / "out.mkv"), (0.05, 0.12, 0.7), atol=0.002)


def test_faces_are_painted_in_their_turns(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    turns = tmp_path / "talk.rttm"
    turns.write_text("SPEAKER a 1 0.0 0.1 x x ann\nSPEAKER a 1 0.6 0.2 x x ben\n")
    report = two(lip_sync, folder, tmp_path / "out.mkv", folder / "own.wav", turns=turns)
    assert any("face 0 = ann, face 1 = ben" in notice for notice in report.notices)
    with MediaPipeDetector() as detector:
        spans = analyse(folder / "two.mkv", detector)[0].spans
    ann, ben = (LEFT, RIGHT) if next(span.person for span in spans if span.rows[0, 1] < 480) == 0 else (RIGHT, LEFT)
    # Each turn has a margin of 0.2 s.
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", ann) == list(range(8))
    assert painted(folder / "two.mkv", tmp_path / "out.mkv", ben) == list(range(10, 20))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"face": "index:7"}, "face 7: is not in two.mkv, which has faces 0 and 1"),
        ({"start": 9}, r"--start 9: .*two\.mkv lasts 0\.80 s"),
        ({"start": 0, "end": 5}, r"--end 5: .*two\.mkv lasts 0\.80 s"),
        ({"enhancer": "none"}, "--enhancer none: not installed"),
        ({"offset": -500.0}, "the speech goes from -0.50 to -0.26 s of the output; change --start"),
        ({"overlap": 8, "turns": "gone.rttm"}, "gone.rttm: no such file"),
        ({"mix": "gone.wav"}, "gone.wav: no such file"),
        ({"report": "page.pdf"}, "--report page.pdf: is not the name of a page"),
        ({"c2pa_cert": "cert.pem"}, "--c2pa-cert needs --c2pa-key"),
    ],
)
def test_what_does_not_fit_the_clip_is_wrong_usage(
    lip_sync: LipSync, folder: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        two(lip_sync, folder, tmp_path / "out.mkv", folder / "voice.wav", **fields)
    assert caught.value.usage
    assert list(tmp_path.iterdir()) == []


def test_more_speakers_than_faces(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    speakers = tuple(f"{number}={folder / 'voice.wav'}" for number in range(3))
    with pytest.raises(InputError, match=r"face 2: is not in two\.mkv, which has faces 0 and 1") as caught:
        two(lip_sync, folder, tmp_path / "out.mkv", None, speaker=speakers)
    assert caught.value.usage
    assert list(tmp_path.iterdir()) == []


def test_saved_tracks_are_used_instead_of_a_search(lip_sync: LipSync, folder: Path, tmp_path: Path) -> None:
    class Blind:
        def detect(self, frame: UInt8Array) -> list[Face]:
            raise AssertionError("a face was searched")

    two(lip_sync, folder, tmp_path / "a.mkv", folder / "voice.wav", face="index:1")
    with MediaPipeDetector() as detector:
        saved = save_tracks(analyse(folder / "two.mkv", detector)[0], tmp_path / "tracks.json")
    options = replace(QUICK, face="index:1", faces=saved)
    lip_sync.sync(folder / "two.mkv", folder / "voice.wav", tmp_path / "b.mkv", options, detector=Blind())
    assert np.array_equal(np.stack(decoded(tmp_path / "a.mkv")), np.stack(decoded(tmp_path / "b.mkv")))
    with pytest.raises(InputError, match=r"tracks\.json: has the tracks of two\.mkv") as caught:
        run(lip_sync, folder, tmp_path / "c.mkv", faces=saved)
    assert caught.value.usage


def test_the_command_takes_them(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.mkv"
    words = ["sync", "--video", folder / "clip.mkv", "--voice", folder / "voice.wav", "--mix", folder / "mix.wav"]
    words += ["--start", "0:00.24", "--offset", "-40", "--overlap", "2", "-o", target, "--bundle", small_bundle(), "-q"]
    result = CliRunner().invoke(main, [str(word) for word in [*words, "--steps", "1", "--lossless"]])
    assert (result.exit_code, result.output) == (0, "")
    assert painted(folder / "clip.mkv", target) == list(range(6, 11))
    assert np.allclose(click_times(target), (0.12, 0.35, 0.7), atol=0.002)
