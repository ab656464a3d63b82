"""How long the output lasts, and how the video is played for it. Pure; all times are exact seconds."""

from fractions import Fraction
from math import ceil

from latentsync_trt.config import MODEL_FPS, Length, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.playback import LONGEST_PERIOD_S, Playback
from latentsync_trt.types import VideoInfo


def length_of(options: SyncOptions) -> Length:
    """`options.length`, or its default."""
    part_only = options.start is not None or options.end is not None
    return options.length or ("video" if part_only else "audio")


def playback_of(
    options: SyncOptions, video_s: Fraction | None, audio_s: Fraction, delay_s: Fraction = Fraction(0)
) -> Playback:
    """How the video is played.

    Args:
        video_s: when the video ends, None if its file does not state that. audio_s: when the speech ends, and the sound
            that is heard. delay_s: when the picture begins.

    Raises:
        InputError: the longer one is wanted, and `video_s` is unknown.
    """
    fps = None if options.fps == "source" else Fraction(options.fps)
    length = length_of(options)
    if length == "video":
        return Playback(fps, delay_s=delay_s)
    if length == "shortest":
        return Playback(fps, audio_s, delay_s=delay_s)
    if length == "longest" and video_s is None:
        cure = "use --length audio or video, or write the file anew: ffmpeg -i VIDEO -c copy NEW.mp4"
        raise InputError(f"--length longest: the video's file does not state how long it is; {cure}", usage=False)
    duration_s = audio_s if length == "audio" or video_s is None else max(video_s, audio_s)
    return Playback(fps, duration_s, options.extend, delay_s)


def expected_frames(playback: Playback, info: VideoInfo) -> int | None:
    """About how many frames that gives; None where the file does not state enough."""
    fps = playback.fps or info.frames_per_s
    if fps is not None and fps * LONGEST_PERIOD_S < 1:
        fps = Fraction(MODEL_FPS)
    ends_s = (playback.duration_s, info.duration_s if playback.extend is None else None)
    known_s = [end_s for end_s in ends_s if end_s is not None]
    return ceil(min(known_s) * fps) if known_s and fps else None
