"""Who speaks: found from mouths and voices, kept in tracks files, and painted with one
recording.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError, NoFaceError
from latentsync_trt.face.active_speaker import Mouth, Turn, Voice, active_speakers, mouth_of
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import Tracks, read_tracks, save_tracks
from latentsync_trt.sync.dubbed_turns import dubbed_turns
from latentsync_trt.sync.faces import analyze
from latentsync_trt.sync.source_speakers import detect_speakers
from latentsync_trt.types import Float64Array
from scripts.measure_speaking import score
from tests.clips import decoded, half, write_clip, write_face, write_sound, write_video
from tests.dialogues import HELD_OUT, Cast, Dialogue, Part, compose
from tests.people import together
from tests.test_face_tracks import CLIP, span

FPS = 25
Curve = Callable[[Float64Array], Float64Array]


def waves(hz: float, size: float, number: int) -> Curve:
    """Syllables: a wave of a rate and a size that change."""

    def curve(times_s: Float64Array) -> Float64Array:
        phase = 2 * np.pi * hz * times_s + 1.5 * np.sin(2.1 * times_s + number)
        return size * np.sin(phase) * (1 + 0.4 * np.sin(3.7 * times_s + number))

    return curve


def still(times_s: Float64Array) -> Float64Array:
    return np.random.default_rng(len(times_s)).normal(0, 0.001, len(times_s))


TALKS = waves(4, 0.03, 0), waves(3.6, 0.03, 1), waves(4.3, 0.03, 2), waves(4, 0.05, 3)
RESTS = (still,) * 4
CHEWS = still, still, still, waves(1.2, 0.1, 0)
SMILES = waves(0.3, 0.1, 0), waves(0.3, 0.1, 2), still, still
SLOW = waves(0.9, 0.03, 0), waves(0.8, 0.03, 1), waves(1, 0.03, 2), waves(0.9, 0.05, 3)


def mouth(person: int, *parts: tuple[float, tuple[Curve, ...]], start_s: float = 0.0) -> Mouth:
    """What a mouth does, and until when, one after another."""
    pieces = []
    at_s = start_s
    for end_s, curves in parts:
        times_s = np.arange(round(at_s * FPS), round(end_s * FPS)) / FPS
        pieces.append((times_s, np.column_stack([curve(times_s) for curve in curves])))
        at_s = end_s
    return Mouth(person, *(np.concatenate(each) for each in zip(*pieces, strict=True)))


def heard(*spans_s: tuple[float, float]) -> Voice:
    return Voice(spans_s, np.full(1000, -10.0))


ALWAYS = heard((0, 99))
NO_LANDMARKS = Mouth(0, np.arange(100) / FPS, np.full((100, 4), np.nan))


@pytest.mark.parametrize(
    ("mouths", "shots_s", "voice", "expected"),
    [
        (
            [mouth(0, (3, TALKS), (6, RESTS)), mouth(1, (3, RESTS), (6, TALKS))],
            [0],
            ALWAYS,
            [(0, 0, 3), (1, 3, 6)],
        ),
        (
            [mouth(0, (6, TALKS)), mouth(1, (3, CHEWS), (6, SMILES)), mouth(2, (6, SLOW))],
            [0],
            ALWAYS,
            [(0, 0, 6)],
        ),
        # mute without a voice
        ([mouth(0, (6, TALKS))], [0], heard((1, 2.4), (3, 5)), [(0, 1, 2.4), (0, 3, 5)]),
        # a voice from outside
        ([mouth(0, (6, SMILES)), mouth(1, (6, RESTS))], [0], ALWAYS, [(None, 0, 6)]),
        # no sound
        (
            [mouth(0, (2, RESTS), (5, TALKS), (6, RESTS)), mouth(1, (6, SLOW))],
            [0],
            None,
            [(0, 2, 5)],
        ),
        # a cut
        (
            [mouth(0, (3, TALKS)), mouth(0, (6, RESTS), start_s=3)],
            [0, 3],
            ALWAYS,
            [(0, 0, 3), (None, 3, 6)],
        ),
        (
            [
                mouth(0, (2.5, TALKS), (2.7, RESTS), (5, TALKS)),
                mouth(1, (2.5, RESTS), (2.7, TALKS), (5, RESTS)),
            ],
            [0],
            ALWAYS,
            [(0, 0, 5)],  # the other one only for a moment
        ),
        ([NO_LANDMARKS, mouth(1, (4, TALKS))], [0], ALWAYS, [(1, 0, 4)]),
    ],
)
def test_who_speaks(
    mouths: list[Mouth],
    shots_s: list[float],
    voice: Voice | None,
    expected: list[tuple[int | None, float, float]],
) -> None:
    found = active_speakers(mouths, shots_s, voice)
    assert [one.person for one in found] == [person for person, _, _ in expected], found
    for one, (_, start_s, end_s) in zip(found, expected, strict=True):
        assert abs(one.start_s - start_s) <= 0.16
        assert abs(one.end_s - end_s) <= 0.16


def test_of_two_moving_mouths_the_one_that_opens_with_the_sound_speaks() -> None:
    times_s = np.arange(8 * FPS) / FPS
    opening = waves(3, 1, 0)
    late = waves(3.7, 1, 4)

    def moving(person: int, curve: Curve) -> Mouth:
        values = curve(times_s)
        return Mouth(
            person,
            times_s,
            np.column_stack([0.02 * values, -0.02 * values, 0.02 * values, 0.05 * values]),
        )

    mouths = [moving(0, late), moving(1, opening)]
    for own, person in ((opening, 1), (late, 0)):
        voice = Voice([(0, 8)], 8 * own(times_s - 0.04) - 15)
        assert [one.person for one in active_speakers(mouths, [0], voice)] == [person]


def test_a_mouth_keeps_its_values_where_the_head_moves(
    detector: MediaPipeDetector, tmp_path: Path
) -> None:
    (face,) = detector.detect(decoded(write_face(tmp_path / "face.mp4", 1))[0])
    assert face.landmarks is not None
    turned = face.landmarks @ np.array([[0.7, 0.2], [-0.1, 1.3]], np.float32) + np.float32(40)
    assert np.allclose(mouth_of(turned), mouth_of(face.landmarks), atol=1e-3)
    assert np.isnan(mouth_of(None)).all()


def from_left(tracks: Tracks) -> list[int]:
    """The people, from the left of the picture to the right."""
    return [one.person for one in sorted(tracks.spans, key=lambda span: span.rows[0, 1])]


A = 0
B = 1


@pytest.mark.parametrize(
    ("speaks", "shots_s", "speech_s", "expected", "unassigned_s"),
    [
        # change in a pause
        ([(A, 0, 3), (B, 3.2, 6)], [0], [(0, 2.8), (3, 6)], {A: [(0, 3)], B: [(2.8, 6.2)]}, []),
        ([(A, 0, 3), (B, 3.2, 6)], [0], [(0, 6)], {A: [(0, 3.12)], B: [(3.12, 6.2)]}, []),
        ([(A, 0, 2)], [0], [(0, 5)], {A: [(0, 5.2)]}, []),  # the rest of a shot to its last speaker
        ([(A, 0, 2)], [0, 4], [(0, 6)], {A: [(0, 4)]}, [(4, 6)]),  # but not across a cut
        ([(A, 4, 6)], [0], [(1, 6)], {A: [(3.4, 6.2)]}, [(1, 3.4)]),  # before anybody speaks
        # a voice from outside
        ([(A, 0, 2), (None, 2.5, 5)], [0], [(0, 2), (3, 5)], {A: [(0, 2.2)]}, [(3, 5)]),
    ],
)
def test_whose_the_speech_of_a_dub_is(
    speaks: list[tuple[int | None, float, float]],
    shots_s: list[float],
    speech_s: list[tuple[float, float]],
    expected: dict[int, list[tuple[float, float]]],
    unassigned_s: list[tuple[float, float]],
) -> None:
    dubbed = dubbed_turns(
        [Turn(*one) for one in speaks], shots_s, speech_s, lambda times_s: times_s
    )
    found = {
        person: [(float(span.start_s), float(span.end_s)) for span in one.spans]
        for person, one in dubbed.turns.items()
    }
    assert found == {
        person: [pytest.approx(times, abs=0.041) for times in spans]
        for person, spans in expected.items()
    }
    assert [(float(span.start_s), float(span.end_s)) for span in dubbed.unassigned] == [
        pytest.approx(times, abs=0.041) for times in unassigned_s
    ]


def test_tracks_keep_who_speaks_and_can_be_edited(tmp_path: Path) -> None:
    tracks = Tracks(
        CLIP,
        (0.0,),
        (span(0, 0), span(3, 0)),
        (Turn(3, 0.0, 1.5), Turn(None, 1.5, 2.0), Turn(0, 2, 4)),
    )
    path = save_tracks(tracks, tmp_path / "tracks.json")
    assert read_tracks(path).turns == tracks.turns
    assert (
        read_tracks(save_tracks(replace(tracks, turns=None), tmp_path / "older.json")).turns is None
    )
    saved = json.loads(path.read_text("utf-8"))
    assert saved["unseen_speaks"] == [[1.5, 2.0]]
    assert [person["speaks"] for person in saved["people"]] == [[[2, 4]], [[0.0, 1.5]]]
    saved["people"][1]["speaks"] = [[2, 1]]
    path.write_text(json.dumps(saved), "utf-8")
    with pytest.raises(InputError, match=r": people\[1\]\.speaks\[0\]"):
        read_tracks(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people beside one another, without sound, whose mouths rest."""
    return write_video(
        tmp_path_factory.mktemp("pair") / "pair.mkv", half(together([260.0] * 23, [780.0] * 23))
    )


