"""Notices about what a caller may not expect of a run, for before it begins. Pure."""

from fractions import Fraction

from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.media.timing import frames_in, is_held
from latentsync_trt.types import VideoInfo


def notices_of_model(manifest: Manifest) -> list[str]:
    """That the model is the small built-in one."""
    return [f"the built-in model is {note}" for note in manifest.notes] if manifest.model == DEMO_NAME else []


def notices_of_rate(info: VideoInfo) -> list[str]:
    """That the output has another number of frames per second than the video."""
    rate = info.frames_per_s
    if rate is None or rate == MODEL_FPS:
        return []
    return [f"the video has {_short(rate)} frames/s, the output {MODEL_FPS}, the rate that the model was trained at"]


def notices_of_length(info: VideoInfo, audio_frames: int, options: SyncOptions) -> list[str]:
    """That the picture is extended, or that picture or sound are cut by more than recordings of one device differ."""
    video_frames = frames_in(info.duration_s, MODEL_FPS)
    if video_frames is None or options.length == "shortest" or is_held(abs(video_frames - audio_frames), MODEL_FPS):
        return []
    lengths = f"the video lasts {video_frames / MODEL_FPS} s, the audio {audio_frames / MODEL_FPS} s"
    if options.length == "audio" and video_frames < audio_frames:
        verb = "starts again" if options.extend == "loop" else "holds its last frame"
        return [f"{lengths}: the picture {verb} (--extend, --length)"]
    if options.length == "audio":
        return [f"{lengths}: the picture is cut there (--length)"]
    end = "is cut there" if video_frames < audio_frames else "ends before the picture, the rest is silent"
    return [f"{lengths}: the sound {end} (--length)"]


def _short(rate: Fraction) -> str:
    return f"{float(rate):.2f}".rstrip("0").rstrip(".")
