"""Where memory is short: one network at a time is open, with the same result, or one clear line
says why not.
"""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import OutOfMemory
from tests.clips import LOSSLESS, decoded, write_clip
from tests.compiling import COMPILING, CopyBuilder
from tests.device import DemoModels, Device, denoised, out_of_memory
from tests.small import small_bundle

pytestmark = pytest.mark.integration


def test_low_memory_keeps_one_network_and_paints_the_same(
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    device: Device,
    tmp_path: Path,
) -> None:
    with LipSync.from_bundle(small_bundle(), "cpu", RuntimeOptions(low_memory=True)) as lip_sync:
        report = lip_sync.sync(*three_windows, tmp_path / "out.mkv", LOSSLESS)
    assert device.most_networks == 1
    assert report.windows == 3
    # for all windows of a group, else networks would be reloaded
    assert device.opened.count("denoise_step") == 1
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), three_windows_synced)


@pytest.mark.parametrize(
    ("free_bytes", "mode"), [(10**8, "one network at a time"), (10**11, "pipelined")]
)
def test_free_memory_decides_before_anything_is_open(
    make: DemoModels, device: Device, builder: CopyBuilder, free_bytes: int, mode: str
) -> None:
    builder.free_bytes = free_bytes
    model = make(COMPILING)
    assert model.memory_plan.mode == mode
    notices = [notice for notice in model.notices if "memory of the device is short" in notice]
    assert (len(device.networks()), len(notices)) == ((3, 0) if mode == "pipelined" else (0, 1))
    if notices:
        for _ in range(2):
            assert np.isfinite(denoised(model)).all()
            model.audio_encoder(np.zeros((1, 80, 3000), np.float32))
        assert device.most_networks == 1
        # no buffer or binding keeps the denoiser alive
        assert device.networks() == {"audio_encoder.weights"}
        assert "1.7 GB, 0.1 GB is free): one network " in notices[0]


OPERATIONS = (
    "InferenceSession",
    "InferenceSession.run_with_iobinding",
    "OrtValue.ortvalue_from_shape_and_type",
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_too_little_memory_is_an_error_that_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def refuse(*_: object, **options: object) -> None:
        raise out_of_memory()

    (folder := tmp_path / "out").mkdir()
    clip = write_clip(tmp_path, 4)
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync, monkeypatch.context() as patch:
        patch.setattr(f"onnxruntime.{operation}", refuse)
        with pytest.raises(OutOfMemory, match=r"use --low-memory \(with --resume,"):
            lip_sync.sync(*clip, folder / "out.mkv", LOSSLESS)
    assert list(folder.iterdir()) == []
