"""Small clips made by the tests: numbered frames, a face, clicks."""

import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from itertools import islice
from math import lcm
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.stream import Disposition

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.face.people import FaceStats
from latentsync_trt.media import demo_clip
from latentsync_trt.media.audio import SPEECH_RATE_HZ, read_audio_blocks
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.types import (
    ColorTags,
    Float32Array,
    Frame,
    Interval,
    Picture,
    UInt8Array,
    VideoInfo,
    YuvPlanes,
)
from tests.small import small_bundle
from tests.sounds import spoken, write_parts

HEVC = {"preset": "ultrafast", "x265-params": "log-level=none:bframes=0"}
"""For libx265, which gives the last pictures of a short clip random stamps if it may reorder
them.
"""

STAGES = {
    *("open", "encode audio", "decode", "face", "align", "gather"),
    *(
        "occluders",
        "encode faces",
        "denoise",
        "decode faces",
        "analyze paste",
        "compose",
        "measure",
        "encode",
    ),
}
"""Of a run, as its report and its profile name them."""

LOSSLESS = SyncOptions(steps=2, cache_interval=2, codec="ffv1")
"""A full and a cached step; frames can be compared sample by sample."""


def write_video(
    path: Path,
    frames: Iterable[UInt8Array | av.VideoFrame],
    fps: int | Fraction = 25,
    *,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    times: list[int] | None = None,
    options: dict[str, str] | None = None,
    pixel_aspect: Fraction = Fraction(1),
    color: ColorTags | None = None,
    rotation: tuple[int, bool, bool] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Writes RGB, RGBA or ready frames with the tags of `color`; `times` in 1/1000 s make the rate
    variable.
    """
    x264 = {"crf": "8", "preset": "ultrafast"} if codec == "libx264" else {}
    with av.open(str(path), "w") as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream(codec, rate=fps, options=x264 if options is None else options)
        stream.pix_fmt = pixel_format
        context = stream.codec_context
        context.sample_aspect_ratio = pixel_aspect
        if rotation is not None:
            stream.set_display_rotation(*rotation)
        if color is not None:
            context.color_primaries = color.primaries
            context.color_trc = color.transfer
            context.colorspace = color.matrix
            context.color_range = {None: 0, False: 1, True: 2}[color.full_range]
        if times is not None:
            stream.time_base = context.time_base = Fraction(1, 1000)
        for index, picture in enumerate(frames):
            if isinstance(picture, av.VideoFrame):
                frame = picture
            else:
                frame = av.VideoFrame.from_ndarray(
                    picture, format="rgb24" if picture.shape[2] == 3 else "rgba"
                )
                frame = frame.reformat(format=pixel_format)
            if index == 0:
                stream.height = frame.height
                stream.width = frame.width
            frame.pts = index if times is None else times[index]
            frame.time_base = 1 / Fraction(fps) if times is None else Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def copied(
    target: Path,
    *sources: Path,
    options: dict[str, str] | None = None,
    default: int | None = None,
    languages: Iterable[str] = (),
) -> Path:
    """The first stream of each source in one file, packets as they are. `options`: the container's;
    `default`: the only stream that is marked as default; `languages`: those of the first streams.
    """
    with ExitStack() as opened, av.open(str(target), "w", options=options or {}) as container:
        files = [opened.enter_context(av.open(str(source))) for source in sources]
        streams = [
            container.add_stream_from_template(file.streams[0], opaque=True) for file in files
        ]  # type: ignore[type-var]
        for stream in streams if default is not None else ():
            if stream.index == default:
                stream.disposition = Disposition.default
            else:
                stream.disposition = Disposition(0)
        for stream, language in zip(streams, languages, strict=False):
            stream.metadata["language"] = language
        for file, stream in zip(files, streams, strict=True):
            for packet in file.demux():
                if packet.size:
                    packet.stream = stream
                    container.mux(packet)
    return target


def numbered(count: int, height: int = 64, width: int = 96) -> Iterable[UInt8Array]:
    """Frames whose number is written in eight black or white columns."""
    for number in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        for bit in range(8):
            frame[:, bit * width // 8 : (bit + 1) * width // 8] = 255 * (number >> bit & 1)
        yield frame


def number_of(rgb: UInt8Array) -> int:
    """The number that `numbered` wrote."""
    width = rgb.shape[1]
    levels = [rgb[:, bit * width // 8 + 2 : (bit + 1) * width // 8 - 2].mean() for bit in range(8)]
    return sum((level > 127) << bit for bit, level in enumerate(levels))


def frame_at(index: int, picture: Picture, planes: YuvPlanes | None = None) -> Frame:
    """Frame `index` of a clip of 25 frames/s."""
    period_s = Fraction(1, 25)
    return Frame(index, index * period_s, period_s, index * period_s, picture, planes)


def stamped(stamp_s: Fraction | None, duration_s: Fraction | None) -> av.VideoFrame:
    """A decoded picture with this stamp and duration, if any."""
    frame = av.VideoFrame(16, 16, "gray")
    per_s = lcm((stamp_s or Fraction(0)).denominator, (duration_s or Fraction(0)).denominator)
    frame.time_base = Fraction(1, per_s)
    frame.pts = None if stamp_s is None else int(stamp_s * per_s)
    frame.duration = int((duration_s or 0) * per_s)
    return frame


def open_writer(
    output: Path,
    info: VideoInfo | None = None,
    *,
    audio: Path | None = None,
    audio_delay_s: Fraction = Fraction(0),
    **options: Any,
) -> VideoWriter:
    """A writer for a source like `info` (or RGB pictures of 96×64), with the encoder of these
    `SyncOptions`.
    """
    info = info or picture_info(96, 64, rgb=False)
    extras = FileExtras(() if audio is None else (SoundPiece(audio, audio_delay_s),))
    return VideoWriter(output, info, choose_encoder(SyncOptions(**options), info), extras)


def rewritten(source: Path, output: Path, **options: Any) -> VideoWriter:
    """The writer that has written `source` again without a change; `options` as `open_writer`."""
    with open_writer(output, probe(source), **options) as writer:
        for frame in read_frames(source):
            writer.write(frame)
    return writer


CLOSE = demo_clip.Camera(480, 1.7, 0.45)
"""Closer to the face than the built-in clip: there is more of it to change."""


def camera_frames(duration_s: Fraction) -> Iterator[UInt8Array]:
    """Frames of the portrait, filmed by a moving camera, uint8 `(480, 480, 3)` RGB."""
    return demo_clip.camera_frames(duration_s, CLOSE)


def half(pictures: Iterable[UInt8Array]) -> Iterator[UInt8Array]:
    """Pictures of half the size, where most of the time would be spent on pixels."""
    return (
        np.asarray(cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))
        for picture in pictures
    )


def write_face(
    path: Path,
    count: int,
    *,
    blank: Iterable[int] = (),
    fps: int = 25,
    pixel_aspect: Fraction = Fraction(1),
    halved: bool = False,
) -> Path:
    """The demo's portrait; the frames in `blank` are gray."""
    hidden = set(blank)
    frames = islice(camera_frames(Fraction(count, 25)), count)
    frames = half(frames) if halved else frames
    shown = (np.full_like(frame, 128) if i in hidden else frame for i, frame in enumerate(frames))
    return write_video(path, shown, fps, pixel_aspect=pixel_aspect)


def gif(side_px: int, frames: int) -> bytes:
    """A gray square of 25 frames/s; 23 bytes for each frame."""
    head = b"GIF89a" + struct.pack("<HH", side_px, side_px) + b"\x80\0\0" + b"\x80\x80\x80\0\0\0"
    control = b"\x21\xf9\x04\x04\x04\0\0\0"
    image = b"\x2c" + struct.pack("<4H", 0, 0, 1, 1) + b"\0"
    return head + frames * (control + image + b"\x02\x02\x44\x01\0") + b"\x3b"


def write_sound(
    path: Path,
    duration_s: float,
    *,
    rate_hz: int = 16000,
    layout: str = "mono",
    codec: str = "pcm_s16le",
    clicks_s: tuple[float, ...] = (),
) -> Path:
    """Quiet noise with a loud click of 1 ms at each of `clicks_s`."""
    samples = spoken(duration_s, rate_hz, clicks_s)
    return write_parts(path, [(0, samples)], codec=codec, rate_hz=rate_hz, layout=layout)


def read_audio(path: Path, rate_hz: int = SPEECH_RATE_HZ) -> Float32Array:
    """All mono samples of a file, `(n,)`."""
    return np.concatenate(list(read_audio_blocks(path, rate_hz)))


def decoded(path: Path) -> list[UInt8Array]:
    """All frames as RGB."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def decoded_audio(path: Path) -> tuple[UInt8Array, int]:
    """All samples of the first channel as float, at their time stamps, and the rate."""
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0))
        resampler = av.AudioResampler("fltp")
        pieces = [(frame, resampler.resample(frame)[0].to_ndarray()[0]) for frame in frames]
    rate = frames[0].sample_rate
    starts = [round(float(frame.pts * frame.time_base) * rate) for frame in frames]
    samples = np.zeros(starts[-1] + len(pieces[-1][1]))
    for start, (_, piece) in zip(starts, pieces, strict=True):
        samples[max(start, 0) : start + len(piece)] = piece[max(-start, 0) :]
    return samples, rate


def click_times(path: Path) -> list[float]:
    """When the clicks of `write_sound` play, in seconds."""
    samples, rate = decoded_audio(path)
    loud = np.flatnonzero(np.abs(samples) > 0.4)
    starts = loud[np.diff(loud, prepend=-rate) > rate // 20]
    return [start / rate for start in starts.tolist()]


def write_clip(folder: Path, frames: int, *, halved: bool = False) -> tuple[Path, Path]:
    """A face of so many frames, and speech as long."""
    return write_face(folder / "face.mp4", frames, halved=halved), write_sound(
        folder / "speech.wav", frames / 25
    )


def untouched_in(jobs: Iterable[FrameJob]) -> list[Interval]:
    """When none of the faces in these jobs was chosen, though faces were wanted."""
    stats = FaceStats()
    for job in jobs:
        stats.add(job.frame, job.seen, has_face=bool(job.chosen))
    return stats.untouched


def synced(clip: tuple[Path, Path], target: Path, options: SyncOptions) -> UInt8Array:
    """What a usual run of the built-in model on the CPU makes of a clip: `(frames, H, W, 3)`."""
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        lip_sync.sync(*clip, target, options)
    return np.stack(decoded(target))
