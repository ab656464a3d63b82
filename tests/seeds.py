"""Small whole files of many formats, for tests that damage them."""

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.sounds import sound_packets, spoken

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
        sound = []
        if form.audio:
            noise = [(0.0, spoken(1, form.rate_hz))]
            sound = sound_packets(container, noise, codec=form.audio, rate_hz=form.rate_hz, layout="mono")
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
        for packet in sound:
            container.mux(packet)
    return path
