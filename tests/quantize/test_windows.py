"""Recorded windows: those of a usual run, spread over the clip."""

from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import AUDIO_ENCODER, VAE_ENCODER, Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.quantize.calibration_options import CalibrationClip, clips_in
from latentsync_trt.quantize.windows import record
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.selection import Selection
from tests.clips import write_face, write_sound
from tests.small import small_bundle

pytestmark = pytest.mark.integration

WINDOWS = 2


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    bundle = Bundle.load(small_bundle(), verify=False)
    graphs = (AUDIO_ENCODER, VAE_ENCODER)
    with closing(open_model(bundle, Selection("cpu"), RuntimeOptions(), graphs)) as opened:
        yield opened


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> CalibrationClip:
    """40 frames: two windows and one that is shifted back; the sound is longer, and pixels are
    higher than wide.
    """
    folder = tmp_path_factory.mktemp("clip")
    video = write_face(folder / "face.mp4", 40, pixel_aspect=Fraction(8, 9))
    return CalibrationClip(video, write_sound(folder / "speech.wav", 2.0))


def batches_of_a_run(
    lip_sync: LipSync, clip: CalibrationClip, target: Path
) -> list[tuple[Any, ...]]:
    """The denoiser's inputs in a usual run, up to the last that is compared."""
    batches: list[tuple[Any, ...]] = []
    original = GraphDenoiser.begin

    def remember(denoiser: GraphDenoiser, *window: Any) -> None:
        batches.append(window)
        if len(batches) == WINDOWS:
            raise EOFError
        original(denoiser, *window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphDenoiser, "begin", remember)
        with pytest.raises(EOFError):
            lip_sync.sync(
                clip.video,
                clip.audio,
                target,
                SyncOptions(steps=1, guidance=1.0, length="shortest"),
            )
    return batches


def test_windows_are_those_of_a_usual_run(
    model: Model,
    lip_sync: LipSync,
    detector: MediaPipeDetector,
    clip: CalibrationClip,
    tmp_path: Path,
) -> None:
    progress: list[tuple[int, int]] = []
    recorded = record(
        clip, WINDOWS, model, detector, lambda done, total: progress.append((done, total))
    )
    usual = batches_of_a_run(lip_sync, clip, tmp_path / "out.mp4")
    assert len(recorded) == WINDOWS
    assert progress == [(frame, 40) for frame in range(1, 41)]
    for number, window in enumerate(recorded):
        latents, conditioning, audio, _ = usual[number]
        np.testing.assert_array_equal(np.broadcast_to(window.noise[0], latents.shape), latents)
        np.testing.assert_array_equal(window.conditioning, conditioning)
        np.testing.assert_array_equal(window.audio, audio)


def test_a_folder_pairs_videos_with_audio_files_of_the_same_name(tmp_path: Path) -> None:
    for name in ("b.mov", "a.mp4", "a.wav", "c.flac", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "d.mp4").mkdir()
    paired = CalibrationClip(tmp_path / "a.mp4", tmp_path / "a.wav")
    unpaired = CalibrationClip(tmp_path / "b.mov", tmp_path / "b.mov")
    assert clips_in(tmp_path) == [paired, unpaired]
    with pytest.raises(InputError, match="no such folder"):
        clips_in(tmp_path / "nowhere")
