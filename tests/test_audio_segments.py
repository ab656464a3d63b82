"""Segments of the audio encoder: what is used of each, where they are joined, and what that does to
features.
"""

import tracemalloc
from contextlib import closing
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.audio.encoder import (
    FEATURES_PER_S,
    SEGMENT_FEATURES,
    SEGMENT_FRAMES,
    SpeechStream,
    encode_audio,
    joined_segments,
    segment_plan,
)
from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.config import AudioSegments
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH
from latentsync_trt.sync.speech import speech_in
from latentsync_trt.types import Float32Array
from tests.sounds import log_mel, mel_filters

_REACH = 2 * FEATURES_PER_S  # mel frames: 1 s, what a joined segment sees beyond what is used of it
_SMOOTH = np.hanning(2 * _REACH + 1)[1:-1]


def smoothed(mel: Float32Array) -> Float32Array:
    """Features `(1, n, 1, 1)` that depend on 1 s of the spectrogram `(1, 80, 2n)` on both sides,
    zeros beyond it.
    """
    level = np.convolve(mel[0].mean(axis=0), _SMOOTH / _SMOOTH.sum(), mode="same")
    return level[None, ::2, None, None].astype(np.float32)


def speech_with_pauses(duration_s: int) -> Float32Array:
    """The built-in sentence again and again, float32 `(n,)` at 16 kHz."""
    sentence = np.concatenate(list(read_audio_blocks(SPEECH)))
    return np.resize(sentence, duration_s * SAMPLE_RATE_HZ)


@given(st.integers(1, 20_000), st.lists(st.floats(0.3, 9), max_size=90))
def test_joined_segments_use_all_features_once_with_sound_around_them(
    total: int, lengths_s: list[float]
) -> None:
    edges_s = np.cumsum(lengths_s)
    pauses = [
        (round(a * 50), round(b * 50)) for a, b in zip(edges_s[1::2], edges_s[2::2], strict=False)
    ]
    speech_s = list(zip(edges_s[::2], edges_s[1::2], strict=False))
    segments = joined_segments(total, lambda: speech_s)
    assert [feature for segment in segments for feature in segment.used] == list(range(total))
    assert (len(segments) == 1) == (total <= SEGMENT_FEATURES)  # up to 30 s, nothing is cut
    for segment in segments:
        unused = segment.used.start - segment.start
        assert segment.start == 0 or unused >= FEATURES_PER_S
        unused = segment.start + SEGMENT_FEATURES - segment.used.stop
        assert segment.used.stop == total or unused >= FEATURES_PER_S
    for before, after in pairwise(segments):
        joint = after.used.start
        first = after.start + FEATURES_PER_S
        last = before.start + SEGMENT_FEATURES - FEATURES_PER_S
        if before.used.start <= first and any(
            first <= start < end <= last for start, end in pauses
        ):
            assert any(start <= joint <= end for start, end in pauses) or joint > edges_s[-1] * 50


def test_joined_features_are_those_of_a_recording_that_is_not_cut() -> None:
    """With an encoder that needs 1 s around; cut every 30 s, features up to 1 s from each cut are
    wrong.
    """
    samples = speech_with_pauses(100)
    whole = smoothed(log_mel(samples)[None])[0]

    def wrong(plan_name: AudioSegments) -> list[int]:
        plan = segment_plan(plan_name, lambda: speech_in(SPEECH).spans_s)
        features = encode_audio(lambda: [samples], smoothed, mel_filters(), plan).features
        assert features.shape == whole.shape
        return np.flatnonzero(np.abs(features - whole)[:, 0, 0] > 1e-4).tolist()

    # where the last segment ends, zeros follow that are no sound
    inside = 100 * FEATURES_PER_S - FEATURES_PER_S
    assert [feature for feature in wrong("joined") if feature < inside] == []
    assert {
        round(feature / SEGMENT_FEATURES) for feature in wrong("public") if feature < inside
    } == {1, 2, 3}


def test_memory_does_not_grow_with_the_recording() -> None:
    """Wide features, as of the real encoder, would fill 4 MB a minute if they were kept."""

    def wide(mel: Float32Array) -> Float32Array:
        return np.broadcast_to(
            mel[:, :1, ::2].transpose(0, 2, 1)[..., None], (1, SEGMENT_FRAMES // 2, 5, 64)
        ).copy()

    def peak_bytes(minutes: int) -> int:
        block = np.random.default_rng(1).normal(0, 0.1, 60 * SAMPLE_RATE_HZ).astype(np.float32)
        tracemalloc.start()
        plan = segment_plan("joined", lambda: speech_in(SPEECH).spans_s)
        with closing(
            SpeechStream(lambda: (block for _ in range(minutes)), wide, mel_filters(), plan)
        ) as stream:
            for second in range(60 * minutes):
                stream.windows([Fraction(second)])
            most_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most_bytes

    assert peak_bytes(4) < 1.05 * peak_bytes(2)
