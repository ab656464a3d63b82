"""Scenario "stage": each stage of `sync` by itself, on frames that are there already."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

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
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.types import AlignedFace, Float32Array, Frame, Patch, UInt8Array

_MOST_FRAMES = 50
"""Two seconds, which at 1080p take half a gigabyte: all frames of a stage lie in memory while it is timed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Material:
    """Frames, their faces, what is painted in their place, `(H, W, 3)` in [−1, 1], and the mask `(H, W)`."""

    frames: list[Frame]
    faces: list[AlignedFace]
    painted: list[Float32Array]
    mask: Float32Array


def measure_stages(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """Rows for the stages off the GPU; `folder` takes what is written. Errors as `LipSync.sync`."""
    resolution_px = setting.bundle.manifest.resolution_px
    material = _material(clip, resolution_px)
    pictures = [frame.rgb for frame in material.frames]
    patches = _compose(material)
    stages: dict[str, Callable[[], object]] = {
        "decode": lambda: _frames(clip),
        "face": lambda: list(aligned_faces(pictures, resolution_px)),
        "compose": lambda: _compose(material),
        "encode": lambda: _encode(clip, material.frames, patches, folder / "stage.mp4"),
    }
    for stage, run in stages.items():
        setting.say(f"{stage}: {len(material.frames)} frames of {clip.name}")
        yield _row(setting, stage, None, run, len(material.frames), note=f"{clip.name}, {usable_cores()} cores")


def measure_network_stages(setting: Setting, clip: Clip) -> Iterator[Row]:
    """Rows for hearing and painting, which the provider runs; painting for every preset. Errors as `LipSync.sync`."""
    manifest = setting.bundle.manifest
    faces = _faces(clip, manifest.resolution_px, manifest.frames)
    with setting.networks() as networks:
        setting.say(f"{setting.provider}: hear")
        speech = encode_audio(lambda: read_audio_blocks(clip.audio), networks.hear)
        yield _row(
            setting,
            "hear",
            None,
            lambda: encode_audio(lambda: read_audio_blocks(clip.audio), networks.hear),
            len(speech.windows),
            provider=setting.provider,
        )
        heard = speech.windows[np.arange(manifest.frames).clip(max=len(speech.windows) - 1)]
        windows = [(faces, heard)] * setting.runtime.windows_per_batch
        for preset in setting.options.preset:
            setting.say(f"{setting.provider}: paint with preset {preset}")
            inpainter = setting.inpainter(preset, networks, networks.denoiser())
            yield _row(
                setting,
                "paint",
                preset,
                lambda inpainter=inpainter: inpainter.paint(windows),  # type: ignore[misc]
                len(windows) * manifest.frames,
                provider=setting.provider,
            )


def _row(
    setting: Setting,
    stage: str,
    preset: str | None,
    run: Callable[[], object],
    frames: int,
    *,
    provider: str | None = None,
    note: str = "",
) -> Row:
    runs, warm_up = setting.options.runs_of("stage"), setting.options.warm_up_of("stage")
    with setting.watch() as watch:
        times_ms = measure(run, runs=runs, warm_up=warm_up)
    return Row(
        "stage",
        stage,
        provider,
        preset,
        Spread.of(times_ms),
        warm_up,
        frames=frames,
        memory=watch.peak,
        facts={"frames_per_s": 1000 * frames / median(times_ms)},
        notes=(note,) if note else (),
    )


def _frames(clip: Clip) -> list[Frame]:
    return list(islice(read_frames(clip.video), _MOST_FRAMES))


def _material(clip: Clip, resolution_px: int) -> _Material:
    """The first frames up to one without a face."""
    frames, faces = list[Frame](), list[AlignedFace]()
    pictures = _frames(clip)
    for frame, face in zip(pictures, aligned_faces((frame.rgb for frame in pictures), resolution_px), strict=True):
        if face is None:
            break
        frames.append(frame)
        faces.append(face)
    if not frames:
        raise NoFaceError(f"{clip.video}: its first frame shows no face; stages are measured on frames with one")
    # What is painted makes no difference to the time; the source's own face is as good as any.
    painted = [face.image.astype(np.float32) / np.float32(127.5) - np.float32(1) for face in faces]
    return _Material(frames, faces, painted, mouth_mask(resolution_px))


def _compose(material: _Material) -> list[Patch]:
    triples = zip(material.frames, material.faces, material.painted, strict=True)
    return [composite(frame.rgb, face, painted, material.mask) for frame, face, painted in triples]


def _faces(clip: Clip, resolution_px: int, count: int) -> UInt8Array:
    """A window of faces, uint8 `(count, H, W, 3)`; a short clip's are repeated, which makes no difference to time."""
    found = _material(clip, resolution_px).faces
    return np.stack([found[index % len(found)].image for index in range(count)])


def _encode(clip: Clip, frames: list[Frame], patches: list[Patch], target: Path) -> None:
    with VideoWriter(target, probe(clip.video), crf=SyncOptions().crf) as writer:
        for frame, patch in zip(frames, patches, strict=True):
            writer.write(frame, patch)
