"""Checks everything that a run needs from its caller, before anything heavy is loaded."""

from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.encoder_choice import check_encoder
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import check_file, open_input
from latentsync_trt.media.output_path import check_output_path, is_begun
from latentsync_trt.media.playback import HELD_S, video_stream
from latentsync_trt.media.reader import probe
from latentsync_trt.paths import path_argument
from latentsync_trt.sync.option_files import (
    check_enhancer_of,
    credentials_of,
    earlier_of,
    keep_mask_of,
    page_of,
    tracks_of,
)
from latentsync_trt.sync.sound import Sound, sound_of
from latentsync_trt.types import Enhancer, FaceDetector, Float32Array, VideoInfo

if TYPE_CHECKING:
    from latentsync_trt.face.track_file import Tracks
    from latentsync_trt.media.c2pa import Credentials
    from latentsync_trt.media.earlier_result import EarlierResult
    from latentsync_trt.media.keep_mask import KeepMask


@dataclass(frozen=True, slots=True, eq=False)
class Helpers:
    """What may take the place of built-in parts of `LipSync.sync`."""

    detector: FaceDetector | None = None
    """Finds faces."""
    enhancer: Enhancer | None = None
    """Improves painted faces, instead of the one of `SyncOptions.enhancer`."""
    noise: Float32Array | None = None
    """Replaces that of the seed, float32 `(1, 4, 1, h, w)`."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files and options of a run, all of which can be used, and the properties of the video."""

    options: SyncOptions
    helpers: Helpers
    video: Path
    output: Path
    info: VideoInfo
    """`duration_s` includes the delay of the picture."""
    encoder: VideoEncoder
    sound: Sound
    tracks: "Tracks | None"
    """What `--faces` names."""
    keep_mask: "KeepMask | None"
    """What `--keep-mask` names."""
    credentials: "Credentials | None"
    """What `--c2pa` names."""
    page: Path | None
    """Where to write the report."""
    earlier: "EarlierResult | None" = None
    """The result of which `--redo` does a part again."""


def check_inputs(
    video: object,
    audio: object,
    output: object,
    options: SyncOptions,
    helpers: Helpers | None = None,
) -> Inputs:
    """Opens all inputs, decodes the first picture and the first sounds, and checks that `output`
    can be written.

    Args:
        audio: None where `options` name the recordings.

    Raises:
        InputError: an argument is not a path, or `options` do not fit each other, the video or the
            output.
        MediaError: an input cannot be read.
        OutputError: the output cannot be written.
    """
    source = path_argument(video, "video")
    target = path_argument(output, "output")
    recording = None if audio is None else path_argument(audio, "audio")
    mix = None
    if options.mix is not None:
        mix = path_argument(options.mix, "--mix")
    _check_sources(source, recording, mix)
    sound = sound_of(source, recording, mix, options)
    replaces = options.overwrite or bool(options.redo) or (options.resume and is_begun(target))
    files = [source, *sound.files]
    if options.keep_mask is not None:
        files.append(path_argument(options.keep_mask, "--keep-mask"))
    check_output_path(target, *files, overwrite=replaces)
    info = probe(source)
    encoder = check_encoder(options, info, target)
    duration_s = info.duration_s
    if duration_s is not None:
        duration_s += sound.picture_delay_s
        _check_time(source, "start", options.start, duration_s, duration_s)
        _check_time(source, "end", options.end, duration_s, duration_s + HELD_S)
    check_enhancer_of(options)
    return Inputs(
        options,
        helpers or Helpers(),
        source,
        target,
        replace(info, duration_s=duration_s),
        encoder,
        sound,
        tracks=tracks_of(source, info, options),
        keep_mask=keep_mask_of(source, info, options),
        credentials=credentials_of(target, options),
        page=page_of(options, overwrite=replaces),
        earlier=earlier_of(target, options),
    )


def _check_sources(video: Path, audio: Path | None, mix: Path | None) -> None:
    for path in (video, audio, mix):
        if path is not None:
            check_file(path)
    if audio is not None and not _has_picture(video) and _has_picture(audio):
        raise InputError(
            f"{video}: has no picture, but the audio {audio} has one; did you swap them?"
        )


def _has_picture(path: Path) -> bool:
    """Returns whether a file has a picture that is no cover, as far as it can be read; what else is
    wrong is told later.
    """
    with suppress(MediaError), open_input(path) as container:
        return bool(video_stream(path, container))
    return False


def _check_time(
    video: Path, name: str, time_s: Fraction | None, lasts_s: Fraction, end_s: Fraction
) -> None:
    """Raises `InputError` for a time that is not before `end_s`."""
    if time_s is not None and time_s >= end_s:
        lasts = f"{video} lasts {float(lasts_s):.2f} s"
        raise InputError(f"--{name} {float(time_s):g}: {lasts}; give a time in it")
