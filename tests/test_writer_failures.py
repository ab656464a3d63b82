"""Output that cannot be written: an `OutputError` that says why, and nothing left behind."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.media import muxing
from latentsync_trt.media.codecs import choose_encoder
from latentsync_trt.media.parts import Work, joined
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.writer import VideoWriter, check_output_path
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
        for index in range(40):
            writer.write(frame_at(index, NOISE))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("name", ["out.mov", "out.mkv"])
@pytest.mark.parametrize("when", ["while writing", "on closing"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, name: str, when: str) -> None:
    sound = write_samples(tmp_path / "sound.wav", spoken(2, 16_000), 16_000)
    (tmp_path / "whole").mkdir()
    write_noise(tmp_path / "whole" / name, sound)
    size_bytes = (tmp_path / "whole" / name).stat().st_size
    # The index is written last: at the end of Matroska files, and at the front of others, which moves all the rest. The
    # part with the picture alone has room.
    limit = size_bytes // 2 if when == "while writing" else size_bytes - 20
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / name).write_bytes(b"earlier output")
    with largest_file(limit), pytest.raises(OutputError, match=rf"{name}: cannot be written: File too large"):
        write_noise(folder / name, sound)
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_bytes() == b"earlier output"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.webm", "cannot write .webm"),
        ("folder.mp4", "is a folder"),
        ("protected.mp4/out.mp4", "protected.mp4: is a file"),
        ("locked/out.mp4", "not writable"),
        ("protected.mp4", "is write-protected"),
        (f"{'a' * 300}.mp4", "cannot be written"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    for folder in ("folder.mp4", "locked"):
        (tmp_path / folder).mkdir()
    (tmp_path / "protected.mp4").touch()
    # Root, who runs many CIs, may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).stem not in ("locked", "protected"))
    with pytest.raises((InputError, OutputError), match=message) as caught:
        check_output_path(tmp_path / name, overwrite=True)
    assert caught.value.usage
    check_output_path(tmp_path / "ok.MP4", overwrite=False)


@pytest.mark.parametrize("parts", [1, 2])
def test_an_output_that_cannot_be_replaced_in_the_end_is_kept_beside_it(tmp_path: Path, parts: int) -> None:
    """As a mount point, and on Windows a file that a player has open; here by a folder that appeared meanwhile."""
    output, earlier = tmp_path / "out.mp4", tmp_path / "out-1.mp4"
    earlier.write_bytes(b"of an earlier run")
    work = Work({}) if parts > 1 else None
    info = replace(picture_info(64, 64, rgb=False), frames_per_s=Fraction(1), time_base=Fraction(1))
    writer = VideoWriter(output, info, choose_encoder(SyncOptions(), info), work=work)
    with pytest.raises(OutputError, match=r"out\.mp4: cannot be written: .* is kept as .*out-2\.mp4") as caught, writer:
        for index in range(30 * parts):
            frame = frame_at(index, np.zeros((64, 64, 3), np.uint8))
            writer.write(replace(frame, time_s=Fraction(index), duration_s=Fraction(1)))
        output.mkdir()
    assert not hasattr(caught.value, "__notes__")  # that --resume would go on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-1.mp4", "out-2.mp4", "out.mp4"]
    assert len(decoded(tmp_path / "out-2.mp4")) == 30 * parts
    assert earlier.read_bytes() == b"of an earlier run"


def test_an_output_that_is_also_an_input_is_refused(tmp_path: Path) -> None:
    """A hard link is what another case is on a disk that does not tell cases apart: one file with two names."""
    clip = write_video(tmp_path / "clip.mp4", numbered(2))
    (tmp_path / "CLIP.MP4").hardlink_to(clip)
    (tmp_path / "link.mp4").symlink_to(clip)
    (tmp_path / "sub").mkdir()
    for name in ("CLIP.MP4", "link.mp4", "sub/../clip.mp4"):
        with pytest.raises(InputError, match="is also an input"):
            check_output_path(tmp_path / name, clip, overwrite=True)


def written_bytes() -> int:
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["wchar"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads a Linux counter")
def test_a_stopped_run_does_not_finish_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To move the index of an MP4 to its front would write gigabytes again, after Ctrl-C."""
    marks = []

    def stopped(*arguments: Any) -> Iterator[Any]:
        marks.append(written_bytes())
        yield from joined(*arguments)
        marks.append(written_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(muxing, "joined", stopped)
    noise = np.random.default_rng(8).integers(0, 256, (480, 640, 3), np.uint8)
    info = picture_info(640, 480, rgb=False)
    with pytest.raises(KeyboardInterrupt), open_writer(tmp_path / "out.mp4", info, crf=0) as writer:
        for index in range(50):
            writer.write(frame_at(index, noise))
    start, last = marks
    assert (written_bytes() - last) < (last - start) / 10
    assert not list(tmp_path.iterdir())