QUICK = SyncOptions(steps=1, guidance=1.0, codec="ffv1", face="speaking", silence="model")


def changed(source: Path, result: Path) -> dict[str, list[int]]:
    """The frames in which the left and the right half were painted; the source may go back from its
    end.
    """
    shown = decoded(source)
    painted = decoded(result)
    pairs = list(zip(shown + shown[-2::-1], painted, strict=False))
    halves = {"left": np.s_[:, :260], "right": np.s_[:, 260:]}
    return {
        name: [at for at, (one, other) in enumerate(pairs) if (one[half] != other[half]).any()]
        for name, half in halves.items()
    }


def test_who_speaks_in_edited_tracks_is_painted(
    pair: Path, lip_sync: LipSync, detector: MediaPipeDetector, tmp_path: Path
) -> None:
    tracks, _ = analyze(pair, detector)
    left, right = from_left(tracks)
    speaks = Turn(right, 0.0, 0.6), Turn(left, 0.6, 0.84), Turn(None, 0.84, 0.92)
    saved = save_tracks(replace(tracks, turns=speaks), tmp_path / "tracks.json")
    options = replace(QUICK, faces=saved, length="audio", extend="pingpong")
    speech = write_sound(tmp_path / "speech.wav", 1.8)
    report = lip_sync.sync(pair, speech, tmp_path / "out.mkv", options)
    frames = changed(pair, tmp_path / "out.mkv")
    assert frames == {
        "left": [*range(15, 21), *range(24, 30)],
        "right": [*range(15), *range(30, 45)],
    }
    assert any("0.1 s of the speech" in notice and "--faces" in notice for notice in report.notices)


