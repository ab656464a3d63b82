"""What browsers can play, and small H.264 copies of what they cannot: HEVC, ProRes, AVI, photos, GIFs."""

from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.media.codecs import choose_encoder
from latentsync_trt.media.decoding import is_photo
from latentsync_trt.media.files import codec_name, open_input
from latentsync_trt.media.pictures import PictureMaker, picture_info
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.media.writer import VideoWriter

_MOST_HEIGHT_PX = 720
_ENCODING = SyncOptions(codec="h264", encoder="x264:ultrafast", crf=23)

_CODECS = {"mov": ("h264", "av1", "vp9"), "matroska": ("vp8", "vp9", "av1")}
"""By FFmpeg's name of the container, what all browsers play; they take WebM for Matroska, but not H.264 in it."""
_FORMATS = "yuv420p", "yuvj420p"
_SOUNDS = "aac", "mp3", "opus", "vorbis", "flac"


def plays(video: Path) -> bool:
    """Returns whether all browsers can play a file; raises `MediaError`."""
    with open_input(video) as container:
        codecs = next((codecs for name, codecs in _CODECS.items() if name in container.format.name.split(",")), ())
        pictures, sounds = container.streams.video, container.streams.audio
        return (
            bool(pictures)
            and not is_photo(pictures[0])
            and codec_name(pictures[0]) in codecs
            and pictures[0].codec_context.pix_fmt in _FORMATS
            and all(codec_name(each) in _SOUNDS for each in sounds)
        )


def write_preview(video: Path, target: Path) -> None:
    """Writes a small copy with the same times; raises `LatentSyncError`."""
    info = probe(video)
    small_rgb = partial(PictureMaker(info, choose_encoder(SyncOptions(), info)).small_rgb, most_px=_MOST_HEIGHT_PX)
    pictures = (replace(frame, picture=small_rgb(frame), planes=None) for frame in read_frames(video))
    first = next(pictures)
    height_px, width_px, _ = first.picture.shape
    made = picture_info(width_px, height_px, rgb=False)
    made = replace(made, frames_per_s=info.frames_per_s, time_base=info.time_base)
    with open_input(video) as container:
        has_sound = any(map(codec_name, container.streams.audio[:1]))
    delays = delays_of(video, video) if has_sound else None
    sound = () if delays is None else (SoundPiece(video, delays.sound_s - delays.picture_s),)
    with VideoWriter(target, made, choose_encoder(_ENCODING, made), sound) as writer:
        for frame in chain([first], pictures):
            writer.write(frame)
