"""Audio features: the spectrogram in blocks, segments on demand, windows, compared with recorded
numbers.
"""

import wave
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import librosa
import numpy as np
import pytest

from latentsync_trt.audio.encoder import SEGMENT_FRAMES, SpeechStream, encode_audio
from latentsync_trt.audio.mel import filters_of, log_power_blocks
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.types import Float32Array
from tests.small import small_bundle
from tests.sounds import mel_filters

BLOCKS_AGREE = 1e-4  # log10 of float32 powers summed in another order
FEATURES_AGREE = 1e-3  # relative, to the public release's float32 features
LAYERS = 3
WIDTH = 4


class Echo:
    """Stands in for the audio encoder: each feature holds the index of its mel frame and its
    level.
    """

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, segment: Float32Array) -> Float32Array:
        (mel,) = segment
        assert mel.shape == (80, SEGMENT_FRAMES)
        features = np.zeros((1, SEGMENT_FRAMES // 2, LAYERS, WIDTH), np.float32)
        features[0, :, :, 0] = (self.runs * SEGMENT_FRAMES // 2 + np.arange(SEGMENT_FRAMES // 2))[
            :, None
        ]
        features[0, :, :, 1] = mel.mean(axis=0)[::2, None]
        self.runs += 1
        return features


def times_s(frames: Iterable[int]) -> list[Fraction]:
    return [Fraction(frame, 25) for frame in frames]


def noise(samples: int) -> Float32Array:
    return np.random.default_rng(samples).standard_normal(samples).astype(np.float32) * np.float32(
        0.1
    )


def whole_spectrogram(samples: Float32Array) -> Float32Array:
    """The same from librosa's own transform, in one piece, before Whisper's scale."""
    spectrum = librosa.stft(
        samples, n_fft=400, hop_length=160, window="hann", center=True, pad_mode="reflect"
    )
    mel = mel_filters() @ np.abs(spectrum[:, :-1]) ** 2
    return np.log10(np.maximum(mel, 1e-10)).astype(np.float32)


@pytest.mark.integration
@pytest.mark.parametrize("folder", [demo_folder, small_bundle])
def test_bundles_contain_the_filters_that_librosa_computes(folder: Callable[[], Path]) -> None:
    assert np.array_equal(
        filters_of(Bundle.load(folder())), librosa.filters.mel(sr=16000, n_fft=400, n_mels=80)
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("samples", "piece"), [(400, 4096), (480_001, 4096), (480_199, 10**7), (1_000_007, 4096)]
)
def test_blocks_equal_the_whole_spectrogram(samples: int, piece: int) -> None:
    recording = noise(samples)
    pieces = [recording[start : start + piece] for start in range(0, samples, piece)]
    joined = np.concatenate(list(log_power_blocks(pieces, mel_filters())), axis=1)
    whole = whole_spectrogram(recording)
    assert joined.shape == whole.shape
    assert np.abs(joined - whole).max() < BLOCKS_AGREE


@pytest.mark.parametrize(
    ("samples", "runs", "features", "frames"),
    [(300, 1, 1, 1), (480_001, 1, 1500, 751), (480_640, 2, 1502, 751)],
)
def test_lengths(samples: int, runs: int, features: int, frames: int) -> None:
    encoder = Echo()
    encoded = encode_audio(lambda: [noise(samples)], encoder, mel_filters())
    assert encoder.runs == runs
    assert encoded.features.shape == (features, LAYERS, WIDTH)
    assert encoded.windows.shape == (frames, 10 * LAYERS, WIDTH)
    assert encoded.duration_s == Fraction(samples, 16000)


def test_windows_on_demand_equal_those_of_the_whole() -> None:
    recording = noise(16000 * 65)
    whole = encode_audio(lambda: [recording], Echo(), mel_filters())
    stream = SpeechStream(lambda: [recording], Echo(), mel_filters())
    for start in range(0, len(whole.windows), 16):
        frames = range(start, min(start + 16, len(whole.windows)))
        assert np.array_equal(stream.windows(times_s(frames)), whole.windows[start : start + 16])


def test_features_of_real_speech(assets: Path, reference: Path) -> None:
    torch = pytest.importorskip("torch")
    from latentsync_trt.export.checkpoints import load_whisper

    network = load_whisper(reference / "small" / "whisper.pt", torch.float32)

    def encode_mel(mel: Float32Array) -> Float32Array:
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(mel)).numpy())

    with wave.open(str(assets / "demo1_audio.wav")) as recording:
        samples = np.frombuffer(
            recording.readframes(recording.getnframes()), np.int16
        ) / np.float32(32768)
    encoded = encode_audio(lambda: [samples.astype(np.float32)], encode_mel, mel_filters())
    recorded = np.load(reference / "small" / "whisper_io.npz")
    assert encoded.features.shape == recorded["features"].shape
    scale = np.abs(recorded["features"]).max()
    assert np.abs(encoded.features - recorded["features"]).max() / scale < FEATURES_AGREE
    assert encoded.windows.shape[0] == 240
    assert np.abs(encoded.windows[:8] - recorded["chunks_first_40"]).max() / scale < FEATURES_AGREE


def test_frames_outside_the_recording_get_silence() -> None:
    """Repeated features would hold the mouth in its last position."""
    stream = SpeechStream(lambda: [noise(16_000)], Echo(), mel_filters())
    alone = SpeechStream(lambda: [noise(16_000)], Echo(), mel_filters()).windows(times_s(range(25)))
    windows = stream.windows(times_s(range(20, 40)))
    assert np.array_equal(windows[:5], alone[20:])
    after = windows[5:, :, 1]
    assert np.ptp(after) == 0
    assert after.max() < alone[..., 1].min()
    before = stream.windows([Fraction(-1, 1000), Fraction(1), Fraction(160)])
    assert np.array_equal(before, np.repeat(windows[-1:], 3, axis=0))
