"""What `--keep-mask` shows white stays as it is in the video."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.config import Extend
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.keep_mask import check_keep_mask
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.sync.inputs import check_inputs
from latentsync_trt.types import UInt8Array
from tests.clips import LOSSLESS, decoded, write_clip, write_sound, write_video

HEIGHT_PX, WIDTH_PX = 64, 96


def plain(level: int, count: int) -> list[UInt8Array]:
    return [np.full((HEIGHT_PX, WIDTH_PX, 3), level, np.uint8)] * count


def write_mask(path: Path, mask: UInt8Array) -> Path:
    cv2.imwrite(str(path), mask)
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "clip.mkv", plain(90, 10))


def levels_of(mask: Path, video: Path, playback: Playback) -> list[int]:
    """The level of the mask of each frame."""
    pictures = check_keep_mask(mask, video, probe(video)).pictures(playback.extend)
    frames = read_frames(video, playback)
    return [int(np.asarray(pictures.of(frame))[0, 0, 1]) for frame in frames]


def test_a_picture_is_the_mask_of_every_frame(video: Path, tmp_path: Path) -> None:
    still = write_mask(tmp_path / "mask.png", np.full((HEIGHT_PX, WIDTH_PX), 77, np.uint8))
    assert set(levels_of(still, video, Playback(duration_s=Fraction(1), extend="loop"))) == {77}


@pytest.mark.parametrize("frames", [8, 10, 12])
@pytest.mark.parametrize("extend", ["pingpong", "loop"])
def test_a_video_is_played_as_the_clip_is(
    video: Path, tmp_path: Path, extend: Extend, frames: int
) -> None:
    shown = [*plain(0, 4), *plain(255, frames - 4)]
    mask = write_video(tmp_path / "mask.mkv", shown, codec="ffv1")
    playback = Playback(duration_s=Fraction(3), extend=extend)
    levels = levels_of(mask, video, playback)
    source_s = [frame.source_s for frame in read_frames(video, playback)]
    assert levels == [255 * (time_s >= Fraction(4, 25)) for time_s in source_s]
    assert 0 in levels[40:]


@pytest.mark.parametrize("fps", [5, Fraction(25, 2)])
def test_a_mask_may_have_a_lower_rate(tmp_path: Path, fps: Fraction) -> None:
    video = write_video(tmp_path / "clip.mkv", plain(90, 20))
    count = int(fps * 20 / 25)
    shown = [*plain(0, count // 2), *plain(255, count - count // 2)]
    mask = write_video(tmp_path / "mask.mkv", shown, fps, codec="ffv1")
    playback = Playback(duration_s=Fraction(4), extend="pingpong")
    source_s = [frame.source_s for frame in read_frames(video, playback)]
    expected = [255 * (time_s >= Fraction(2, 5)) for time_s in source_s]
    assert levels_of(mask, video, playback) == expected


def test_a_video_of_few_pictures_is_no_picture(video: Path, tmp_path: Path) -> None:
    mask = write_video(tmp_path / "mask.mkv", plain(255, 5), 5)
    with pytest.raises(InputError, match=r"lasts 1\.00 s"):
        check_keep_mask(mask, video, probe(video))


def test_the_video_itself_is_refused(video: Path) -> None:
    with pytest.raises(InputError, match="is the video itself"):
        check_keep_mask(video, video, probe(video))


def test_a_transparent_mask_needs_a_background(video: Path, tmp_path: Path) -> None:
    levels = np.full((HEIGHT_PX, WIDTH_PX, 4), 255, np.uint8)
    levels[:20, :, 3] = 0
    mask = write_mask(tmp_path / "mask.png", levels)
    with pytest.raises(MediaError, match=r"mask\.png: is transparent; put it on a background"):
        check_keep_mask(mask, video, probe(video))


def test_the_mask_is_not_replaced_by_the_output(video: Path, tmp_path: Path) -> None:
    mask = write_video(tmp_path / "mask.mkv", plain(255, 10))
    options = SyncOptions(keep_mask=mask, overwrite=True)
    sound = write_sound(tmp_path / "speech.wav", 0.4)
    with pytest.raises(InputError, match="is also an input"):
        check_inputs(video, sound, mask, options)


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
