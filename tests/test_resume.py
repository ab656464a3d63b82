"""Long runs: stopped, killed and gone on with by the command itself, over short parts."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from latentsync_trt import Helpers, LipSync, SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError, OutOfMemory
from latentsync_trt.files import work_folder_of
from latentsync_trt.media.parts import FinishedParts
from latentsync_trt.sync.fingerprint import fingerprint
from latentsync_trt.sync.inputs import check_inputs
from latentsync_trt.types import Progress
from tests.clips import camera_frames, write_clip, write_sound, write_video
from tests.small import small_bundle

MINUTES = 20
LONG_FPS = 10
"""The lowest rate at which no picture is repeated."""

MOST_GROWTH_MB = 60
"""Of memory over twenty minutes, of which allocators keep most, and over joining the parts: after
the first quarter, it stays within 10 MB but for single peaks of 30, as measured.
"""

OPTIONS = SyncOptions(steps=1, guidance=1.0, codec="ffv1")

WITH_PARTS = """
import signal, sys
from fractions import Fraction
from itertools import count
from latentsync_trt.__main__ import main
from latentsync_trt.media import parts
parts.PART_S = Fraction(sys.argv.pop(1))
last, written, write = int(sys.argv.pop(1)), count(), parts.PartWriter.write
def stopped(*picture):
    if next(written) == last:
        signal.raise_signal(signal.SIGINT)
    write(*picture)
