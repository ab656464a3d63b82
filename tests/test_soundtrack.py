"""What is heard: pieces of several recordings on one timeline, copied where that is possible, else
encoded.
"""

from collections.abc import Generator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.sound_pieces import (
    CUT_RAMP_S,
    SoundPiece,
    mix_tracks,
    place_piece,
    splice,
)
from latentsync_trt.media.soundtrack import choose_sound, open_soundtrack
from latentsync_trt.types import Float32Array
from tests.clips import numbered, read_audio, write_sound, write_video
from tests.sounds import sound_packets, write_parts, write_samples

Pieces = tuple[SoundPiece, ...]

RATE_HZ = 48000

STEP_16 = 2.0**-14
"""Rounding of 16-bit sources, and their scale of 32767 instead of 32768."""


def heard(
    folder: Path, pieces: Pieces, until_s: float, suffix: str = ".mkv", *, lossless: bool = True
) -> tuple[Float32Array, int, str, str]:
    """Samples `(n, channels)` of an output that ends at `until_s`, and their rate, layout and
    codec.
    """
    output = folder / f"heard{suffix}"
    end_s = Fraction(until_s)
    chosen = choose_sound(pieces, suffix, lossless=lossless)
    with av.open(str(output), "w") as container, open_soundtrack(chosen, container, end_s) as sound:
        container.start_encoding()
        container.mux([packet for time_s, packet in sound if time_s < end_s])
    with av.open(str(output)) as opened:
        context = opened.streams.audio[0].codec_context
        resampler = av.AudioResampler("flt", context.layout.name)
        frames = [piece for frame in opened.decode(audio=0) for piece in resampler.resample(frame)]
        samples = np.concatenate(
            [frame.to_ndarray().reshape(-1, context.channels) for frame in frames]
        )
        return samples, context.sample_rate, context.layout.name, context.codec.canonical_name


def told(pieces: Pieces, suffix: str, *, lossless: bool = False) -> str:
    """Why the sound is encoded."""
    return "".join(choose_sound(pieces, suffix, lossless=lossless).notices)


def tone(duration_s: float, hz: float = 300, level: float = 0.3) -> Float32Array:
    return (
        level * np.sin(2 * np.pi * hz * np.arange(round(duration_s * RATE_HZ)) / RATE_HZ)
    ).astype(np.float32)


