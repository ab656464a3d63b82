"""The clock of sound: the network reads, and the output plays, each sample at the time of its
stamp.
"""

import struct
import tracemalloc
from fractions import Fraction
from math import ceil
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import (
    SPEECH_RATE_HZ,
    audio_duration_s,
    read_audio_blocks,
    sound_blocks,
)
from latentsync_trt.media.mixer import Mixer
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.timing import JITTER_S, Clock, Timed, nearest
from latentsync_trt.sync.sound import sound_of
from tests.clips import click_times, number_of, numbered, open_writer, read_audio, write_video
from tests.sounds import sound_packets, spoken, write_parts

pytestmark = pytest.mark.integration

IN_TIME_S = 0.011
"""AAC smears a click over a quarter of its blocks of 21 ms; a lost delay of its encoder would cost
21 ms.
"""

AAC_BLOCK = 1024
"""Samples per packet; one is the encoder's delay, which transport streams cannot tell from
sound.
"""

RATE_HZ = 48000
CLICK = spoken(1, RATE_HZ, [0.5])


def clicks_read(path: Path, delay_s: Fraction = Fraction(0)) -> list[float]:
    """When the network gets the clicks of a recording."""
    samples = np.concatenate(list(read_audio_blocks(path, delay_s=delay_s)))
    loud = np.flatnonzero(np.abs(samples) > 0.4)
    return (
        loud[np.diff(loud, prepend=-SPEECH_RATE_HZ) > SPEECH_RATE_HZ // 20] / SPEECH_RATE_HZ
    ).tolist()


def written(output: Path, sound: Path, duration_s: Fraction | None = None) -> tuple[str, str]:
    """Writes an output with this sound, by default as long as it: the sound's codec there, and what
    was told.
    """
    clip = write_video(output.with_name("clip.mp4"), numbered(2))
    duration_s = duration_s or audio_duration_s(sound)
    with open_writer(output, None, audio=sound) as writer:
        for frame in read_frames(clip, Playback(Fraction(MODEL_FPS), duration_s, "loop")):
            writer.write(frame)
    with av.open(str(output)) as container:
        return container.streams.audio[0].codec_context.codec.canonical_name, "".join(
            writer.notices
        )


def clicks_played(output: Path) -> list[float]:
    """When the clicks are heard after the first picture."""
    with av.open(str(output)) as container:
        start_s = float(next(container.decode(video=0)).time)
    return [time_s - start_s for time_s in click_times(output)]


@pytest.mark.parametrize(
    ("codec", "suffix", "kept"),
    [("pcm_s16le", ".mkv", "pcm_s16le"), ("pcm_s16le", ".mp4", "aac"), ("aac", ".mp4", "aac")],
)
def test_a_gap_in_the_stamps_is_silence_everywhere(
    tmp_path: Path, codec: str, suffix: str, kept: str
) -> None:
    sound = write_parts(tmp_path / "gap.mkv", [(0, CLICK), (3, CLICK)], codec=codec)
    assert np.allclose(clicks_read(sound), [0.5, 3.5], atol=IN_TIME_S)
    assert abs(audio_duration_s(sound) - 4) < JITTER_S
    output = tmp_path / f"out{suffix}"
    assert written(output, sound)[0] == kept
    assert np.allclose(clicks_played(output), [0.5, 3.5], atol=IN_TIME_S)
    assert np.allclose(clicks_read(output), [0.5, 3.5], atol=IN_TIME_S)
    assert audio_duration_s(output) >= 4


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_sound_that_an_edit_list_leaves_out_is_not_played(tmp_path: Path, suffix: str) -> None:
    """FFmpeg's demuxer gives what is left out in the middle and at the end, too, with a mark."""
    sound = write_parts(
        tmp_path / "a.mp4", [(1, spoken(3, RATE_HZ, [0.5, 1.2, 2.5, 2.9]))], codec="aac"
    )
    content = sound.read_bytes()
    at = content.index(b"elst") + 12  # two entries: the silence before the sound, and the sound
    kept = b"".join(struct.pack(">IIi", 700, start_s * RATE_HZ, 1 << 16) for start_s in (0, 2))
    sound.write_bytes(content[:at] + kept + content[at + len(kept) :])
    output = tmp_path / f"out{suffix}"
    assert written(output, sound, Fraction(2))[0] == "aac"
    assert np.allclose(clicks_read(sound), [0.5, 1.2], atol=float(JITTER_S))
    assert np.allclose(clicks_played(output), clicks_read(sound), atol=AAC_BLOCK / RATE_HZ)


def joined(folder: Path, start_s: float) -> Path:
    """Two transport streams of 2 s with a click at 0.5 s of each."""
    pieces = [
        write_parts(
            folder / f"{at_s}.ts", [(at_s, spoken(2, 44100, [0.5]))], codec="aac", rate_hz=44100
        )
        for at_s in (0, start_s)
    ]
    path = folder / "joined.ts"
    path.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    return path


@pytest.mark.parametrize(
    ("start_s", "why_encoded"), [(5.0, "has a gap after 2.04 s"), (1.6, "overlaps itself")]
)
def test_joined_recordings_are_heard_as_they_are_played(
    tmp_path: Path, start_s: float, why_encoded: str
) -> None:
    sound = joined(tmp_path, start_s)
    read = clicks_read(sound)
    assert np.allclose(read, [AAC_BLOCK / 44100 + 0.5, start_s + 0.5], atol=IN_TIME_S)
    assert why_encoded in written(tmp_path / "out.mp4", sound)[1]
    assert np.allclose(clicks_played(tmp_path / "out.mp4"), read, atol=IN_TIME_S)


def test_a_clock_that_is_reset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=r"joined\.ts: its clock jumps"):
        clicks_read(joined(tmp_path, 0.0))


