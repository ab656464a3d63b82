"""Checks everything that a run needs from its caller, before anything heavy is loaded."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.files import KEPT_NAME, work_folder_of
from latentsync_trt.media.encoder_choice import check_encoder
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import check_file, open_input
from latentsync_trt.media.output_path import check_output_path
from latentsync_trt.media.playback import HELD_S, video_stream
from latentsync_trt.media.reader import probe
from latentsync_trt.paths import local_path
from latentsync_trt.sync.sound import Sound, sound_of
from latentsync_trt.types import Enhancer, FaceDetector, Float32Array, VideoInfo

if TYPE_CHECKING:
    from latentsync_trt.face.track_file import Tracks
    from latentsync_trt.media.c2pa import Credentials


@dataclass(frozen=True, slots=True, eq=False)
class Helpers:
    """What may take the place of built-in parts of `LipSync.sync`.

    `detector` finds faces; `enhancer` improves painted ones, instead of that of
    `SyncOptions.enhancer`; `noise`, float32 `(1, 4, 1, h, w)`, replaces that of the seed.
    """

    detector: FaceDetector | None = None
    enhancer: Enhancer | None = None
    noise: Float32Array | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files and options of a run, all of which can be used, and the properties of the video.

    `info.duration_s` includes the delay of the picture. `tracks`: of `--faces`. `page`: where to
    write the report.
    """

    options: SyncOptions
    helpers: Helpers
    video: Path
    output: Path
    info: VideoInfo
    encoder: VideoEncoder
    sound: Sound
    tracks: "Tracks | None"
    credentials: "Credentials | None"
    page: Path | None


def check_inputs(
    video: object,
    audio: object,
    output: object,
    options: SyncOptions,
    helpers: Helpers | None = None,
) -> Inputs:
    """Opens all inputs, decodes the first picture and the first sounds, and checks that `output`
    can be written.

    `audio`: None where `options` name the recordings.

    Raises:
        InputError: an argument is not a path, or `options` do not fit each other, the video or the
            output.
        MediaError: an input cannot be read. OutputError: the output cannot be written.
    """
    source = path_argument(video, "video")
    target = path_argument(output, "output")
    recording = None if audio is None else path_argument(audio, "audio")
    mixed = None if options.mix is None else path_argument(options.mix, "--mix")
    for path in filter(None, (source, recording, mixed)):
        check_file(path)
    if recording is not None and not _shows(source) and _shows(recording):
        raise InputError(
            f"{source}: has no picture, but the audio {recording} has one; did you swap them?"
        )
    sound = sound_of(source, recording, mixed, options)
    # What an interrupted run was to replace, it has not replaced yet.
    replaces = options.overwrite or (
        options.resume and (work_folder_of(target) / KEPT_NAME).exists()
    )
    check_output_path(target, source, *sound.files, overwrite=replaces)
    info = probe(source)
    encoder = check_encoder(options, info, target)
    lasts_s = None if info.duration_s is None else info.duration_s + sound.picture_delay_s
    if lasts_s is not None:
        for name, time_s, most_s in (
            ("start", options.start, lasts_s),
            ("end", options.end, lasts_s + HELD_S),
        ):
            if time_s is not None and not time_s < most_s:
                lasts = f"{source} lasts {float(lasts_s):.2f} s; give a time in it"
                raise InputError(f"--{name} {float(time_s):g}: {lasts}")
    others = _others(source, info, target, options, replaces=replaces)
    info = replace(info, duration_s=lasts_s)
    return Inputs(options, helpers or Helpers(), source, target, info, encoder, sound, *others)


def _others(
    video: Path, info: VideoInfo, output: Path, options: SyncOptions, *, replaces: bool
) -> "tuple[Tracks | None, Credentials | None, Path | None]":
    """What the options that few runs have name: their modules load OpenCV and more."""
    tracks = credentials = page = None
    if options.faces is not None:
        from latentsync_trt.face.track_file import mark_of, read_tracks

        path = path_argument(options.faces, "--faces")
        tracks = read_tracks(path)
        tracks.check_clip(mark_of(video, info), path)
        if options.face == "speaking" and tracks.turns is None and len(tracks.people) > 1:
            raise InputError(
                f"--face speaking: {path} does not say who "
                "speaks; write it anew with latentsync-trt faces"
            )
    if options.enhancer is not None:
        from latentsync_trt.compositing.enhancer import check_enhancer

        check_enhancer(options.enhancer)
    if options.c2pa is not None:
        from latentsync_trt.media.c2pa import read_credentials

        credentials = read_credentials(path_argument(options.c2pa, "--c2pa"), output)
    if options.report is not None:
        from latentsync_trt.measure.page import page_path

        page = page_path(options.report, "--report", overwrite=replaces)
    return tracks, credentials, page


def _shows(path: Path) -> bool:
    """Whether a file has a picture that is no cover, as far as it can be read; what else is wrong
    is told later.
    """
    with suppress(MediaError), open_input(path) as container:
        return bool(video_stream(path, container))
    return False


def path_argument(value: object, name: str) -> Path:
    """`value` as a path; raises `InputError`, naming the argument, if it cannot be one."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InputError(f"{name} {value!r}: is not a path; give a str or a pathlib.Path")
    return local_path(text, name)
