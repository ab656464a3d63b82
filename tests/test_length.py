"""How long the output lasts, by --length, and what the picture does then."""

from fractions import Fraction

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.config import Length
from latentsync_trt.errors import InputError
from latentsync_trt.media.playback import Playback
from latentsync_trt.sync.timeline import expected_frames, playback_of
from latentsync_trt.types import VideoInfo

SHORT, LONG = Fraction(2), Fraction("4.01")


@pytest.mark.parametrize(
    ("length", "video_s", "audio_s", "duration_s", "extends"),
    [
        (None, SHORT, LONG, LONG, True),
        ("audio", LONG, SHORT, SHORT, True),
        ("audio", None, SHORT, SHORT, True),
        ("video", SHORT, LONG, None, False),
        ("video", None, LONG, None, False),
        ("longest", SHORT, LONG, LONG, True),
        ("longest", LONG, SHORT, LONG, True),
        ("shortest", SHORT, LONG, LONG, False),  # ends with the video, however long that is
        ("shortest", LONG, SHORT, SHORT, False),
        ("shortest", None, LONG, LONG, False),
    ],
)
def test_lengths(
    length: Length | None, video_s: Fraction | None, audio_s: Fraction, duration_s: Fraction | None, extends: bool
) -> None:
    found = playback_of(SyncOptions(length=length), video_s, audio_s, Fraction(1, 10))
    assert found == Playback(None, duration_s, "pingpong" if extends else None, Fraction(1, 10))


def test_a_part_leaves_the_video_its_length() -> None:
    assert playback_of(SyncOptions(start=Fraction(1)), LONG, SHORT).duration_s is None
    assert playback_of(SyncOptions(end=Fraction(1), length="audio"), LONG, SHORT).duration_s == SHORT


def test_the_longest_needs_to_be_known() -> None:
    with pytest.raises(InputError, match="does not state how long it is; use --length audio or video"):
        playback_of(SyncOptions(length="longest"), None, LONG)


@pytest.mark.parametrize(
    ("length", "fps", "frames"), [("audio", "25", 101), ("audio", "source", 121), ("video", "source", 60)]
)
def test_the_number_of_frames_is_foreseen(length: Length, fps: str, frames: int) -> None:
    info = VideoInfo(64, 64, SHORT, "yuv420p", False, Fraction(1), frames_per_s=Fraction(30))
    playback = playback_of(SyncOptions(length=length, fps=fps), info.duration_s, LONG)  # type: ignore[arg-type]
    assert expected_frames(playback, info) == frames


def test_nothing_is_foreseen_of_an_unknown_video() -> None:
    info = VideoInfo(64, 64, None, "yuv420p", False, Fraction(1))
    assert expected_frames(Playback(Fraction(25)), info) is None
