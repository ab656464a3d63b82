"""Scenario "stage": each stage of `sync` by itself, on frames that are there already."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from latentsync_trt.audio.encoder import encode_audio
from latentsync_trt.bench.machine import usable_cores
from latentsync_trt.bench.material import Clip, aligned_faces
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bench.spread import Spread, measure
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.partial import PartlyConverted
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.job import Job
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import AlignedFace, Float32Array, Frame, Patch, Picture, UInt8Array, UInt16Array

TOGETHER = "all off the GPU"
"""Decode, face, compose and encode at the same time, as they run beside the networks."""

_QUEUE_DEPTH = 4

_MOST_FRAMES = 50
"""Two seconds, which at 1080p take half a gigabyte: all frames of a stage lie in memory while it is timed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Material:
    """Frames, their faces, what is painted in their place, uint16 `(H, W, 3)`, and the mask `(H, W)`."""

    frames: list[Frame]
    faces: list[AlignedFace]
    painted: list[UInt16Array]
    mask: Float32Array


def measure_stages(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """Rows for the stages off the GPU, and for all of them together; `folder` takes what is written.

    Errors as `LipSync.sync`.
    """
    resolution_px = setting.bundle.manifest.resolution_px
    material = _material(clip, resolution_px)
    patches = [_patch(*item, material.mask) for item in _items(material)]
    writer = _Writing(clip, folder / "stage.mp4", setting.sync)
    stages: dict[str, Callable[[], object]] = {
        "decode": lambda: _frames(clip, len(material.frames)),
        "face": lambda: list(aligned_faces(_unseen(material.frames), resolution_px)),
        "compose": lambda: [_patch(*item, material.mask) for item in _items(material)],
        "encode": lambda: writer.write(zip(material.frames, patches, strict=True)),
        TOGETHER: lambda: writer.write(_composed(clip, material)),
    }
    note = f"{clip.name}, {setting.sync.encoder}, {usable_cores()} cores"
    for stage, run in stages.items():
        setting.say(f"{stage}: {len(material.frames)} frames of {clip.name}")
        yield replace(_row(setting, stage, run, len(material.frames)), notes=(note,))


def measure_network_stages(setting: Setting, clip: Clip) -> Iterator[Row]:
    """Rows for hearing and painting, which the provider runs; painting for every preset. Errors as `LipSync.sync`."""
    manifest = setting.bundle.manifest
    faces = _faces(clip, manifest.resolution_px, manifest.frames)

    def pieces() -> Iterator[Float32Array]:
        return read_audio_blocks(clip.audio)

    with setting.networks() as networks:
        setting.say(f"{setting.provider}: hear")
        speech = encode_audio(pieces, networks.encode_mel)
        row = _row(setting, "encode audio", lambda: encode_audio(pieces, networks.encode_mel), len(speech.windows))
        yield replace(row, provider=setting.provider)
        heard = speech.windows[np.arange(manifest.frames).clip(max=len(speech.windows) - 1)]
        windows = [(faces, heard)] * setting.windows_per_batch
        for preset in setting.options.preset:
            setting.say(f"{setting.provider}: paint with preset {preset}")
            inpainter = setting.inpainter(preset, networks, networks.denoiser())
            row = _row(setting, "paint", partial(inpainter.paint, windows), len(windows) * manifest.frames)
            yield replace(row, provider=setting.provider, preset=preset)


def _row(setting: Setting, stage: str, run: Callable[[], object], frames: int) -> Row:
    """A row for a stage that makes `frames` frames in a run; the provider is not told."""
    runs, warm_up = setting.options.runs_of("stage"), setting.options.warm_up_of("stage")
    with setting.watch() as watch:
        time = Spread.of(measure(run, runs=runs, warm_up=warm_up))
    return Row("stage", stage, None, None, time, warm_up, frames=frames, memory=watch.peak)


def _unseen(frames: Iterable[Frame]) -> Iterator[Picture]:
    """The frames' pictures as the decoder hands them on, with nothing converted yet."""
    return (frame.picture if frame.planes is None else PartlyConverted(frame.planes) for frame in frames)


def _frames(clip: Clip, count: int) -> list[Frame]:
    return list(islice(read_frames(clip.video), count))


def _material(clip: Clip, resolution_px: int) -> _Material:
    """The first frames up to one without a face."""
    frames, faces = list[Frame](), list[AlignedFace]()
    pictures = _frames(clip, _MOST_FRAMES)
    for frame, face in zip(pictures, aligned_faces((frame.picture for frame in pictures), resolution_px), strict=True):
        if face is None:
            break
        frames.append(frame)
        faces.append(face)
    if not frames:
        raise NoFaceError(f"{clip.video}: its first frame shows no face; stages are measured on frames with one")
    # What is painted makes no difference to the time; the source's own face is as good as any.
    painted = [face.image * np.uint16(257) for face in faces]
    return _Material(frames, faces, painted, mouth_mask(resolution_px))


def _items(material: _Material) -> Iterator[tuple[Frame, AlignedFace, UInt16Array]]:
    return zip(material.frames, material.faces, material.painted, strict=True)


def _patch(frame: Frame, face: AlignedFace, painted: UInt16Array, mask: Float32Array) -> Patch:
    return composite(frame.picture, face, painted, mask)


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
        for job, painted in zip(jobs, material.painted, strict=True):
            if job.face is not None:  # as in all frames of the material
                yield job.frame, _patch(job.frame, job.face, painted, material.mask)


def _faces(clip: Clip, resolution_px: int, count: int) -> UInt8Array:
    """A window of faces, uint8 `(count, H, W, 3)`; a short clip's are repeated, which makes no difference to time."""
    found = _material(clip, resolution_px).faces
    return np.stack([found[index % len(found)].image for index in range(count)])


@dataclass(frozen=True, slots=True)
class _Writing:
    """How clips are written."""

    clip: Clip
    target: Path
    options: SyncOptions

    def write(self, frames: Iterable[tuple[Frame, Patch]]) -> None:
        """One clip."""
        info = probe(self.clip.video)
        with VideoWriter(self.target, info, crf=self.options.crf, encoder=self.options.encoder) as writer:
            for frame, patch in frames:
                writer.write(frame, patch)
