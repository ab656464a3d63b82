"""Output that cannot be written: an `OutputError` that says why, and nothing left behind."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.output_path import check_output_path
from latentsync_trt.media.parts import ResumeRequest
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.writer import VideoWriter
from tests.clips import decoded, frame_at, numbered, open_writer, write_video
from tests.sounds import spoken, write_samples

NOISE = np.random.default_rng(6).integers(0, 256, (64, 96, 3), np.uint8)


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Files of this process cannot grow beyond a size, as on a full disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_noise(path: Path, sound: Path) -> None:
    """Several kB per frame, as many each time: files of x264 may differ."""
    with open_writer(path, audio=sound, codec="prores") as writer:
        for index in range(25):
            writer.write(frame_at(index, NOISE))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("name", ["out.mov", "out.mkv"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, name: str) -> None:
    """While it is written, and on closing: the index comes last, at the end of Matroska files, and
    at the front of others, which moves all the rest. The part with the picture alone has room.
    """
    sound = write_samples(tmp_path / "sound.wav", spoken(2, 16_000), 16_000)
    output = tmp_path / "full" / name
    write_noise(tmp_path / name, sound)
    size_bytes = (tmp_path / name).stat().st_size
    output.parent.mkdir()
    output.write_bytes(b"earlier output")
    for limit in (size_bytes // 2, size_bytes - 20):
        with (
            largest_file(limit),
            pytest.raises(OutputError, match=rf"{name}: .*File too large"),
        ):
            write_noise(output, sound)
        assert [*output.parent.iterdir()] == [output]
        assert output.read_bytes() == b"earlier output"


LINKS = pytest.mark.skipif(os.name == "nt", reason="needs a right on Windows")
NOT_AS_ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder.mp4", "is a folder"),
        ("protected.mp4/out.mp4", "protected.mp4: is a file"),
        pytest.param("loop.mp4", "leads back to itself", marks=LINKS),
        pytest.param("nowhere.mp4", "folder does not exist", marks=LINKS),
        pytest.param("locked/out.mp4", "not writable", marks=NOT_AS_ROOT),
        pytest.param("protected.mp4", "is write-protected", marks=NOT_AS_ROOT),
        pytest.param(
            "device.mp4",
            "a device or a pipe",
            marks=pytest.mark.skipif(os.name == "nt", reason="no devices"),
        ),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "locked").mkdir(0o500)
    (tmp_path / "protected.mp4").touch(0o400)
    if os.name != "nt":
        (tmp_path / "loop.mp4").symlink_to(tmp_path / "loop.mp4")
        (tmp_path / "nowhere.mp4").symlink_to(tmp_path / "not mounted" / "out.mp4")
    if name == "device.mp4":
        (tmp_path / name).symlink_to(os.devnull)
    with pytest.raises((InputError, OutputError), match=message) as caught:
        check_output_path(tmp_path / name, overwrite=True)
    assert caught.value.usage
    check_output_path(tmp_path / "ok.MP4", overwrite=False)


@pytest.mark.parametrize("parts", [1, 2])
def test_an_output_that_cannot_be_replaced_in_the_end_is_kept_beside_it(
    tmp_path: Path, parts: int
) -> None:
    """As a mount point, and on Windows a file that a player has open; here by a folder that
    appeared meanwhile.
    """
    output = tmp_path / "out.mp4"
    earlier = tmp_path / "out-1.mp4"
    earlier.write_bytes(b"of an earlier run")
    resume = ResumeRequest({}) if parts > 1 else None
    info = replace(picture_info(64, 64, rgb=False), frames_per_s=Fraction(1), time_base=Fraction(1))
    writer = VideoWriter(output, info, choose_encoder(SyncOptions(), info), resume=resume)
    with (
        pytest.raises(OutputError, match=r"/out\.mp4: .*out-2\.") as caught,
        writer,
    ):
        for index in range(30 * parts):
            frame = frame_at(index, np.zeros((64, 64, 3), np.uint8))
            writer.write(replace(frame, time_s=Fraction(index), duration_s=Fraction(1)))
        output.mkdir()
    assert not hasattr(caught.value, "__notes__")  # that --resume would go on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-1.mp4", "out-2.mp4", "out.mp4"]
    assert len(decoded(tmp_path / "out-2.mp4")) == 30 * parts
    assert earlier.read_bytes() == b"of an earlier run"


def test_an_output_that_is_also_an_input_is_refused(tmp_path: Path) -> None:
    """A hard link is what another case is on a disk that does not tell cases apart: one file with
    two names.
    """
    clip = write_video(tmp_path / "clip.mp4", numbered(2))
    (tmp_path / "CLIP.MP4").hardlink_to(clip)
    (tmp_path / "link.mp4").symlink_to(clip)
    (tmp_path / "sub").mkdir()
    for name in ("CLIP.MP4", "link.mp4", "sub/../clip.mp4"):
        with pytest.raises(InputError, match="is also an input"):
            check_output_path(tmp_path / name, clip, overwrite=True)
