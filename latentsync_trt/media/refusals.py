"""Refuses pictures that would silently come out wrong, with the ffmpeg command that converts them."""

import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from latentsync_trt.errors import MediaError
from latentsync_trt.media.conversion import has_rgb_channels, naming_format, views

_CURE = "put the picture on black first"

_OPAQUE = 250
"""Least 8-bit alpha that counts as opaque: a mix with black changes such a pixel by less than 3 %."""

_MOST_PIXEL_ASPECT = 10
"""Wide-screen formats have up to 2.2. A damaged header may state more, and faces are searched in square pixels."""

_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""FFmpeg's own decoders of these codecs leave the alpha channel out; these, which not every FFmpeg has, decode it."""


def check_stream(path: Path, stream: VideoStream) -> None:
    """Raises `MediaError` if the decoder leaves out the alpha channel of `stream`, or its pixel aspect is absurd."""
    aspect = stream.sample_aspect_ratio or Fraction(1)
    if not 1 / _MOST_PIXEL_ASPECT <= aspect <= _MOST_PIXEL_ASPECT:
        target = _quoted(path.with_name(f"{path.stem}-square{path.suffix}"))
        raise MediaError(
            f"{path}: states pixels of {aspect.numerator}:{aspect.denominator}, which no camera has; for square ones: "
            f"ffmpeg -i {_quoted(path)} -c copy -aspect {stream.width}:{stream.height} {target}"
        )
    decoder = _ALPHA_DECODERS.get(stream.codec_context.codec.canonical_name)
    if decoder and stream.metadata.get("alpha_mode") == "1":
        command = _command(path, _FLATTEN, decoder)
        raise MediaError(f"{path}: has an alpha channel, which the output cannot hold; {_CURE}: {command}")


def check_picture(path: Path, frame: VideoFrame) -> None:
    """Checks a decoded frame.

    Raises:
        MediaError: it has a transparent pixel; an alpha channel that is opaque, or zero everywhere, is fine.
        InputError: swscale does not support its pixel format.
    """
    if _is_transparent(frame):
        flatten = _FLATTEN_RGB if has_rgb_channels(frame) else _FLATTEN
        problem = f"has transparent pixels ({frame.format.name}), which the output cannot hold"
        raise MediaError(f"{path}: {problem}; {_CURE}: {_command(path, flatten)}")


_EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2"
_FLATTEN = f"format=yuva444p,premultiply=inplace=1,format=yuv420p,{_EVEN}"
_FLATTEN_RGB = f"format=gbrap,premultiply=inplace=1,scale=out_color_matrix=bt709:out_range=tv,format=yuv420p,{_EVEN}"
"""FFmpeg filters that put a picture on black, with even sides, as H.264 in 4:2:0 needs."""


def _is_transparent(frame: VideoFrame) -> bool:
    if not (frame.format.has_palette or any(component.is_alpha for component in frame.format.components)):
        return False
    with naming_format(frame):
        planar = VideoReformatter().reformat(frame, format="gbrap", threads=1)
    alpha = views(planar)[3]
    # All zero: some programs leave the fourth byte of a pixel empty.
    return int(np.min(alpha)) < _OPAQUE and bool(np.any(alpha))


def _command(path: Path, filters: str, decoder: str | None = None) -> str:
    """A command line for the user's shell; any sound can be copied to .mkv."""
    chosen = f"-c:v {decoder} " if decoder else ""
    target = _quoted(path.with_name(f"{path.stem}-opaque.mkv"))
    return f'ffmpeg {chosen}-i {_quoted(path)} -vf "{filters}" -c:v libx264 -crf 12 -c:a copy {target}'


def _quoted(path: Path) -> str:
    return subprocess.list2cmdline([str(path)]) if sys.platform == "win32" else shlex.quote(str(path))
