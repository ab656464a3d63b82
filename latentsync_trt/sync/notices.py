"""Notices about what a caller may not expect of a run, for before it begins. Pure."""

from fractions import Fraction
from pathlib import Path

from latentsync_trt.audio.vad import Speech
from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.config import MODEL_FPS, MODEL_RESOLUTION_PX, Extend, SyncOptions
from latentsync_trt.media.playback import LONGEST_PERIOD_S, is_held
from latentsync_trt.types import VideoInfo

_EXTENDED: dict[Extend, str] = {
    "pingpong": "goes back and forth",
    "loop": "starts again",
    "hold": "holds its last frame",
}

_SHOWN = 3
"""Stretches of a recording that a notice names."""

_SLOW_FPS = 16
"""Below this, lips are seen to move in steps."""


def notices_of_model(manifest: Manifest, resolution_px: int) -> list[str]:
    """That the model is the small built-in one, or was trained at another resolution."""
    if manifest.model == DEMO_NAME:
        return [f"the built-in model is {note}" for note in manifest.notes]
    trained_px = MODEL_RESOLUTION_PX.get(manifest.model, resolution_px)
    if trained_px == resolution_px:
        return []
    return [f"model {manifest.model} was trained at {trained_px} px; at {resolution_px} px the mouth may look worse"]


def notices_of_rate(info: VideoInfo, options: SyncOptions) -> list[str]:
    """That the output has another number of frames per second than the video, or too few for lips."""
    rate = info.frames_per_s
    if rate is None or rate == MODEL_FPS:
        return []
    if options.fps != "source":
        return [f"the video has {_short(rate)} frames/s, the output {options.fps} (--fps)"]
    if rate >= _SLOW_FPS:
        return []
    if rate * LONGEST_PERIOD_S < 1:
        return [f"the video has {_short(rate)} frames/s: its pictures are repeated, so that lips move"]
    return [f"the video has {_short(rate)} frames/s, so lips move in steps; --fps {MODEL_FPS} repeats its pictures"]


def notices_of_length(info: VideoInfo, audio_s: Fraction, options: SyncOptions) -> list[str]:
    """That the picture is extended, or that picture or sound are cut by more than recordings of one device differ.

    Args:
        info: of the video, with the delay of the picture. audio_s: when the sound ends.
    """
    video_s, length, rate = info.duration_s, options.output_length, info.frames_per_s
    still = video_s is not None and rate is not None and video_s * rate <= 1
    if video_s is None or still or is_held(abs(video_s - audio_s)):
        return []
    part = options.start is not None or options.end is not None
    if length == "shortest" or (part and audio_s < video_s):
        return []
    lengths = f"the video lasts {_short(video_s)} s, the audio {'ends after ' if part else ''}{_short(audio_s)} s"
    if length != "video" and video_s < audio_s:
        return [f"{lengths}: the picture {_EXTENDED[options.extend]} (--extend, --length)"]
    if length == "audio":
        return [f"{lengths}: the picture is cut there (--length)"]
    end = "is cut there" if video_s < audio_s else "ends before the picture, the rest is silent"
    return [f"{lengths}: the sound {end} (--length)"]


def notices_of_mix(mix: Path, mix_s: Fraction, voice_s: Fraction) -> list[str]:
    """That what is heard is not as long as the voice that moves the lips."""
    if is_held(abs(mix_s - voice_s)):
        return []
    lengths = f"{mix}: lasts {_short(mix_s)} s, the voice {_short(voice_s)} s"
    return [f"{lengths}; lips and sound agree if both files begin at the same moment (--mix)"]


def notices_of_speech(recording: Path, speech: Speech | None) -> list[str]:
    """That no one was found to speak, at all or where it is loud; `speech`: None if it was not searched."""
    if speech is None or (speech.spans_s and not speech.loud_s):
        return []
    if not speech.spans_s:
        return [f"{recording}: no speech found, so the mouth stays shut; with --silence model it follows any sound"]
    shown = ", ".join(f"{start_s:.0f}-{end_s:.0f} s" for start_s, end_s in speech.loud_s[:_SHOWN])
    more = f" and {len(speech.loud_s) - _SHOWN} times more" if len(speech.loud_s) > _SHOWN else ""
    cure = "if somebody sings or whispers there, use --silence model"
    return [f"{recording}: loud, but not taken for speech, at {shown}{more}: the mouth stays shut; {cure}"]


def _short(value: Fraction) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
