"""Scenario "stage": each CPU stage of `sync` by itself on decoded frames; scenario "loop" measures painting."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from latentsync_trt.bench.machine import usable_cores
from latentsync_trt.bench.material import Clip, aligned_faces
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.codecs import choose_encoder, default_suffix
from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.jobs import Job
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import AlignedFace, Float32Array, Frame, Patch

_QUEUE_DEPTH = 4

_MOST_FRAMES = 50
"""Two seconds, half a gigabyte at 1080p: all frames of a stage are in memory while it is timed."""


def measure_stages(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """Rows for the stages on the CPU one by one, and for all of them at once; `folder` receives what is written.

    Errors as `LipSync.sync`.
    """
    resolution_px = setting.bundle.manifest.resolution_px
    frames, faces = _frames_with_faces(clip, resolution_px)
    mask = mouth_mask(resolution_px)

    def detect() -> list[Job]:
        # Pictures as the decoder yields them, not converted yet.
        fresh = (replace(frame, picture=LazyRgb(frame.planes)) if frame.planes else frame for frame in frames)
        return list(aligned_faces(clip.video, fresh, resolution_px))

    def compose() -> list[Patch]:
        return [_patch(frame, face, mask) for frame, face in zip(frames, faces, strict=True)]

    patches, info = compose(), probe(clip.video)
    encoder = choose_encoder(setting.sync, info)

    def write(patched: Iterable[tuple[Frame, Patch]]) -> None:
        target = folder / f"stage{default_suffix(setting.sync)}"
        with VideoWriter(target, info, encoder) as writer:
            for frame, patch in patched:
                writer.write(frame, [patch])

    stages: dict[str, Callable[[], object]] = {
        "decode": lambda: list(islice(read_frames(clip.video), len(frames))),
        "face": detect,
        "compose": compose,
        "encode": lambda: write(zip(frames, patches, strict=True)),
        "all on the CPU": lambda: write(_patched(clip, len(frames), mask)),
    }
    note = f"{clip.name}, {encoder.ffmpeg}, {usable_cores()} cores"
    for stage, run in stages.items():
        setting.say(f"{stage}: {len(frames)} frames of {clip.name}")
        with setting.watch() as watch:
            yield setting.row("stage", stage, run, watch, provider=None, frames=len(frames), notes=(note,))


def _frames_with_faces(clip: Clip, resolution_px: int) -> tuple[list[Frame], list[AlignedFace]]:
    """The first frames that show a face, and the faces; raises `NoFaceError` if none does."""
    frames = list(islice(read_frames(clip.video), _MOST_FRAMES))
    jobs = aligned_faces(clip.video, frames, resolution_px)
    found = [(job.frame, target.face) for job in jobs for target in job.targets if target.face is not None]
    if not found:
        raise NoFaceError(f"{clip.video}: no face in its first {len(frames)} frames; give a clip that begins with one")
    return [frame for frame, _ in found], [face for _, face in found]


def _patched(clip: Clip, count: int, mask: Float32Array) -> Generator[tuple[Frame, Patch], None, None]:
    """The first frames with their patches; every stage runs in its own thread, as in `sync`."""
    background = partial(in_background, depth=_QUEUE_DEPTH)
    aspect = probe(clip.video).sample_aspect_ratio
    finder = FaceFinder(MediaPipeDetector(), len(mask), StageClock(), pixel_aspect=aspect)
    frames = background((frame for frame in islice(read_frames(clip.video), count)), name="decode")
    jobs = background(finder.cut_out(background(finder.find(frames), name="face")), name="align")
    faces = ((job.frame, target.face) for job in jobs for target in job.targets if target.face is not None)
    patched = ((frame, _patch(frame, face, mask)) for frame, face in faces)
    with closing(background(patched, name="compose")) as composed:
        yield from composed


def _patch(frame: Frame, face: AlignedFace, mask: Float32Array) -> Patch:
    """Composes the source's own face, which takes as long as a painted one."""
    return composite(frame.picture, face, face.image * np.uint16(257), mask)