@pytest.mark.parametrize(
    ("name", "codec", "rate_hz", "frames"),
    [
        ("a.mp4", "aac", 48000, 50),
        ("a.m4a", "aac", 44100, 50),
        ("a.mp4", "libmp3lame", 48000, 50),
        ("a.mkv", "aac", 48000, 51),  # its padding is stated nowhere
    ],
)
def test_padding_of_the_encoder_is_no_sound(
    tmp_path: Path, name: str, codec: str, rate_hz: int, frames: int
) -> None:
    sound = write_parts(tmp_path / name, [(0, spoken(2, rate_hz))], codec=codec, rate_hz=rate_hz)
    assert ceil(audio_duration_s(sound) * MODEL_FPS) == frames
    assert len(read_audio(sound)) == audio_duration_s(sound) * SPEECH_RATE_HZ


def write_offset(path: Path, picture_s: float, sound_s: float) -> Path:
    """25 numbered pictures and 1 s of sound with a click in the middle, each from its own time."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=MODEL_FPS, options={"preset": "ultrafast", "bf": "0"}
        )
        stream.width = 96
        stream.height = 64
        stream.pix_fmt = "yuv420p"
        packets = []
        for index, rgb in enumerate(numbered(MODEL_FPS)):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame.pts = round(picture_s * MODEL_FPS) + index
            frame.time_base = Fraction(1, MODEL_FPS)
            packets += stream.encode(frame)
        packets += stream.encode(None)
        packets += sound_packets(container, [(sound_s, CLICK)], codec="aac", rate_hz=RATE_HZ)
        for packet in sorted(packets, key=lambda packet: float(packet.dts * packet.time_base)):
            container.mux(packet)
    return path


@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".ts"])
@pytest.mark.parametrize(
    ("picture_s", "sound_s"), [(0.52, 0.0), (0.0, 0.52), (1.0, 1.52), (0.0, 0.0)]
)
def test_a_clip_keeps_the_offset_of_picture_and_sound(
    tmp_path: Path, suffix: str, picture_s: float, sound_s: float
) -> None:
    clip = write_offset(tmp_path / f"offset{suffix}", picture_s, sound_s)
    delays = delays_of(clip, clip)
    assert min(delays.picture_s, delays.sound_s) == 0
    click_s = float(delays.sound_s) + clicks_read(clip)[0] - float(delays.picture_s)
    assert abs(click_s - (sound_s - picture_s + 0.5)) < IN_TIME_S
    playback = Playback(Fraction(MODEL_FPS), delay_s=delays.picture_s)
    first = [number_of(frame.rgb) for frame in read_frames(clip, playback)]
    held = round(delays.picture_s * MODEL_FPS)
    assert first == [0] * held + list(range(MODEL_FPS))
    stated_s = probe(clip).duration_s
    assert stated_s is not None
    assert len(first) == nearest(stated_s + delays.picture_s, MODEL_FPS)
    assert np.allclose(
        clicks_read(clip, delays.sound_s), click_s + float(delays.picture_s), atol=1e-4
    )
    # The speech of another video begins as late as it does there.
    muted = write_video(tmp_path / "muted.mp4", numbered(2))
    assert sound_of(muted, clip, None, SyncOptions()).starts_s == delays.sound_s


def test_a_long_gap_takes_no_memory(tmp_path: Path) -> None:
    sound = write_parts(tmp_path / "gap.mkv", [(0, CLICK), (1800, CLICK)])
    tracemalloc.start()
    try:
        samples = sum(block.size for block in read_audio_blocks(sound))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000  # half an hour of silence is 115 MB
    finally:
        tracemalloc.stop()
    assert samples == 1801 * SPEECH_RATE_HZ


# Frames of 1/100 s to 1/5 s. Steps of the clock: none, jitter, gaps, and overlaps of less than a
# second together.
lengths = st.integers(160, 3200)
jitters = st.integers(-639, 639)
steps = st.just(0) | jitters | st.integers(640, 40_000) | st.integers(-1200, -640)


def timed_frames(parts: list[tuple[int, int, int]]) -> tuple[list[int], list[Timed[av.AudioFrame]]]:
    """Stamps, and frames at the times that the clock gives them, of (step, length, rate), in
    samples at 16 kHz.
    """
    clock = Clock(Path(), jitter_s=JITTER_S)
    stamps = list[int]()
    timed = []
    at = 0
    for step, length, rate_hz in parts:
        at += step if timed else 0
        stamps.append(at)
        duration_s = Fraction(length, SPEECH_RATE_HZ)
        time_s = clock.advance(Fraction(at, SPEECH_RATE_HZ) + 7, duration_s)
        layout = av.AudioLayout(["mono", "stereo", "5.1"][rate_hz % 3])
        samples = np.full(
            (layout.nb_channels, max(1, length * rate_hz // SPEECH_RATE_HZ)), 0.5, np.float32
        )
        frame = av.AudioFrame.from_ndarray(samples, "fltp", layout.name)
        frame.sample_rate = rate_hz
        timed.append(Timed(time_s, duration_s, frame))
        at += length
    return stamps, timed


@given(
    st.lists(
        st.tuples(steps, lengths, st.sampled_from([8000, 11025, 16000, 44100, 48000])),
        min_size=1,
        max_size=8,
    )
)
def test_sound_of_any_formats_has_its_length_and_no_sample_is_off_its_stamp(
    parts: list[tuple[int, int, int]],
) -> None:
    stamps, timed = timed_frames(parts)
    assert all(
        abs(one.time_s - Fraction(at, SPEECH_RATE_HZ)) < JITTER_S
        for at, one in zip(stamps, timed, strict=True)
    )
    found = list(sound_blocks(Path("a.wav"), timed, Mixer("mono", SPEECH_RATE_HZ)))
    assert sum(map(len, found)) == max(nearest(one.end_s, SPEECH_RATE_HZ) for one in timed)
