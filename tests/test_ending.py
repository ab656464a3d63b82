"""Where a file ends: what it lacks of its stated length is told, and nothing of files that are
whole.
"""

import re
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.ending import notices_of_ending
from latentsync_trt.media.reader import probe, read_frames
from tests.clips import copied, numbered, write_sound, write_video

SOUNDS = {
    "a.wav": "pcm_s16le",
    "b.wav": "pcm_f32le",
    "a.mp3": "libmp3lame",
    "a.aiff": "pcm_s16be",
    "a.caf": "pcm_s16be",
    "a.w64": "pcm_s16le",
    "a.mka": "libmp3lame",
}
ROUNDED_S = 0.1
"""To whole packets, and by the notice."""

VIDEOS = {"a.mkv": "libx264", "a.avi": "mpeg4", "a.wmv": "wmv2"}


def told_s(path: Path) -> float:
    """The time that the only notice of a file begins with; 0 without one."""
    (text,) = notices_of_ending(path) or ["0.0 s"]
    numbers = re.findall(r"(\d+\.\d) s\b", text)
    return float(numbers[0])


def cut_in_half(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


@pytest.mark.parametrize(("name", "codec"), SOUNDS.items())
def test_what_a_recording_lacks_of_its_stated_length_is_told(
    tmp_path: Path, name: str, codec: str
) -> None:
    sound = write_sound(tmp_path / name, 4, codec=codec)
    assert told_s(sound) == 0
    lasts_s = float(audio_duration_s(cut_in_half(sound)))
    assert 1 < lasts_s < 3
    assert abs(told_s(sound) - lasts_s) < ROUNDED_S


@pytest.mark.parametrize(("name", "codec"), VIDEOS.items())
def test_what_a_video_lacks_of_its_stated_length_is_told(
    tmp_path: Path, name: str, codec: str
) -> None:
    """What is there is played, and is the length of the video."""
    noise = np.random.default_rng(4).integers(0, 256, (50, 64, 96, 3), np.uint8)
    clip = write_video(tmp_path / name, noise, codec=codec, options={"g": "5", "bf": "0"})
    assert told_s(clip) == 0
    frames = list(read_frames(cut_in_half(clip)))
    assert 10 < len(frames) < 40
    assert abs(told_s(clip) - len(frames) / 25) < ROUNDED_S
    stated_s = probe(clip).duration_s  # which half a .wmv does not have
    assert stated_s is None or abs(stated_s - Fraction(len(frames), 25)) < Fraction(1, 100)


@pytest.mark.parametrize("states_length", [False, True])
def test_a_part_of_a_film_lasts_as_long_as_its_pictures(
    tmp_path: Path, states_length: bool
) -> None:
    """Whether the header and tags of Matroska state the end, as FFmpeg has them, or the length, as
    mkvmerge has.
    """
    part = write_video(tmp_path / "part.mkv", numbered(10), times=[*range(5000, 5400, 40)])
    if states_length:
        content = part.read_bytes()
        for end, length in (
            (b"00:00:05.4", b"00:00:00.4"),
            (struct.pack(">d", 5400), struct.pack(">d", 400)),
        ):
            assert content.count(end) == 1
            content = content.replace(end, length)
        part.write_bytes(content)
    assert probe(part).duration_s == Fraction(2, 5)


def test_files_that_are_whole_have_no_notice(tmp_path: Path) -> None:
    """A last picture that is held, tracks of different lengths, a recording without a length, and
    those with other data behind or before their samples.
    """
    held = write_video(tmp_path / "held.mkv", numbered(3), times=[0, 1000, 9000])
    sound = write_sound(tmp_path / "a.wav", 3)
    both = copied(tmp_path / "both.mkv", held, sound)
    live = copied(tmp_path / "live.mkv", held, options={"live": "1"})
    content = sound.read_bytes()
    tagged = tmp_path / "tagged.wav"
    tagged.write_bytes(content + b"id3 \0\0\1\0" + bytes(65_536))
    appended = tmp_path / "appended.wav"
    appended.write_bytes(content + b"ID3\4\0\0\0\3\x7f\x76" + bytes(65_526))
    padded = tmp_path / "padded.wav"
    padded.write_bytes(content + bytes(65_536))
    commented = write_sound(tmp_path / "a.caf", 3)
    samples = commented.read_bytes()
    comment = b"\0\0\0\1comment\0All data of the mixing session\0"
    at = samples.index(b"data")
    commented.write_bytes(
        samples[:at] + b"info" + len(comment).to_bytes(8, "big") + comment + samples[at:]
    )
    assert [
        told_s(path) for path in (held, both, live, sound, tagged, appended, padded, commented)
    ] == [0] * 8


@pytest.mark.parametrize(("size", "beyond_s"), [(32_000, 2), (0, 0), (0xFFFFFFFF, 0)])
def test_a_recorder_that_was_switched_off_has_written_no_length_or_an_early_one(
    tmp_path: Path, size: int, beyond_s: int
) -> None:
    """All is read where it is not known; an early one is told, as FFmpeg reads no further."""
    sound = write_sound(tmp_path / "a.wav", 3)
    content = sound.read_bytes()
    at = content.index(b"data") + 4
    sound.write_bytes(content[:at] + size.to_bytes(4, "little") + content[at + 4 :])
    assert told_s(sound) == beyond_s
    assert audio_duration_s(sound) == 3 - beyond_s
