"""Times the stages of a clip that run on the CPU, without any network but the faces'.

python scripts/measure_stages.py VIDEO [--resolution 256] [--frames 250] [--at-once]

Prints the time that each stage takes for a frame, one after another in one thread of an idle
machine. With `--at-once`, all stages run side by side, as in `sync`, and the frames per second are
printed. The clip's own faces are taken as painted ones.
"""

import argparse
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from latentsync_trt.bench.rows import usable_cores
from latentsync_trt.compositing.blend import FaceBlender
from latentsync_trt.config import SyncOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.measure.quality import Quality
from latentsync_trt.media.encoder_choice import choose_encoder, default_suffix
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.composing import Composer
from latentsync_trt.sync.faces import FaceFinder, FrameJob
from latentsync_trt.sync.threads import ClipStages, StageClock, prefetch, tune_process

Background = Callable[..., Generator[Any, None, None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path, help="A clip that begins with a face.")
    parser.add_argument(
        "--resolution", type=int, default=256, help="Side of the aligned faces, in pixels."
    )
    parser.add_argument(
        "--frames",
        type=int,
        default=250,
        help="How many of the clip's frames are measured, at most.",
    )
    parser.add_argument("--at-once", action="store_true", help="Run all stages side by side.")
    arguments = parser.parse_args()
    tune_process()
    clock = StageClock()
    background: Background = prefetch if arguments.at_once else in_this_thread
    start_s = time.perf_counter()
    count = run(arguments.video, arguments.resolution, arguments.frames, clock, background)
    wall_s = time.perf_counter() - start_s
    if arguments.at_once:
        print(f"all at once: {count / wall_s:.1f} frames/s")
    else:
        for stage in clock.times():
            print(f"{stage.stage}: {1000 * stage.busy_s / count:.2f} ms a frame")
    print(
        f"{arguments.video.name}, {count} frames, {arguments.resolution} px, {usable_cores()} cores"
    )


def run(
    video: Path, resolution_px: int, most: int, clock: StageClock, background: Background
) -> int:
    """Passes the clip through all stages; returns the number of its frames."""
    info = probe(video)
    options = SyncOptions()
    count = 0
    encoder = choose_encoder(options, info)
    detector = MediaPipeDetector()
    with TemporaryDirectory() as folder:
        finder = FaceFinder(
            FaceTracker(detector), resolution_px, pixel_aspect=info.sample_aspect_ratio, clock=clock
        )
        stages = ClipStages(most, 0, Fraction(0), Fraction(0))
        decoded = stages.entering(islice(read_frames(video), most), clock)
        with_faces = background(
            finder.find(background(decoded, finder.convert_expected_faces, name="decode")),
            name="face",
        )
        painted = background(as_painted(finder.cut_out(with_faces)), name="align")
        composer = Composer(FaceBlender(detector), None, Quality([Fraction(0)]), clock)
        output = Path(folder) / f"output{default_suffix(options)}"
        with (
            VideoWriter(output, info, encoder) as writer,
            closing(composer.stages(painted, background)) as composed,
        ):
            for job, patches in composed:
                count += 1
                with clock.measure(f"encode by {encoder.ffmpeg}"):
                    writer.write(job.frame, patches)
    return count


def in_this_thread(
    items: Generator[Any, None, None], change: Callable[[Any], Any] = lambda item: item, **_: object
) -> Generator[Any, None, None]:
    """What `prefetch` gives, without threads."""
    with closing(items):
        yield from map(change, items)


def as_painted(jobs: Generator[FrameJob, None, None]) -> Generator[FrameJob, None, None]:
    """The source's own faces as painted ones, which take as long."""
    with closing(jobs):
        for job in jobs:
            faces = (
                target.face.image * np.uint16(257)
                for target in job.targets
                if target.face is not None
            )
            yield replace(job, painted=tuple(faces))


if __name__ == "__main__":
    main()