def test_speech_replaces_the_sound_of_its_part_only(tmp_path: Path) -> None:
    """Around it the video's own sound goes on at its own time; nothing jumps."""
    own = SoundPiece(write_samples(tmp_path / "own.wav", tone(4, 300), RATE_HZ), Fraction(1, 10))
    speech = SoundPiece(write_samples(tmp_path / "speech.wav", tone(5, 500), RATE_HZ), Fraction(1))
    pieces = splice(own, [speech], Fraction(1), Fraction(2))
    assert pieces[0].path == own.path
    samples = heard(tmp_path, pieces, 4)[0][:, 0]
    expected = np.concatenate([np.zeros(RATE_HZ // 10, np.float32), tone(4, 300)])
    expected[RATE_HZ : 2 * RATE_HZ] = tone(1, 500)
    differ = np.flatnonzero(~np.isclose(samples, expected[: len(samples)], rtol=0, atol=STEP_16))
    assert differ.size
    ramp = round(CUT_RAMP_S * RATE_HZ / 2)
    near = np.minimum(abs(differ - RATE_HZ), abs(differ - 2 * RATE_HZ))
    assert near.max() <= ramp
    steepest = np.abs(np.diff(tone(1, 500))).max()
    assert np.abs(np.diff(samples)).max() < 1.6 * steepest  # without ramps it is ten times that
    assert told(pieces, ".mp4") == ""  # WAV in MP4 is the normal case


def test_voices_that_exceed_full_scale_together_are_softer_not_clipped(tmp_path: Path) -> None:
    source = write_samples(tmp_path / "a.wav", tone(1, 300, 0.8), RATE_HZ)
    pieces = SoundPiece(source), SoundPiece(source)
    samples = heard(tmp_path, pieces, 1)[0][:, 0]
    assert np.allclose(samples, tone(1, 300, 1.0), rtol=0, atol=1e-4)
    notice = told(pieces, ".mkv")
    assert "4.1 dB softer" in notice  # 1.6 to 1
    assert "softer" not in told((SoundPiece(source), SoundPiece(source, Fraction(1))), ".mkv")


@pytest.mark.parametrize(("suffix", "lossless"), [(".mp4", False), (".mkv", False), (".mov", True)])
def test_floats_far_above_full_scale_are_softer_not_clipped(
    tmp_path: Path, suffix: str, lossless: bool
) -> None:
    """By one factor, also where they could be copied; a little beyond it stays as it is."""
    loud = np.concatenate([tone(0.5, 300, 22), tone(0.5, 300, 2.2)])
    pieces = (
        SoundPiece(write_parts(tmp_path / "a.wav", [(0, loud)], codec="pcm_f32le", layout="mono")),
    )
    assert "26.8 dB softer" in told(pieces, suffix, lossless=lossless)
    samples = heard(tmp_path, pieces, 1, suffix, lossless=lossless)[0][:, 0]
    peaks = [np.abs(samples[at : at + 10_000]).max() for at in (5_000, 30_000)]
    assert np.allclose(peaks, [1, 0.1], rtol=0.06)  # FFmpeg's encoder of AAC stays below 0.95
    usual = write_parts(
        tmp_path / "b.wav", [(0, tone(1, 300, 1.2))], codec="pcm_f32le", layout="mono"
    )
    assert "softer" not in told((SoundPiece(usual),), suffix, lossless=lossless)


def test_pieces_are_heard_in_the_richest_format(tmp_path: Path) -> None:
    """Each as loud as in its file, mono on both sides of stereo."""
    mono = write_sound(tmp_path / "mono.wav", 1, rate_hz=16000)
    stereo = write_sound(tmp_path / "stereo.wav", 1, rate_hz=44100, layout="stereo")
    samples, *found = heard(
        tmp_path, (SoundPiece(mono), SoundPiece(stereo, Fraction(1))), 2, ".mov"
    )
    assert found == [44100, "stereo", "pcm_s24le"]
    assert abs(len(samples) - 2 * 44100) <= 1
    for part in (samples[100 : 44100 - 100], samples[44100 + 100 : -100]):
        assert np.allclose(part.std(axis=0), 0.01, rtol=0.15)


@pytest.mark.parametrize(
    ("layout", "aac", "pcm"),
    [
        ("FL", "mono", "mono"),  # as recorders label a single microphone
        ("FL+LFE", "stereo", "stereo"),  # which swresample cannot mix
        ("2.1", "5.1", "2.1"),
        ("6.1", "7.1", "6.1"),
        ("8 channels", "7.1", "7.1"),  # as WAV without speaker positions
        ("9 channels", "", "9 channels"),
    ],
)
def test_any_layout_becomes_one_that_players_know(
    tmp_path: Path, layout: str, aac: str, pcm: str
) -> None:
    """AAC by one of its channel configurations; what no encoder takes is refused before anything is
    painted.
    """
    source = write_sound(tmp_path / "a.wav", 0.5, layout=layout, rate_hz=RATE_HZ, clicks_s=(0.2,))
    assert abs(np.abs(read_audio(source)).argmax() / 16000 - 0.2) < 0.002
    pieces = (SoundPiece(source, to_s=Fraction(2, 5)),)
    for suffix, lossless, expected in ((".mp4", False, aac), (".mov", True, pcm)):
        if expected:
            samples, _, found, _ = heard(tmp_path, pieces, 0.4, suffix, lossless=lossless)
            assert found == expected
            assert (np.abs(samples).max(axis=0) > 0.2).sum() >= min(
                av.AudioLayout(layout).nb_channels, 2
            )
        else:
            with pytest.raises(MediaError, match=r"a\.wav: .*ffmpeg -i FILE"):
                choose_sound(pieces, suffix, lossless=lossless)


def test_one_whole_recording_is_copied_a_part_is_encoded(tmp_path: Path) -> None:
    piece = SoundPiece(write_sound(tmp_path / "a.m4a", 1, codec="aac", rate_hz=RATE_HZ))
    assert told((piece,), ".mp4") == ""
    assert told((SoundPiece(piece.path, Fraction(1, 2)),), ".mp4") == ""
    for part in (
        SoundPiece(piece.path, Fraction(-1, 2)),
        SoundPiece(piece.path, to_s=Fraction(1, 2)),
    ):
        assert "AAC: a part of it " in told((part,), ".mp4")


def test_vorbis_lasts_as_long_as_its_samples(tmp_path: Path) -> None:
    """Where the last packet in Ogg is all padding, FFmpeg gives it a negative duration, which wraps
    around 32 bits.
    """
    sound = tmp_path / "a.ogg"
    with av.open(str(sound), "w") as container:
        *packets, last = sound_packets(container, [(0, tone(1))], codec="vorbis", rate_hz=RATE_HZ)
        last.pts = last.dts = packets[-1].pts + 1
        last.duration = 0
        container.mux([*packets, last])
    with av.open(str(sound)) as container:
        assert max(packet.duration or 0 for packet in container.demux()) > 2**31
    assert heard(tmp_path, (SoundPiece(sound),), 2)[3] == "vorbis"
    with av.open(str(tmp_path / "heard.mkv")) as container:
        assert 0.9 < container.duration / av.time_base < 1.1


times = st.integers(-400, 900).map(lambda hundredths: Fraction(hundredths, 100))
lengths = st.integers(0, 300).map(lambda hundredths: Fraction(hundredths, 100))
RECORDING = np.ones((4000, 1), np.float32)


def blocks(size: int) -> Generator[Float32Array, None, None]:
    yield from (RECORDING[start : start + size] for start in range(0, len(RECORDING), size))


@given(st.lists(st.tuples(times, lengths, lengths, st.integers(20, 400)), min_size=1, max_size=6))
def test_any_pieces_are_summed_at_their_places(
    parts: list[tuple[Fraction, Fraction, Fraction, int]],
) -> None:
    rate_hz = 1000
    nothing = np.zeros((0, 1), np.float32)
    tracks = []
    expected = np.zeros(20_000, np.float64)
    for at_s, from_s, length_s, size in parts:
        piece = SoundPiece(Path(), at_s, from_s, from_s + length_s)
        tracks.append(place_piece(blocks(size), piece, 1, rate_hz))
        alone = np.concatenate(
            [nothing, *place_piece(blocks(size), replace(piece, at_s=at_s + 5), 1, rate_hz)]
        )
        expected[: len(alone)] += alone[:, 0]
        # Half of each ramp is outside: what is cut out is as much as what was asked for.
        if length_s and from_s:
            assert abs(alone.sum() - min(length_s * rate_hz, 4000 - from_s * rate_hz)) < 5
    samples = np.concatenate([nothing, *mix_tracks(tracks, 1, rate_hz)])[:, 0]
    assert np.allclose(samples, expected[5000 : 5000 + len(samples)], atol=1e-5)
    assert not expected[5000 + len(samples) :].any()


def test_bad_sound_is_one_line(tmp_path: Path) -> None:
    silent = SoundPiece(write_video(tmp_path / "silent.mp4", numbered(2)))
    good = SoundPiece(write_sound(tmp_path / "a.wav", 1))
    for plan in ((silent,), (good, silent), (silent, good)):
        with pytest.raises(MediaError, match=r"silent\.mp4: .*no audio stream$"):
            told(plan, ".mp4")
    with pytest.raises(MediaError, match="has no samples"):
        read_audio(write_samples(tmp_path / "b.wav", np.zeros(0, np.float32), RATE_HZ))
    broken = write_sound(tmp_path / "nan.wav", 1, codec="pcm_f32le")
    content = bytearray(broken.read_bytes())
    content[-4:] = np.float32(np.nan).tobytes()
    broken.write_bytes(content)
    with pytest.raises(
        InputError,
        match=r"nan\.wav: .* NaN .* 1\.000 s",
    ):
        told((SoundPiece(broken),), ".mp4")
