"""Who speaks when: the file of turns, and the speakers that options name."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.option_fields import Speaker
from latentsync_trt.spans import Span
from latentsync_trt.sync.sound import Sound, resolve_speakers
from latentsync_trt.sync.timeline import notices_of_cuts, span_of
from latentsync_trt.sync.turns import MARGIN_S, read_turns

ANN_AND_BEN = """
;; written by a diarization tool
SPKR-INFO talk 1 <NA> <NA> <NA> unknown ann <NA> <NA>
SPEAKER talk 1 4.0 1.5 <NA> <NA> ben <NA> <NA>
SPEAKER talk 1 1.0 2.0 <NA> <NA> ann <NA> <NA>
SPEAKER talk 1 3.2 0.5 <NA> <NA> ann <NA> <NA>
SPEAKER talk 1 9 1 <NA> <NA> ann 0.93
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "talk.rttm"
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_turns_of_every_speaker_in_the_order_of_the_first(tmp_path: Path) -> None:
    turns = read_turns(written(tmp_path, ANN_AND_BEN))
    assert list(turns) == ["ann", "ben"]
    # With their margins, the first two turns of ann meet.
    ends_s = Fraction(37, 10) + MARGIN_S, 10 + MARGIN_S
    assert turns["ann"].spans == (Span(1 - MARGIN_S, ends_s[0]), Span(9 - MARGIN_S, ends_s[1]))
    assert Fraction(39, 10) not in turns["ann"]
    assert Fraction(389, 100) in turns["ann"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LEXEME talk 1 1 2 hi x ann", r"talk\.rttm: .*SPEAKER"),
        ("# a list\nSPEAKER talk 1 zero 1 <NA> <NA> ann", "line 2 is damaged"),
        (
            "SPEAKER a 1 1 2 x x ann\nSPEAKER b 1 1 2 x x ann",
            r"\(a, b\)",
        ),
    ],
)
def test_damaged_files_of_turns_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_turns(written(tmp_path, text))


def of(audio: str | None, **fields: Any) -> Sound:
    """The speakers of recordings that begin at 2 s."""
    return resolve_speakers(
        None if audio is None else Path(audio),
        lambda path: SoundPiece(path, Fraction(2)),
        SyncOptions(**fields),
    )


def test_a_recording_for_each_person() -> None:
    tracks = of(None, speaker=("3=a.wav", Speaker(1, "b.wav")))
    assert tracks.recordings == (
        SoundPiece(Path("a.wav"), Fraction(2)),
        SoundPiece(Path("b.wav"), Fraction(2)),
    )
    assert tracks.people == (3, 1)
    assert tracks.speaks(0, Fraction(0))


def test_turns_are_times_of_the_recording(tmp_path: Path) -> None:
    tracks = of("talk.wav", turns=written(tmp_path, ANN_AND_BEN))
    assert tracks.people == (0, 1)
    assert tracks.recordings == (SoundPiece(Path("talk.wav"), Fraction(2)),) * 2
    assert [tracks.speaks(1, Fraction(time)) for time in (5, 6, 7, 8)] == [False, True, True, False]
    assert "person 0 = ann, person 1 = ben" in (tracks.notice or "")


def test_faces_of_speakers_can_be_named(tmp_path: Path) -> None:
    tracks = of("talk.wav", turns=written(tmp_path, ANN_AND_BEN), speaker=("5=ben", "2=ben"))
    assert (tracks.people, tracks.notice) == ((5, 2), None)
    assert tracks.speaks(0, Fraction(7)) and tracks.speaks(1, Fraction(7))


def test_the_only_speaker_is_the_chosen_face(tmp_path: Path) -> None:
    one = written(tmp_path, "SPEAKER a 1 1 2 x x ann")
    tracks = of("talk.wav", turns=one, face="left")
    assert (tracks.people, len(tracks.recordings)) == (None, 1)
    assert not tracks.speaks(0, Fraction(1))


@pytest.mark.parametrize(
    ("audio", "fields", "message"),
    [
        ("a.wav", {"speaker": "0=b.wav"}, "--audio and --speaker"),
        (None, {"speaker": ("0=a.wav", "0=b.wav")}, "--speaker 0"),
        (
            "a.wav",
            {"turns": "talk.rttm", "speaker": "0=eve"},
            "eve.*ann, ben",
        ),
        (
            "a.wav",
            {"turns": "talk.rttm", "face": "left"},
            "--face left.*--speaker",
        ),
    ],
)
def test_speakers_that_contradict_each_other(
    tmp_path: Path, audio: str | None, fields: dict[str, Any], message: str
) -> None:
    if "turns" in fields:
        turns = {"turns": written(tmp_path, ANN_AND_BEN)}
    else:
        turns = {}
    with pytest.raises(InputError, match=message) as caught:
        of(audio, **(fields | turns))
    assert caught.value.usage


def test_speech_that_begins_inside_the_clip_also_ends_there() -> None:
    tracks = Sound((SoundPiece(Path("a.wav"), Fraction(3)),))
    video = Path("clip.mp4")
    assert span_of(SyncOptions(start=3), tracks, video, Fraction(5)) == Span(
        Fraction(3), Fraction(5)
    )
    assert span_of(SyncOptions(start=3, end="0:09"), tracks, video, Fraction(5)) == Span(
        Fraction(3), Fraction(9)
    )
    assert span_of(SyncOptions(), tracks, video, Fraction(5)) == Span()


def test_options_that_cut_speech_say_where(tmp_path: Path) -> None:
    video = tmp_path / "clip.mp4"
    end_s = Fraction(12)
    video.touch()
    late, early = (Sound((SoundPiece(Path("a.wav"), Fraction(at)),)) for at in ("3", "2.5"))
    (notice,) = notices_of_cuts(Span(Fraction(3), Fraction("7.5")), late, video, end_s)
    assert "4.5 of its 9 s" in notice and "(--end)" in notice
    (notice,) = notices_of_cuts(Span(Fraction(3)), early, video, end_s)
    assert "first 0.5 s" in notice and "(--start)" in notice
    whole = Sound((SoundPiece(video),))
    # heard around the part, too
    assert notices_of_cuts(Span(Fraction(3), Fraction(7)), whole, video, end_s) == []
