"""Small whole files of many formats, for tests that damage them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

FRAMES = 25
SIDE_PX = 64


@dataclass(frozen=True)
class Format:
    """A container with its codecs; empty where it has no picture or no sound."""

    suffix: str
    video: str = ""
    audio: str = ""
    pixel_format: str = "yuv420p"
    rate_hz: int = 16_000
    options: dict[str, str] = field(default_factory=dict)


FORMATS = {
    "mp4": Format("mp4", "libx264", "aac"),
    "mov": Format("mov", "prores_ks", "pcm_s16le", "yuv422p10le"),
    "mkv": Format("mkv", "ffv1", "flac"),
    "webm": Format("webm", "libvpx-vp9", "libopus", rate_hz=48_000),
    "ts": Format("ts", "mpeg2video", "mp2"),
    "avi": Format("avi", "mpeg4", "libmp3lame"),
    "wav": Format("wav", "", "pcm_s16le"),
    "flac": Format("flac", "", "flac"),
    "m4a": Format("m4a", "", "aac", rate_hz=44_100),
    "ogg": Format("ogg", "", "libopus", rate_hz=48_000),
    "gif": Format("gif", "gif", "", "rgb8"),
}


def write_seed(path: Path, form: Format) -> Path:
    """One second of a moving gradient and of noise."""
    with av.open(str(path), "w", format="ipod" if form.suffix == "m4a" else None) as container:
        video: Any = container.add_stream(form.video, rate=FRAMES) if form.video else None
        audio: Any = container.add_stream(form.audio, rate=form.rate_hz, layout="mono") if form.audio else None
        if video is not None:
            video.width = video.height = SIDE_PX
            video.pix_fmt, video.gop_size = form.pixel_format, 8
            if form.video == "libvpx-vp9":
                video.options = {"cpu-used": "8", "deadline": "realtime"}
            columns, rows = np.meshgrid(np.arange(SIDE_PX), np.arange(SIDE_PX))
            for index in range(FRAMES):
                rgb = np.stack([columns * 4, rows * 4, (columns + rows + 8 * index) % 256], -1).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
                frame.pts, frame.time_base = index, Fraction(1, FRAMES)
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        if audio is not None:
            for packet in _encoded_noise(audio, form.rate_hz):
                container.mux(packet)
    return path


def _encoded_noise(stream: Any, rate_hz: int) -> Iterator[Any]:
    samples = np.random.default_rng(5).normal(0, 0.1, (1, rate_hz)).astype(np.float32)
    resampler = av.AudioResampler(stream.codec_context.format, "mono", rate_hz)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate = rate_hz
    fifo = av.AudioFifo()
    for piece in [*resampler.resample(frame), *resampler.resample(None)]:
        piece.pts = None
        fifo.write(piece)
    while (piece := fifo.read(stream.codec_context.frame_size or 1024, partial=True)) is not None:
        yield stream.encode(piece)
    yield stream.encode(None)
