"""HDR: the curve that the networks' SDR rendition comes from, its inverse, and what stays as it
was.
"""

from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
from av.sidedata.sidedata import Type

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.color import apply_patch
from latentsync_trt.media.conversion import frame_from_planes, metadata_of
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.hdr import HLG, PQ, hdr_curve
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.media.reader import probe
from latentsync_trt.types import ColorTags, HdrMetadata, Patch, UInt8Array, VideoInfo, YuvPlanes
from tests.clips import camera_frames, write_sound, write_video
from tests.pictures import SAMPLINGS, decoded_planes, noise


@pytest.mark.parametrize(("transfer", "peak"), [(PQ, 0.7518271), (HLG, 1.0)])
def test_a_thousand_candelas_become_white_and_painted_levels_come_back(
    transfer: int, peak: float
) -> None:
    curve = hdr_curve(transfer)
    assert curve is not None
    levels = [int(curve.sdr[round(65535 * signal)]) for signal in (0, peak - 0.02, peak, 1)]
    assert levels == [0, pytest.approx(250, abs=4), 255, 255]
    assert curve.signal[65535] == pytest.approx(peak, abs=1e-6)
    painted = np.arange(0, 65536, 257, np.uint16)
    assert np.array_equal(
        curve.sdr[np.rint(65535 * curve.signal[painted]).astype(np.uint16)], np.arange(256)
    )


IN_PQ = ColorTags(9, PQ, 9, full_range=False)


def in_hdr(rgb: UInt8Array) -> av.VideoFrame:
    """A picture in 10-bit 4:2:0 whose SDR rendition is `rgb`."""
    height, width = rgb.shape[:2]
    black = np.uint16(64)
    gray = np.uint16(512)
    half = np.full((height // 2, width // 2), gray)
    planes = np.full((height, width), black), half, half.copy()
    patch = Patch(0, 0, rgb * np.uint16(257), np.ones((height, width), np.float32))
    return frame_from_planes(YuvPlanes(*planes, IN_PQ, 10), width, height, [patch])


@pytest.mark.integration
def test_only_the_mouth_of_an_hdr_clip_changes(tmp_path: Path, lip_sync: LipSync) -> None:
    frames = map(in_hdr, islice(camera_frames(Fraction(1)), 3))
    source = write_video(
        tmp_path / "face.mkv", frames, codec="ffv1", pixel_format="yuv420p10le", color=IN_PQ
    )
    sound = write_sound(tmp_path / "speech.wav", 0.12)
    output = tmp_path / "out.mkv"
    report = lip_sync.sync(source, sound, output, SyncOptions(steps=1, guidance=1.0, codec="ffv1"))
    assert report.frames_with_face == 3
    assert probe(output).color == probe(source).color == IN_PQ
    for (name, (luma, *_)), (new_name, (new_luma, *_)) in zip(
        decoded_planes(source), decoded_planes(output), strict=True
    ):
        assert name == new_name == "yuv420p10le"
        changed = np.argwhere(luma != new_luma)
        assert len(changed)
        height, width = changed.max(0) - changed.min(0)
        assert height * width < luma.size / 4


@pytest.mark.parametrize("transfer", [PQ, HLG])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_the_networks_left_unchanged_keeps_its_light(sampling: str, transfer: int) -> None:
    """Also where it is brighter than their rendition shows; what they changed has the level that
    they gave it.
    """
    planes = noise((47, 65), sampling, 10, ColorTags(9, transfer, 9, full_range=False))
    seen = LazyRgb(planes)[3:40, 5:60] * np.uint16(257)
    same = apply_patch(planes, Patch(5, 3, seen, np.ones(seen.shape[:2], np.float32)))
    for plane, new in zip((planes.y, planes.u, planes.v), (same.y, same.u, same.v), strict=True):
        assert np.array_equal(plane, new)


def test_dolby_vision_needs_a_picture_for_other_displays() -> None:
    with pytest.raises(InputError, match=r"Dolby Vision"):
        metadata_of(2, {Type.DOVI_METADATA: b""})
    compatible = metadata_of(HLG, {Type.DOVI_METADATA: b"", Type.DYNAMIC_HDR_PLUS: b""})
    assert compatible == HdrMetadata(dynamic=("Dolby Vision", "HDR10+"))
    info = VideoInfo(
        64, 64, None, "yuv420p10le", False, Fraction(1), ColorTags(9, HLG, 9), hdr=compatible
    )
    (notice,) = choose_encoder(SyncOptions(), info).notices
    assert "Dolby Vision and HDR10+" in notice
