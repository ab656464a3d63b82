"""Windows that are denoised together, on real graphs of variable shapes."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.config import RuntimeOptions
from tests import narrow
from tests.clips import decoded, write_face, write_sound

pytestmark = pytest.mark.integration

SAME_LEVELS = 3
"""Half precision, and sums in another order for another batch; on random weights most pixels clip to black or white."""


@pytest.mark.slow
def test_windows_denoised_together_look_the_same_as_alone(dynamic_half_bundle: Path, tmp_path: Path) -> None:
    clip = write_face(tmp_path / "face.mp4", 3 * narrow.FRAMES)
    sound = write_sound(tmp_path / "speech.wav", 3 * narrow.FRAMES / 25, clicks_s=(0.2,))
    made = []
    for together in (1, 2):
        options = RuntimeOptions(windows_per_batch=together, engine_cache=tmp_path / "cache")
        with LipSync.from_bundle(dynamic_half_bundle, "cpu", options) as lip_sync:
            report = lip_sync.sync(clip, sound, tmp_path / "out.mkv", SyncOptions(steps=2, codec="ffv1"))
        assert (report.frames, report.windows) == (3 * narrow.FRAMES, 3)
        runs = {time.graph: time.runs for time in report.engines}
        assert runs["denoise_step"] == -(-3 // together)
        made.append(np.stack(decoded(tmp_path / "out.mkv")).astype(int))
    assert np.quantile(np.abs(made[0] - made[1]), 0.999) <= SAME_LEVELS
