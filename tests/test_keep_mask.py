"""What `--keep-mask` shows white stays as it is in the video."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import LipSync
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.keep_mask import check_keep_mask
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import UInt8Array
from tests.clips import LOSSLESS, decoded, write_clip, write_video

HEIGHT_PX, WIDTH_PX = 64, 96


def plain(level: int, count: int) -> list[UInt8Array]:
    return [np.full((HEIGHT_PX, WIDTH_PX, 3), level, np.uint8)] * count


def write_mask(path: Path, mask: UInt8Array) -> Path:
    cv2.imwrite(str(path), mask)
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "clip.mkv", plain(90, 10))


def test_a_picture_is_the_mask_of_every_frame(video: Path, tmp_path: Path) -> None:
    still = np.zeros((HEIGHT_PX, WIDTH_PX), np.uint8)
    still[:20] = 255
    mask = check_keep_mask(write_mask(tmp_path / "mask.png", still), video, probe(video))
    pictures = mask.pictures(Playback(duration_s=Fraction(1), extend="loop"))
    for time_s in (Fraction(0), Fraction(9, 10)):
        assert np.array_equal(np.asarray(pictures.at(time_s))[..., 1], still)


def test_a_video_is_played_as_the_clip_is(video: Path, tmp_path: Path) -> None:
    mask = write_video(tmp_path / "mask.mkv", [*plain(0, 4), *plain(255, 6)], codec="ffv1")
    playback = Playback(duration_s=Fraction(1), extend="pingpong")
    pictures = check_keep_mask(mask, video, probe(video)).pictures(playback)
    frames = list(read_frames(video, playback))
    levels = [int(np.asarray(pictures.at(frame.time_s))[0, 0, 1]) for frame in frames]
    assert levels == [255 * (frame.source_s >= 4 * frame.duration_s) for frame in frames]
    assert 0 in levels[10:]


@pytest.mark.parametrize(
    ("size_px", "frames"), [((WIDTH_PX, 2 * HEIGHT_PX), 1), ((WIDTH_PX, HEIGHT_PX), 4)]
)
def test_another_size_or_length_is_refused(
    video: Path, tmp_path: Path, size_px: tuple[int, int], frames: int
) -> None:
    pictures = [np.zeros((size_px[1], size_px[0], 3), np.uint8)] * frames
    mask = write_video(tmp_path / "mask.mkv", pictures)
    with pytest.raises(InputError, match="--keep-mask"):
        check_keep_mask(mask, video, probe(video))


def test_what_cannot_be_read_is_refused(video: Path, tmp_path: Path) -> None:
    broken = tmp_path / "mask.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(MediaError, match=r"mask\.png"):
        check_keep_mask(broken, video, probe(video))


def test_the_painted_mouth_changes_only_where_the_mask_is_black(
    lip_sync: LipSync, tmp_path: Path
) -> None:
    clip, sound = write_clip(tmp_path, 6)
    before = np.stack(decoded(clip)).astype(int)
    lip_sync.sync(clip, sound, tmp_path / "all.mkv", LOSSLESS)
    changed = (np.stack(decoded(tmp_path / "all.mkv")) != before).any(axis=(0, 3))
    left = np.zeros(changed.shape, np.uint8)
    left[:, : changed.shape[1] // 2] = 255
    assert changed[left > 0].any()

    mask = write_mask(tmp_path / "mask.png", left)
    lip_sync.sync(clip, sound, tmp_path / "half.mkv", replace(LOSSLESS, keep_mask=mask))
    after = np.stack(decoded(tmp_path / "half.mkv"))
    assert np.array_equal(after[:, left > 0], before[:, left > 0])
    assert (after[:, left == 0] != before[:, left == 0]).any()
