"""Copies of videos for browsers, and which videos need none."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av

from latentsync_trt.config import SyncOptions
from latentsync_trt.media.decoding import is_photo
from latentsync_trt.media.files import codec_name, main_audio, open_input
from latentsync_trt.media.pictures import small_rgb
from latentsync_trt.media.playback import HELD_S, Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.writer import write_rgb

_PREVIEW_HEIGHT_PX = 720
"""The largest height of a preview: enough to judge lips by, quick to encode and to load."""
_UNSEEN_S = Fraction(1, 100)
"""How far apart pictures beside each other may be: less than half the period of any."""
_PREVIEW = SyncOptions(codec="h264", encoder="x264:ultrafast", crf=23)

_BROWSER_CODECS = {"mov": ("h264", "av1", "vp9"), "matroska": ("vp8", "vp9", "av1")}
"""What all browsers play, by FFmpeg's name of the container; they take WebM for Matroska, but not
H.264 in it.
"""
_BROWSER_FORMATS = ("yuv420p", "yuvj420p")
_BROWSER_SOUNDS = ("aac", "mp3", "opus", "vorbis", "flac")


def plays(video: Path) -> bool:
    """Returns whether all browsers can play a file; raises `MediaError`."""
    with open_input(video) as container:
        pictures = container.streams.video
        if not pictures or is_photo(pictures[0]):
            return False
        codecs = set[str]()
        for name in container.format.name.split(","):
            codecs.update(_BROWSER_CODECS.get(name, ()))
        return (
            codec_name(pictures[0]) in codecs
            and pictures[0].codec_context.pix_fmt in _BROWSER_FORMATS
            and all(codec_name(each) in _BROWSER_SOUNDS for each in container.streams.audio)
        )


def keeps_time(video: Path, playback: Playback) -> bool:
    """Returns whether players show the pictures of a file at the times that `playback` gives them;
    raises `MediaError`.
    """
    info = probe(video)
    with open_input(video) as container:
        begins_s = Fraction(container.start_time or 0, av.time_base)
    if info.start_s is None or info.duration_s is None:
        return False
    apart_s = playback.delay_s - (info.start_s - begins_s)
    ends_s = playback.delay_s + info.duration_s
    is_extended = playback.duration_s is not None and playback.duration_s > ends_s + HELD_S
    return abs(apart_s) < _UNSEEN_S and not is_extended


def write_preview(video: Path, target: Path, playback: Playback | None = None) -> None:
    """Writes a small copy for browsers: with the same times and with sound, or silent and with the
    times of `playback`; raises `LatentSyncError`.
    """
    info = probe(video)
    frames = (
        replace(
            frame, picture=small_rgb(info, frame, max_height_px=_PREVIEW_HEIGHT_PX), planes=None
        )
        for frame in read_frames(video, playback or Playback())
    )
    sound = _sound_beside(video) if playback is None else ()
    rate = info.frames_per_s
    write_rgb(target, frames, _PREVIEW, sound, frames_per_s=rate, time_base=info.time_base)


def _sound_beside(video: Path) -> tuple[SoundPiece, ...]:
    """Returns the sound of a file, if it has some, at its time after the first picture."""
    with open_input(video) as container:
        sound = main_audio(container)
        has_sound = sound is not None and bool(codec_name(sound))
    if not has_sound:
        return ()
    delays = delays_of(video, video)
    return (SoundPiece(video, delays.sound_s - delays.picture_s),)