def test_nobody_of_several_speaks(pair: Path, lip_sync: LipSync, tmp_path: Path) -> None:
    speech = write_sound(tmp_path / "speech.wav", 1)
    with pytest.raises(NoFaceError, match=r"pair\.mkv"):
        lip_sync.sync(pair, speech, tmp_path / "out.mkv", QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["speech.wav"]


def test_one_person_is_painted_as_the_largest_face(lip_sync: LipSync, tmp_path: Path) -> None:
    clip = write_clip(tmp_path, 8, halved=True)
    for face in ("speaking", "largest"):
        lip_sync.sync(*clip, tmp_path / f"{face}.mkv", replace(QUICK, face=face))
    assert np.array_equal(decoded(tmp_path / "speaking.mkv"), decoded(tmp_path / "largest.mkv"))


def test_what_excludes_whoever_speaks(
    pair: Path, lip_sync: LipSync, detector: MediaPipeDetector, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="exclude each other"):
        replace(QUICK, turns="talk.rttm")
    options = replace(
        QUICK, faces=save_tracks(analyze(pair, detector)[0], tmp_path / "tracks.json")
    )
    with pytest.raises(InputError, match=r"--face speaking: .*tracks\.json") as caught:
        lip_sync.sync(pair, write_sound(tmp_path / "speech.wav", 1), tmp_path / "out.mkv", options)
    assert caught.value.usage


@pytest.mark.integration
def test_faces_shows_who_speaks(assets: Path, detector: MediaPipeDetector, tmp_path: Path) -> None:
    first = Part(2.4, {2: "speaks", 3: "nods"}, from_s={2: 0, 3: 0})
    talk = Dialogue("short", first, Part(2.4, {2: "rests", 3: "speaks"}))
    written = compose(Cast(assets, detector, 3), talk, tmp_path / "talk.mp4")
    done = CliRunner().invoke(main, ["faces", str(written.path)])
    assert done.exit_code == 0
    tracks = read_tracks(tmp_path / "talk-faces.json")
    right, wrong, frames = score(written, tracks)
    assert right >= 0.9 * frames
    assert wrong <= 0.05 * frames


@pytest.mark.slow
def test_held_out_dialogues_are_assigned_as_measured(
    assets: Path, detector: MediaPipeDetector, tmp_path: Path
) -> None:
    cast = Cast(assets, detector)
    right = 0
    wrong = 0
    frames = 0
    for number, dialogue in enumerate(HELD_OUT):
        written = compose(cast, dialogue, tmp_path / f"{number}.mp4")
        tracks, _ = detect_speakers(written.path, analyze(written.path, detector)[0])
        found = score(written, tracks)
        right = right + found[0]
        wrong = wrong + found[1]
        frames = frames + found[2]
    assert right >= 0.95 * frames
    assert wrong <= 0.02 * frames
