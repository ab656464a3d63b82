"""Damaged files are read to their end or refused with an error of this package: never a crash, a
hang, or gigabytes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import audio_duration_s, read_audio_blocks
from latentsync_trt.media.playback import at_constant_rate
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import Clock, on_clock
from tests.clips import numbered, stamped, write_video
from tests.conftest import REPOSITORY
from tests.damaged import FORMATS, write_seed
from tests.sounds import write_samples

FILES = 99
FILES_THOROUGH = 3300
"""Multiples of the number of formats."""


@pytest.mark.integration
def test_damaged_files_are_read_or_refused(tmp_path: Path, thorough: bool) -> None:
    count = FILES_THOROUGH if thorough else FILES
    command = [sys.executable, "-m", "tests.damaged", str(tmp_path), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [problem for problems, _ in results for problem in problems] == []
    assert (done.returncode, len(results)) == (0, count), f"file {len(results)} ended the process"
    succeeded = [each for _, outcomes in results for each in outcomes]
    # else the damage is too heavy or too light to show anything
    assert 0.2 < sum(succeeded) / len(succeeded) < 0.9


def test_metadata_in_an_old_encoding_is_no_obstacle(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.avi", numbered(3), codec="mpeg4", options={})
    text = "Schöne Grüße".encode("latin-1")
    info = b"INFOINAM" + len(text).to_bytes(4, "little") + text
    content = clip.read_bytes() + b"LIST" + len(info).to_bytes(4, "little") + info
    size = len(content) - 8
    clip.write_bytes(content[:4] + size.to_bytes(4, "little") + content[8:])
    with pytest.raises(UnicodeDecodeError):
        av.open(str(clip))
    assert probe(clip).width_px == 96
    assert len(list(read_frames(clip))) == 3


@pytest.mark.parametrize("suffix", [".mkv", ".ts"])
def test_damaged_pictures_are_marked(tmp_path: Path, suffix: str) -> None:
    """Of which bytes are wrong, or a part is missing."""
    noise = np.random.default_rng(4).integers(0, 256, (20, 64, 96, 3), np.uint8)
    clip = write_video(
        tmp_path / f"clip{suffix}", noise, options={"preset": "ultrafast", "bf": "0"}
    )
    assert not any(frame.damaged for frame in read_frames(clip))
    content = clip.read_bytes()
    at = len(content) // 2 // 188 * 188
    clip.write_bytes(content[:at] + (bytes(188) if suffix == ".mkv" else b"") + content[at + 188 :])
    damaged = [frame.index for frame in read_frames(clip) if frame.damaged]
    assert damaged and 8 <= min(damaged) <= max(damaged) <= 11


@pytest.mark.parametrize(("end_s", "pictures"), [(1, 25), (Fraction(1, 100), 1), (None, 3600 * 25)])
def test_a_picture_that_claims_to_last_for_a_day_ends_with_the_file(
    end_s: Fraction | None, pictures: int
) -> None:
    clock = Clock(Path(), stated_end_s=None if end_s is None else Fraction(end_s))
    day = on_clock([stamped(Fraction(0), Fraction(86_400))], clock, Fraction(1, 25))
    assert len(list(at_constant_rate(day, 25))) == pictures


def test_a_picture_of_impossible_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = write_seed(tmp_path, FORMATS[-1])
    content = bytearray(path.read_bytes())
    content[6:10] = (16_000).to_bytes(2, "little") * 2
    path.write_bytes(content)
    for read in (probe, lambda path: list(read_frames(path))):
        with pytest.raises(MediaError, match=r"seed\.gif: .* 36 million pixels"):
            read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
@pytest.mark.parametrize("read", [probe, audio_duration_s])
def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    for path in (tmp_path / "pipe.mp4", Path("/dev/null")):
        with pytest.raises(MediaError, match=f"{path}: is a pipe"):
            read(path)


def test_errors_count_from_the_start_of_the_clip(tmp_path: Path) -> None:
    """Its stamps begin at 5000 s; the second of two parts of ten pictures has another size."""
    joined = tmp_path / "joined.ts"
    with joined.open("wb") as target:
        for part in range(2):
            times = list(range(5_000_000 + 400 * part, 5_000_400 + 400 * part, 40))
            pictures = numbered(10, 64 * (part + 1), 96 * (part + 1))
            target.write(write_video(tmp_path / "part.ts", pictures, times=times).read_bytes())
    with pytest.raises(MediaError, match=r"joined\.ts: .* 0\.3\d s; .* 192×"):
        list(read_frames(joined))


def test_a_sample_rate_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "sound.wav", np.zeros(1000, np.float32), 4_000_001)
    with pytest.raises(MediaError, match=r"sound\.wav: .* 4000001 samples"):
        next(read_audio_blocks(path))
