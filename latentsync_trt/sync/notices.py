"""Notices about what a caller may not expect of a run, for before it begins. Pure."""

from fractions import Fraction

from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.config import MODEL_FPS, Extend, SyncOptions
from latentsync_trt.media.timing import is_held
from latentsync_trt.sync.length import length_of
from latentsync_trt.types import VideoInfo

_EXTENDED: dict[Extend, str] = {
    "pingpong": "goes back and forth",
    "loop": "starts again",
    "hold": "holds its last frame",
}

_SLOW_FPS = 16
"""Below this, lips are seen to move in steps."""


def notices_of_model(manifest: Manifest) -> list[str]:
    """That the model is the small built-in one."""
    return [f"the built-in model is {note}" for note in manifest.notes] if manifest.model == DEMO_NAME else []


def notices_of_rate(info: VideoInfo, options: SyncOptions) -> list[str]:
    """That the output has another number of frames per second than the video, or too few for lips."""
    rate = info.frames_per_s
    if rate is None or rate == MODEL_FPS:
        return []
    if options.fps != "source":
        return [f"the video has {_short(rate)} frames/s, the output {options.fps} (--fps)"]
    if rate >= _SLOW_FPS:
        return []
    return [f"the video has {_short(rate)} frames/s, so lips move in steps; --fps {MODEL_FPS} repeats its pictures"]


def notices_of_length(info: VideoInfo, audio_s: Fraction, options: SyncOptions) -> list[str]:
    """That the picture is extended, or that picture or sound are cut by more than recordings of one device differ.

    Args:
        info: of the video, with the delay of the picture. audio_s: when the sound ends.
    """
    video_s, length = info.duration_s, length_of(options)
    if video_s is None or video_s * (info.frames_per_s or 0) == 1 or is_held(abs(video_s - audio_s)):
        return []  # unknown, a still picture, or as good as equal
    if length == "shortest" or options.start is not None or options.end is not None:
        return []
    lengths = f"the video lasts {_short(video_s)} s, the audio {_short(audio_s)} s"
    if length != "video" and video_s < audio_s:
        return [f"{lengths}: the picture {_EXTENDED[options.extend]} (--extend, --length)"]
    if length == "audio":
        return [f"{lengths}: the picture is cut there (--length)"]
    end = "is cut there" if video_s < audio_s else "ends before the picture, the rest is silent"
    return [f"{lengths}: the sound {end} (--length)"]


def _short(value: Fraction) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
