"""Times the stages of a clip that run on the CPU, each by itself and all at once, without any network but the faces'.

python scripts/measure_stages.py VIDEO [--runs 3]
"""

import argparse
import timeit
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from latentsync_trt.bench.rows import usable_cores
from latentsync_trt.bench.run import aligned_faces
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Paster
from latentsync_trt.media.codecs import choose_encoder, default_suffix
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.compose import Composer
from latentsync_trt.sync.faces import FaceFinder, FrameJob
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import Frame, Patch

RESOLUTION_PX = 512
QUEUE_DEPTH = 4
MOST_FRAMES = 50
"""Two seconds, half a gigabyte at 1080p: all frames of a stage are in memory while it is timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path, help="A clip that begins with a face.")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        for stage, (frames, run) in stages(arguments.video, Path(folder)).items():
            run()
            median_ms = 1000 * np.median(timeit.repeat(run, number=1, repeat=arguments.runs))
            print(f"{stage}: {median_ms / frames:.1f} ms a frame, {1000 * frames / median_ms:.1f} frames/s", flush=True)
    print(f"{arguments.video.name}, {usable_cores()} cores, {arguments.runs} runs")


def stages(video: Path, folder: Path) -> dict[str, tuple[int, Callable[[], object]]]:
    """The number of frames of each stage, and what runs it; `folder` receives what is written."""
    jobs = _jobs_with_faces(video)
    frames = [job.frame for job in jobs]

    def detect() -> list[FrameJob]:
        # Pictures as the decoder yields them, not converted yet.
        fresh = (replace(frame, picture=LazyRgb(frame.planes)) if frame.planes else frame for frame in frames)
        return list(aligned_faces(video, fresh, RESOLUTION_PX))

    def compose() -> list[tuple[Frame, tuple[Patch, ...]]]:
        return list(_composed(iter(jobs), lambda source, **_: source))

    patched, info, options = compose(), probe(video), SyncOptions()
    encoder = choose_encoder(options, info)

    def write(patched: Iterable[tuple[Frame, tuple[Patch, ...]]]) -> None:
        with VideoWriter(folder / f"stage{default_suffix(options)}", info, encoder) as writer:
            for frame, patches in patched:
                writer.write(frame, patches)

    runs: dict[str, Callable[[], object]] = {
        "decode": lambda: list(islice(read_frames(video), len(frames))),
        "face": detect,
        "compose": compose,
        f"encode by {encoder.ffmpeg}": lambda: write(patched),
        "all on the CPU": lambda: write(_all_stages(video, len(frames))),
    }
    return {name: (len(frames), run) for name, run in runs.items()}


def _jobs_with_faces(video: Path) -> list[FrameJob]:
    """The first frames that show a face; raises `NoFaceError` if none does."""
    frames = list(islice(read_frames(video), MOST_FRAMES))
    found = [job for job in aligned_faces(video, frames, RESOLUTION_PX) if job.targets]
    if not found:
        raise NoFaceError(f"{video}: no face in its first {len(frames)} frames; give a clip that begins with one")
    return found


def _all_stages(video: Path, count: int) -> Generator[tuple[Frame, tuple[Patch, ...]], None, None]:
    """The first frames with their patches; every stage runs in its own thread, as in `sync`."""
    background = partial(in_background, depth=QUEUE_DEPTH)
    aspect = probe(video).sample_aspect_ratio
    finder = FaceFinder(MediaPipeDetector(), RESOLUTION_PX, StageClock(), pixel_aspect=aspect)
    frames = background((frame for frame in islice(read_frames(video), count)), name="decode")
    jobs = background(finder.cut_out(background(finder.find(frames), name="face")), name="align")
    with closing(_composed(jobs, background)) as composed:
        yield from composed


def _composed(
    jobs: Iterable[FrameJob], background: Callable[..., Any]
) -> Generator[tuple[Frame, tuple[Patch, ...]], None, None]:
    with MediaPipeDetector() as mesher:
        composer = Composer(Paster(mesher, mouth_mask(RESOLUTION_PX)), None, Quality([Fraction(0)]), StageClock())
        yield from composer.stages(_as_painted(jobs), background)


def _as_painted(jobs: Iterable[FrameJob]) -> Generator[FrameJob, None, None]:
    """The source's own faces as painted ones, which take as long."""
    for job in jobs:
        faces = [(target, target.face) for target in job.targets if target.face is not None]
        yield replace(
            job, targets=tuple(replace(target, painted=face.image * np.uint16(257)) for target, face in faces)
        )


if __name__ == "__main__":
    main()