parts.PartWriter.write = stopped
main()
"""


def content(path: Path) -> list[tuple[int | None, int]]:
    """Stamp and a hash of each picture."""
    with av.open(str(path)) as container:
        return [
            (frame.pts, hash(frame.to_ndarray().tobytes())) for frame in container.decode(video=0)
        ]


def words(folder: Path, *more: object) -> list[str]:
    """`sync` of `write_clip` in `folder`."""
    files = (
        "--video",
        folder / "face.mp4",
        "--audio",
        folder / "speech.wav",
        "-o",
        folder / "out.mkv",
    )
    model = (
        "--bundle",
        small_bundle(),
        "--provider",
        "cpu",
        "--steps",
        1,
        "--guidance",
        1,
        "--codec",
        "ffv1",
    )
    return [*map(str, ("sync", *files, *model, *more))]


def command(folder: Path, *more: object, part_s: object = "2/5", last: int = -1) -> list[str]:
    """`last`: number of the frame while which is written it is stopped as by Ctrl-C."""
    return [sys.executable, "-c", WITH_PARTS, str(part_s), str(last), *words(folder, *more)]


@contextmanager
def running(arguments: list[str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_parts_are_closed(process: "subprocess.Popen[str]", output: Path, count: int = 1) -> None:
    while (finished := FinishedParts.read(work_folder_of(output))) is None or len(
        finished.parts
    ) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.integration
@pytest.mark.usefixtures("short_parts")
def test_a_stopped_run_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    """After the frame that is being written, in the middle of a part. Also where the output
    replaces an older one, which stays until the end; only then is the run one of the past.
    """
    write_clip(tmp_path, 20, halved=True)
    output = tmp_path / "out.mkv"
    output.write_bytes(b"older")
    stopped = subprocess.run(
        command(tmp_path, "--overwrite", last=13), capture_output=True, text=True
    )
    assert stopped.returncode == 130
    assert "--resume" in stopped.stderr
    assert output.read_bytes() == b"older"
    kept = FinishedParts.read(work_folder_of(output))
    assert kept is not None
    assert [len(part.stamps) for part in kept.parts] == [10, 4]
    resumed = CliRunner().invoke(main, words(tmp_path, "--resume"))
    assert resumed.exit_code == 0, resumed.stderr
    assert f"{output}: goes on after 0:00:0" in resumed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["face.mp4", "out.mkv", "speech.wav"]
    assert len(content(output)) == 20


def failing_at(done: int, stages: list[str]) -> Callable[[Progress], None]:
    def note(progress: Progress) -> None:
        stages.append(progress.stage)
        if progress.stage == "lip-sync" and progress.done == done:
            raise OutOfMemory("too little memory")

    return note


@pytest.mark.integration
@pytest.mark.usefixtures("short_parts")
def test_a_run_gone_on_with_has_the_same_frames(tmp_path: Path, lip_sync: LipSync) -> None:
    """Also where it stops within a part, and a window and a fade cross the end of one, with face
    tracks, pasting and encoding of two lives.
    """
    clip = write_clip(tmp_path, 26, halved=True)
    options = replace(OPTIONS, start=Fraction(8, 25))
    seen: list[int] = []
    lip_sync.sync(*clip, tmp_path / "whole.mkv", options)
    with pytest.raises(OutOfMemory):
        lip_sync.sync(*clip, tmp_path / "out.mkv", options, on_progress=failing_at(17, []))
    going_on = replace(options, resume=True)
    report = lip_sync.sync(
        *clip, tmp_path / "out.mkv", going_on, on_progress=lambda at: seen.append(at.done)
    )
    assert report.frames == 26
    assert sorted({done for done in seen if done})[:2] == [17, 18]
    assert content(tmp_path / "out.mkv") == content(tmp_path / "whole.mkv")


@pytest.mark.integration
@pytest.mark.usefixtures("short_parts")
def test_a_run_that_has_no_frame_left_to_write_takes_only_its_own_time(
    tmp_path: Path, lip_sync: LipSync
) -> None:
    clip = write_clip(tmp_path, 20, halved=True)

    def fails_at_the_end(progress: Progress) -> None:
        if progress.stage == "finishing":
            raise OutOfMemory("too little memory")

    with pytest.raises(OutOfMemory):
        lip_sync.sync(*clip, tmp_path / "out.mkv", OPTIONS, on_progress=fails_at_the_end)
    report = lip_sync.sync(*clip, tmp_path / "out.mkv", replace(OPTIONS, resume=True))
    assert report.frames == 20
    assert report.windows == 0
    assert report.frames_per_s == 0
    assert 0 <= report.finish_s <= report.wall_s - report.opened_s


def test_a_run_goes_on_after_its_folder_has_moved(tmp_path: Path) -> None:
    """Also by other names of the same files, but not with other noise, or another detector."""
    (tmp_path / "a").mkdir()
    write_clip(tmp_path / "a", 3)
    write_sound(tmp_path / "a" / "mix.wav", 1)

    def made_of(folder: Path, **brought: Any) -> dict[str, str]:
        options = SyncOptions(mix=folder / "mix.wav")
        helpers = Helpers(**brought)
        inputs = check_inputs(
            folder / "face.mp4", folder / "speech.wav", folder / "out.mp4", options, helpers
        )
        return fingerprint(inputs, small_bundle(), "cpu")

    before = made_of(tmp_path / "a", noise=np.zeros(4), detector=OPTIONS)
    (tmp_path / "a").rename(tmp_path / "b")
    with chdir(tmp_path / "b"):
        assert made_of(Path(), noise=np.zeros(4), detector=OPTIONS) == before
        assert before["--mix"].startswith("mix.wav, ")
        for other in (
            {},
            {"noise": np.ones(4), "detector": OPTIONS},
            {"noise": np.zeros(4), "detector": 5},
        ):
            assert made_of(Path(), **other) != before


@pytest.mark.integration
@pytest.mark.usefixtures("short_parts")
def test_changed_files_are_noticed_before_networks_open(tmp_path: Path, lip_sync: LipSync) -> None:
    clip = write_clip(tmp_path, 12, halved=True)
    output = tmp_path / "out.mkv"
    stages = list[str]()
    with pytest.raises(OutOfMemory):
        lip_sync.sync(*clip, output, OPTIONS, on_progress=failing_at(11, stages))
    os.utime(clip[0], (1e9, 1e9))
    stages.clear()
    going_on = replace(OPTIONS, resume=True, seed=5)
    with pytest.raises(InputError, match=r"--video \(face\.mp4, .* → .*2001-09-09T01:46:40"):
        lip_sync.sync(*clip, output, going_on, on_progress=failing_at(11, stages))
    assert "opening networks" not in stages
    assert work_folder_of(output).exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_twenty_minutes_in_little_memory_and_killed(tmp_path: Path) -> None:
    """At a random moment: the result has the same frames as that of a run that nobody stopped."""
    faces = [
        cv2.resize(rgb, (160, 160), interpolation=cv2.INTER_AREA)
        for rgb in camera_frames(Fraction(1))
    ]
    # a face for 1 s of 20
    shown = [*faces[:LONG_FPS], *(np.full_like(faces[0], 128) for _ in range(19 * LONG_FPS))]
    write_video(tmp_path / "face.mp4", islice(cycle(shown), MINUTES * 60 * LONG_FPS), LONG_FPS)
    write_sound(tmp_path / "speech.wav", MINUTES * 60)
    output = tmp_path / "out.mkv"
    memory_mb = list[float]()
    with running(command(tmp_path, "-q", part_s=30)) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            memory_mb.append(watched.memory_info().rss / 1e6)
            time.sleep(0.2)
        assert process.returncode == 0, process.communicate()
    quarter = len(memory_mb) // 4
    assert max(memory_mb) < max(memory_mb[:quarter]) + MOST_GROWTH_MB, memory_mb[
        quarter :: quarter // 4
    ]
    expected = content(output)
    assert len(expected) == MINUTES * 60 * LONG_FPS
    output.unlink()
    with running(command(tmp_path, "-q", part_s=30)) as process:
        until_parts_are_closed(
            process, output, random.Random(os.environ.get("SEED", "11")).randrange(1, MINUTES)
        )
        process.kill()
    result = subprocess.run(
        command(tmp_path, "--resume", part_s=30), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert f"{output}: goes on after" in result.stderr
    assert content(output) == expected
