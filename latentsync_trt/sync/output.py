"""The last stage: frames with their patches become the file; an interrupted run goes on only where
what its pictures depend on is the same.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.face.people import FaceStats
from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.parts import ResumeRequest
from latentsync_trt.media.pictures import small_rgb
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.option_fields import command_line, flag_name
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.model_slot import RunContext
from latentsync_trt.sync.paint import Pace
from latentsync_trt.sync.timeline import Span, soundtrack_of
from latentsync_trt.types import Patch, Progress
from latentsync_trt.version import __version__, distribution_version

_NOT_IN_PICTURES = ("overwrite", "resume", "report", "strict", "mark", "c2pa")
_FILES = ("mix", "turns", "faces")
_LIBRARIES = ("av", "onnxruntime", "onnxruntime-gpu")
_DIGITS = 12

_APART_S = Fraction(1, 2)
"""Of damaged pictures: those that are nearer are told as one time."""
_TOLD = 5


def open_writer(run: RunContext, span: Span, playback: Playback) -> VideoWriter:
    """The writer of the output, whose block publishes it; raises as `VideoWriter`."""
    inputs = run.inputs
    sound = run.inputs.sound
    credentials = inputs.credentials
    name = inputs.output.name
    info = inputs.info
    fps = playback.fps
    if fps is not None:
        info = replace(info, frames_per_s=fps, time_base=1 / fps)
    made = fingerprint(inputs, run.bundle.folder, run.selection.name)
    return VideoWriter(
        inputs.output,
        info,
        inputs.encoder,
        soundtrack_of(sound, span),
        inputs.video,
        others_delay_s=sound.picture_delay_s,
        work=ResumeRequest(made, inputs.options.resume),
        mark=inputs.options.mark,
        sign=None
        if credentials is None
        else lambda path: sign(path, inputs.video, credentials, name),
    )


def write_frames(
    run: RunContext,
    writer: VideoWriter,
    composed: Iterable[tuple[FrameJob, tuple[Patch, ...]]],
    playback: Playback,
    leave: Callable[[], None],
    pace: Pace,
) -> FaceStats:
    """Encodes every frame that an earlier run has not written; calls `leave` for each. Raises
    `NoFaceError` if none shows a face.
    """
    expected = playback.expected_frames(run.inputs.info)
    faces = FaceStats()
    damaged = dict[Fraction, Fraction]()
    aspects = dict[Fraction, Fraction]()
    run.on_progress(Progress("painting first frames", writer.frames_done, expected))
    for job, patches in composed:
        frame = job.frame
        faces.add(frame, job.seen, has_face=job.has_face)
        if frame.damaged:
            damaged.setdefault(frame.source_s, frame.source_s + frame.duration_s)
        if frame.new_aspect is not None:
            aspects.setdefault(frame.new_aspect, frame.source_s)
        leave()
        if frame.index < pace.frames_done:
            run.ask()
            continue
        with run.clock.measure("encode"):
            writer.write(frame, patches)
        pace.written(frame)
        if frame.index < writer.frames_done:  # painted again
            continue
        if frame.index == writer.frames_done:
            run.announce(writer.notices)
        of = None if expected is None else max(faces.frames, expected)
        picture = partial(small_rgb, run.inputs.info, frame, patches)
        written_s = float(frame.time_s + frame.duration_s)
        run.on_progress(
            Progress(
                "lip-sync", faces.frames, of, picture, written_s, *pace.speed(faces.frames, of)
            )
        )
    run.announce(notices_of_damage(run.inputs.video, damaged))
    run.announce(_notices_of_aspects(run.inputs.video, aspects))
    if not faces.frames_with_face:
        raise faces.no_face(run.inputs.video)
    if (notice := faces.turned_notice(run.inputs.video)) is not None:
        run.announce((notice,))
    run.on_progress(Progress("finishing", faces.frames, faces.frames))
    return faces


def notices_of_damage(video: Path, damaged: Mapping[Fraction, Fraction]) -> list[str]:
    """In which times of the source pictures are damaged, by the start and end of each."""
    spans_s = list[tuple[Fraction, Fraction]]()
    for start_s, end_s in sorted(damaged.items()):
        if spans_s and start_s - spans_s[-1][1] <= _APART_S:
            start_s = spans_s.pop()[0]
        spans_s.append((start_s, end_s))
    if not spans_s:
        return []
    times = ", ".join(
        f"{float(start_s):.2f} to {float(end_s):.2f}" for start_s, end_s in spans_s[:_TOLD]
    )
    if len(spans_s) > _TOLD:
        more = f", and {len(spans_s) - _TOLD} more times"
    else:
        more = ""
    return [f"{video}: its picture is damaged from {times} s{more}; copy or download it again"]


def _notices_of_aspects(video: Path, aspects: Mapping[Fraction, Fraction]) -> list[str]:
    """At which time of the source the shape of pixels changes, by the new one."""
    if not aspects:
        return []
    aspect, source_s = next(iter(aspects.items()))
    what = f"its pixel aspect changes to {aspect} at about {float(source_s):.1f} s"
    cure = "make its pixels square first: ffmpeg -i OLD -vf scale=iw*sar:ih,setsar=1 NEW.mp4"
    return [f"{video}: {what}, and the output keeps the first one; {cure}"]


def fingerprint(inputs: Inputs, bundle: Path, provider: str) -> dict[str, str]:
    """By name, all that the pictures of a run depend on, as text that people can compare; `bundle`:
    its folder.

    Files count by their name, size and time, so that a folder may be moved; of `inputs.helpers`,
    arrays by their content, and objects by their type.
    """
    options = inputs.options
    encoder = inputs.encoder
    helpers = inputs.helpers
    recordings = [piece.path for piece in inputs.sound.recordings]
    separate = options.turns is None and bool(options.speaker)  # files, then
    if separate:
        names = [f"--speaker {speaker.face}" for speaker in options.speaker]
    else:
        names = ["--audio"]
    files = {"--video": inputs.video, **dict(zip(names, recordings, strict=False))}
    files |= {
        flag_name(name): Path(path)
        for name in _FILES
        if (path := getattr(options, name)) is not None
    }
    left_out = (*_NOT_IN_PICTURES, *_FILES, *(["speaker"] if not options.turns else []))
    libraries = {name: version for name in _LIBRARIES if (version := distribution_version(name))}
    versions = {"latentsync-trt": __version__, **libraries}
    brought = {"detector": helpers.detector, "enhancer": helpers.enhancer, "noise": helpers.noise}
    return {
        **{name: _stamp(path) for name, path in files.items()},
        "options": " ".join(command_line(options, leave_out=left_out)),
        **{name: _identity(value) for name, value in brought.items() if value is not None},
        "encoder": " ".join(
            [encoder.ffmpeg, encoder.pixel_format, *(f"{k}={v}" for k, v in encoder.options)]
        ),
        "bundle": sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()[:_DIGITS],
        "provider": provider,
        "cores": str(os.cpu_count()),  # FFV1 divides a picture by them, the same way in all parts
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _identity(value: object) -> str:
    if isinstance(value, np.ndarray):
        return sha256(value.tobytes()).hexdigest()[:_DIGITS]
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _stamp(path: Path) -> str:
    status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC).isoformat()
    return f"{path.name}, {status.st_size} bytes, {changed}"
