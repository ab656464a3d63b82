"""Scenario "stage": each CPU stage of `sync` by itself on decoded frames; scenario "loop" measures painting."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.bench.machine import usable_cores
from latentsync_trt.bench.material import Clip, aligned_faces
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Paster
from latentsync_trt.media.codecs import choose_encoder, default_suffix
from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.compose import Composer
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.jobs import Job
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import Frame, Patch

_QUEUE_DEPTH = 4

_MOST_FRAMES = 50
"""Two seconds, half a gigabyte at 1080p: all frames of a stage are in memory while it is timed."""


def measure_stages(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """Rows for the stages on the CPU one by one, and for all of them at once; `folder` receives what is written.

    Errors as `LipSync.sync`.
    """
    resolution_px = setting.bundle.manifest.resolution_px
    jobs = _jobs_with_faces(clip, resolution_px)
    frames = [job.frame for job in jobs]

    def detect() -> list[Job]:
        # Pictures as the decoder yields them, not converted yet.
        fresh = (replace(frame, picture=LazyRgb(frame.planes)) if frame.planes else frame for frame in frames)
        return list(aligned_faces(clip.video, fresh, resolution_px))

    def compose() -> list[tuple[Frame, tuple[Patch, ...]]]:
        return list(_composed(iter(jobs), resolution_px, lambda source, **_: source))

    patched, info = compose(), probe(clip.video)
    encoder = choose_encoder(setting.sync, info)

    def write(patched: Iterable[tuple[Frame, tuple[Patch, ...]]]) -> None:
        target = folder / f"stage{default_suffix(setting.sync)}"
        with VideoWriter(target, info, encoder) as writer:
            for frame, patches in patched:
                writer.write(frame, patches)

    stages: dict[str, Callable[[], object]] = {
        "decode": lambda: list(islice(read_frames(clip.video), len(frames))),
        "face": detect,
        "compose": compose,
        "encode": lambda: write(patched),
        "all on the CPU": lambda: write(_all_stages(clip, len(frames), resolution_px)),
    }
    note = f"{clip.name}, {encoder.ffmpeg}, {usable_cores()} cores"
    for stage, run in stages.items():
        setting.say(f"{stage}: {len(frames)} frames of {clip.name}")
        with setting.watch() as watch:
            yield setting.row("stage", stage, run, watch, provider=None, frames=len(frames), notes=(note,))


def _jobs_with_faces(clip: Clip, resolution_px: int) -> list[Job]:
    """The first frames that show a face; raises `NoFaceError` if none does."""
    frames = list(islice(read_frames(clip.video), _MOST_FRAMES))
    found = [job for job in aligned_faces(clip.video, frames, resolution_px) if job.targets]
    if not found:
        raise NoFaceError(f"{clip.video}: no face in its first {len(frames)} frames; give a clip that begins with one")
    return found


def _all_stages(clip: Clip, count: int, resolution_px: int) -> Generator[tuple[Frame, tuple[Patch, ...]], None, None]:
    """The first frames with their patches; every stage runs in its own thread, as in `sync`."""
    background = partial(in_background, depth=_QUEUE_DEPTH)
    aspect = probe(clip.video).sample_aspect_ratio
    finder = FaceFinder(MediaPipeDetector(), resolution_px, StageClock(), pixel_aspect=aspect)
    frames = background((frame for frame in islice(read_frames(clip.video), count)), name="decode")
    jobs = background(finder.cut_out(background(finder.find(frames), name="face")), name="align")
    with closing(_composed(jobs, resolution_px, background)) as composed:
        yield from composed


def _composed(
    jobs: Iterable[Job], resolution_px: int, background: Callable[..., Any]
) -> Generator[tuple[Frame, tuple[Patch, ...]], None, None]:
    with MediaPipeDetector() as mesher:
        composer = Composer(Paster(mesher, mouth_mask(resolution_px)), None, Quality([Fraction(0)]), StageClock())
        examined = background(composer.examine(_as_painted(jobs)), name="examine")
        composed = background(composer.compose(examined), name="compose")
        yield from background(composer.measure(composed), name="measure")


def _as_painted(jobs: Iterable[Job]) -> Generator[Job, None, None]:
    """The source's own faces as painted ones, which take as long."""
    for job in jobs:
        faces = [(target, target.face) for target in job.targets if target.face is not None]
        yield replace(
            job, targets=tuple(replace(target, painted=face.image * np.uint16(257)) for target, face in faces)
        )
