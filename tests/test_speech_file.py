"""What of a file with speech is not heard, or heard at another time, is told."""

from pathlib import Path

import pytest

from latentsync_trt.media.speech_file import notices_of_speech_file
from tests.clips import copied, numbered, write_video
from tests.sounds import spoken, write_parts


@pytest.mark.parametrize(
    ("picture_s", "sound_s", "lead_ms"), [(0.5, 0.0, 500), (0.0, 0.5, None), (0.04, 0.0, None)]
)
def test_sound_before_the_picture_is_told(
    tmp_path: Path, picture_s: float, sound_s: float, lead_ms: int | None
) -> None:
    times = [round(1000 * (picture_s + index / 25)) for index in range(10)]
    picture = write_video(tmp_path / "a.mkv", numbered(10), times=times)
    sound = write_parts(tmp_path / "a.mka", [(sound_s, spoken(1, 48000))])
    film = copied(tmp_path / "film.mkv", picture, sound)
    assert not [*notices_of_speech_file(film, -200)]
    notices = [*notices_of_speech_file(film)]
    assert len(notices) == (lead_ms is not None)
    assert all(notice.endswith(f"--offset -{lead_ms}") for notice in notices)


def test_other_tracks_are_told(tmp_path: Path) -> None:
    sound = write_parts(tmp_path / "a.mka", [(0, spoken(0.5, 48000))])
    assert not [*notices_of_speech_file(sound)]
    several = copied(tmp_path / "b.mka", sound, sound, default=1, languages=("eng", "fra"))
    (notice,) = notices_of_speech_file(several)
    assert "has 2 audio tracks; the speech is track 1 (pcm_s16le, fra)" in notice
