"""What frames of a live session hear: the windows of the whole recording, as far as they can be
known.
"""

import numpy as np
import pytest

from latentsync_trt.audio.encoder import encode_audio, public_segments
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.audio.streaming import FRAME_SAMPLES, StreamingAudioEncoder
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.types import Float32Array
from tests.live import voice
from tests.small import small_bundle

FRAMES = 16
HOP = 8
AHEAD = 160 * 16


def encode_locally(mel: Float32Array) -> Float32Array:
    """An encoder whose features depend on their own 20 ms alone: `(1, 80, 3000)` → `(1, 1500, 1,
    160)`.
    """
    return np.ascontiguousarray(
        mel[0].reshape(80, 1500, 2).transpose(1, 2, 0).reshape(1, 1500, 1, 160)
    )


FILTERS = filters_of(Bundle.load(small_bundle(), verify=False))


def new_encoder() -> StreamingAudioEncoder:
    return StreamingAudioEncoder(encode_locally, FILTERS, FRAMES)


def live_windows(
    encoder: StreamingAudioEncoder, speech: Float32Array, hop: int = HOP
) -> Float32Array:
    """The windows of new frames, hop by hop, with 160 ms of look-ahead."""
    found = []
    for start in range(0, len(speech) // FRAME_SAMPLES, hop):
        heard = speech[start * FRAME_SAMPLES : (start + hop) * FRAME_SAMPLES]
        # the last frame begins one frame before its end
        ahead = speech[(start + hop) * FRAME_SAMPLES :][: AHEAD - FRAME_SAMPLES]
        found.append(encoder.windows(start, heard, ahead)[-len(heard) // FRAME_SAMPLES :])
    return np.concatenate(found)


def whole_windows(speech: Float32Array) -> Float32Array:
    return encode_audio(lambda: [speech], encode_locally, FILTERS, public_segments).windows


def test_frames_hear_what_they_hear_in_the_whole_recording() -> None:
    speech = voice(4.0)
    found = live_windows(new_encoder(), speech)
    whole = whole_windows(speech)
    # But where the recording ends: its end is reflected there, and nothing is known of it here.
    assert np.allclose(found[:-3], whole[:-3], atol=1e-5)
    assert len(found) == len(whole)


def test_older_frames_of_a_window_are_heard_again_and_those_before_are_silent() -> None:
    speech = voice(2.0)
    encoder = new_encoder()
    first = encoder.windows(
        10, speech[: HOP * FRAME_SAMPLES], speech[HOP * FRAME_SAMPLES :][:AHEAD]
    )
    silence = encoder.windows(500, np.zeros(FRAME_SAMPLES, np.float32), np.zeros(0, np.float32))[0]
    assert np.array_equal(first[0], silence)
    encoder = new_encoder()
    encoder.windows(10, speech[: HOP * FRAME_SAMPLES], np.zeros(0, np.float32))
    second = encoder.windows(
        10 + HOP,
        speech[HOP * FRAME_SAMPLES : 2 * HOP * FRAME_SAMPLES],
        speech[2 * HOP * FRAME_SAMPLES :][:AHEAD],
    )
    assert np.allclose(second, whole_windows(speech)[: 2 * HOP], atol=1e-5)


def test_short_silence_continues_a_segment_and_a_long_one_ends_it() -> None:
    encoder = new_encoder()
    word = voice(0.32)
    encoder.windows(0, word, word[:0])
    begun = encoder.segments
    gap = encoder.windows(8 + 5, word, word[:0])
    assert encoder.segments == begun
    joined = np.concatenate([word, np.zeros(5 * FRAME_SAMPLES, np.float32), word])
    sounding = slice(-HOP + 3, -3)  # silence is clipped at a peak that is not known here
    assert np.allclose(gap[sounding], whole_windows(joined)[sounding], atol=1e-5)
    encoder.windows(100, word, word[:0])
    assert encoder.segments == begun + 1
    encoder.windows(50, word, word[:0])  # a stop may have taken frames back
    assert encoder.segments == begun + 2


@pytest.mark.parametrize("pause", [False, True])
def test_segments_of_long_speech_meet_without_a_shift(*, pause: bool) -> None:
    speech = 3 * voice(48.0)  # so loud that nothing is clipped, whatever the peak
    if pause:
        speech[17 * 16_000 : 18 * 16_000] *= 0.009
    encoder = new_encoder()
    begun = encoder.segments
    found = live_windows(encoder, speech, hop=FRAMES)
    # the first; in the pause or the quietest place, and once more
    assert encoder.segments - begun == 1 + 2
    apart = np.abs(found - whole_windows(speech)).max(axis=(1, 2))
    # A segment's start reflects its sound; where public segments meet, too.
    assert np.count_nonzero(apart[:-3] > 0.01) <= 8
