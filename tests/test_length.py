"""How long the output lasts, by --length, and what the picture does then."""

from fractions import Fraction

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.config import Length
from latentsync_trt.errors import InputError
from latentsync_trt.media.playback import Playback
from latentsync_trt.sync.timeline import playback_of

SHORT, LONG = Fraction(2), Fraction("4.01")


@pytest.mark.parametrize(
    ("length", "video_s", "audio_s", "duration_s", "extends"),
    [
        (None, SHORT, LONG, LONG, True),
        ("audio", LONG, SHORT, SHORT, True),
        ("video", SHORT, LONG, None, False),
        ("longest", SHORT, LONG, LONG, True),
        ("shortest", SHORT, LONG, LONG, False),  # ends with the video, however long that is
        ("shortest", LONG, SHORT, SHORT, False),
    ],
)
def test_lengths(
    length: Length | None, video_s: Fraction | None, audio_s: Fraction, duration_s: Fraction | None, extends: bool
) -> None:
    found = playback_of(SyncOptions(length=length), video_s, audio_s, Fraction(1, 10))
    assert found == Playback(None, duration_s, "pingpong" if extends else None, Fraction(1, 10))


def test_the_longest_needs_to_be_known() -> None:
    with pytest.raises(InputError, match="does not state how long it is; use --length audio or video"):
        playback_of(SyncOptions(length="longest"), None, LONG)
