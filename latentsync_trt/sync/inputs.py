"""Checks everything that a run needs from its caller, before anything heavy is loaded."""

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.codecs import check_encoder
from latentsync_trt.media.delays import Delays, delays_of
from latentsync_trt.media.files import check_file
from latentsync_trt.media.reader import probe
from latentsync_trt.media.writer import check_output_path
from latentsync_trt.paths import local_path
from latentsync_trt.types import VideoInfo


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a run, all of which can be used, and the properties of the video.

    `info.duration_s` includes the delay of the picture.
    """

    video: Path
    audio: Path
    output: Path
    info: VideoInfo
    delays: Delays


def check_inputs(video: object, audio: object, output: object, options: SyncOptions) -> Inputs:
    """Opens both inputs, decodes the first picture and the first sound, and checks that `output` can be written.

    Args:
        video, audio, output: paths, str or `os.PathLike`.

    Raises:
        InputError: an argument is not a path, or `options` do not fit the output.
        MediaError: an input cannot be read. OutputError: the output cannot be written.
    """
    paths = {"video": video, "audio": audio, "output": output}
    checked = {name: path_argument(value, name) for name, value in paths.items()}
    for name in ("video", "audio"):
        check_file(checked[name])
    check_output_path(checked["output"], checked["video"], checked["audio"], lossless=options.lossless)
    info = probe(checked["video"])
    check_encoder(options.encoder, info.width_px, info.height_px, lossless=options.lossless)
    with closing(read_audio_blocks(checked["audio"])) as blocks:
        next(blocks, None)
    delays = delays_of(checked["video"], checked["audio"])
    if info.duration_s is not None:
        info = replace(info, duration_s=info.duration_s + delays.picture_s)
    return Inputs(**checked, info=info, delays=delays)


def path_argument(value: object, name: str) -> Path:
    """`value` as a path; raises `InputError`, naming the argument, if it cannot be one."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InputError(f"{name} {value!r}: is not a path; give a str or a pathlib.Path")
    return local_path(text, name)
