"""Scenario "stage": each stage of `sync` by itself, on frames that are decoded already; painting is scenario "loop"."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from latentsync_trt.audio.encoder import encode_audio
from latentsync_trt.bench.machine import usable_cores
from latentsync_trt.bench.material import Clip, aligned_faces
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.partial import PartlyConverted
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FaceFinder, Job
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import AlignedFace, Float32Array, Frame, Patch, Picture

TOGETHER = "all off the GPU"
"""Decode, face, compose and encode at the same time, as they run beside the networks."""

_QUEUE_DEPTH = 4

_MOST_FRAMES = 50
"""Two seconds, which at 1080p take half a gigabyte: all frames of a stage lie in memory while it is timed."""


def measure_audio_stage(setting: Setting, clip: Clip) -> Row:
    """A row for encoding the clip's speech on the provider. Errors as `LipSync.sync`."""
    setting.say(f"{setting.provider}: encode audio")
    with setting.networks() as networks:

        def encode() -> int:
            return len(encode_audio(lambda: read_audio_blocks(clip.audio), networks.encode_mel).windows)

        frames = encode()
        return _row(setting, "encode audio", encode, frames, provider=setting.provider)


def measure_stages(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """Rows for the stages off the GPU, and for all of them together; `folder` takes what is written.

    Errors as `LipSync.sync`.
    """
    material = _Material.of(clip, setting.bundle.manifest.resolution_px)
    count = len(material.frames)
    patches = list(material.patches())

    def write(frames: Iterable[tuple[Frame, Patch]]) -> None:
        target, options = folder / "stage.mp4", setting.sync
        with VideoWriter(target, probe(clip.video), crf=options.crf, encoder=options.encoder) as writer:
            for frame, patch in frames:
                writer.write(frame, patch)

    stages: dict[str, Callable[[], object]] = {
        "decode": lambda: list(islice(read_frames(clip.video), count)),
        "face": lambda: list(aligned_faces(_unconverted(material.frames), len(material.mask))),
        "compose": lambda: list(material.patches()),
        "encode": lambda: write(zip(material.frames, patches, strict=True)),
        TOGETHER: lambda: write(_composed(clip, material)),
    }
    note = f"{clip.name}, {setting.sync.encoder}, {usable_cores()} cores"
    for stage, run in stages.items():
        setting.say(f"{stage}: {count} frames of {clip.name}")
        yield _row(setting, stage, run, count, notes=(note,))


def _row(
    setting: Setting,
    stage: str,
    run: Callable[[], object],
    frames: int,
    *,
    provider: str | None = None,
    notes: tuple[str, ...] = (),
) -> Row:
    """A row for a stage that makes `frames` frames in a run."""
    with setting.watch() as watch:
        time, warm_up = setting.time("stage", run)
    return Row("stage", stage, provider, None, time, warm_up, frames=frames, memory=watch.peak, notes=notes)


@dataclass(frozen=True, slots=True, eq=False)
class _Material:
    """Frames, their faces, and the mask `(H, W)`. The source's own faces stand for painted ones: they take as long."""

    frames: list[Frame]
    faces: list[AlignedFace]
    mask: Float32Array

    @classmethod
    def of(cls, clip: Clip, resolution_px: int) -> "_Material":
        """The first frames up to one without a face; raises `NoFaceError` if that is the first."""
        frames = list(islice(read_frames(clip.video), _MOST_FRAMES))
        faces = list[AlignedFace]()
        for face in aligned_faces((frame.picture for frame in frames), resolution_px):
            if face is None:
                break
            faces.append(face)
        if not faces:
            raise NoFaceError(f"{clip.video}: its first frame shows no face; stages are measured on frames with one")
        return cls(frames[: len(faces)], faces, mouth_mask(resolution_px))

    def patches(self) -> Iterator[Patch]:
        return (self.patch(frame, face) for frame, face in zip(self.frames, self.faces, strict=True))

    def patch(self, frame: Frame, face: AlignedFace) -> Patch:
        return composite(frame.picture, face, face.image * np.uint16(257), self.mask)


def _unconverted(frames: Iterable[Frame]) -> Iterator[Picture]:
    """The frames' pictures as the decoder hands them on, with nothing converted yet."""
    return (frame.picture if frame.planes is None else PartlyConverted(frame.planes) for frame in frames)


def _composed(clip: Clip, material: _Material) -> Generator[tuple[Frame, Patch], None, None]:
    """Frames with their patches, every stage in a thread of its own, as in `sync`; nothing is painted."""
    decoded = (frame for frame in islice(read_frames(clip.video), len(material.frames)))
    finder = FaceFinder(MediaPipeDetector(), len(material.mask), StageClock())
    found = finder.find(in_background(decoded, depth=_QUEUE_DEPTH, name="decode"))
    cut = finder.cut_out(in_background(found, depth=_QUEUE_DEPTH, name="face"))
    patched = _patched(in_background(cut, depth=_QUEUE_DEPTH, name="align"), material)
    with closing(in_background(patched, depth=_QUEUE_DEPTH, name="compose")) as composed:
        yield from composed


def _patched(jobs: Generator[Job, None, None], material: _Material) -> Generator[tuple[Frame, Patch], None, None]:
    with closing(jobs):
        for job in jobs:
            if job.face is not None:  # as in all frames of the material
                yield job.frame, material.patch(job.frame, job.face)
