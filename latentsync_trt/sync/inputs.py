"""Checks everything that a run needs from its caller, before anything heavy is loaded."""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.files import KEPT_NAME, work_folder_of
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.codecs import VideoEncoder, check_encoder, library_versions
from latentsync_trt.media.files import check_file, open_input, reading
from latentsync_trt.media.playback import HELD_S
from latentsync_trt.media.reader import Delays, are_one, delays_of, probe
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.media.writer import check_output_path
from latentsync_trt.option_fields import command_line, flag_name
from latentsync_trt.paths import local_path
from latentsync_trt.sync.speech import SpeechTracks, speech_tracks_of
from latentsync_trt.types import VideoInfo
from latentsync_trt.version import __version__, distribution_version

if TYPE_CHECKING:
    from latentsync_trt.face.track_file import Tracks
    from latentsync_trt.media.c2pa import Credentials


_NOT_IN_PICTURES = ("overwrite", "resume", "report", "strict", "mark", "c2pa")
_FILES = ("mix", "turns", "faces")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files and options of a run, all of which can be used, and the properties of the video.

    `info.duration_s` includes the delay of the picture, `picture_delay_s`. `own`: the video's own sound, where it has
    one; `mix`: what is heard instead of the speech. `tracks`: those of `--faces`. `page`: where to write the report.
    """

    options: SyncOptions
    video: Path
    output: Path
    info: VideoInfo
    encoder: VideoEncoder
    picture_delay_s: Fraction
    speech: SpeechTracks
    own: SoundPiece | None
    mix: SoundPiece | None
    tracks: "Tracks | None"
    credentials: "Credentials | None"
    page: Path | None


def check_inputs(video: object, audio: object, output: object, options: SyncOptions) -> Inputs:
    """Opens all inputs, decodes the first picture and the first sounds, and checks that `output` can be written.

    Args:
        video, output: paths, str or `os.PathLike`. audio: likewise, or None where `options` name the recordings.

    Raises:
        InputError: an argument is not a path, or `options` do not fit each other, the video or the
        output. MediaError: an input cannot be read. OutputError: the output cannot be written.
    """
    source, target = path_argument(video, "video"), path_argument(output, "output")
    recording = None if audio is None else path_argument(audio, "audio")
    mixed = None if options.mix is None else path_argument(options.mix, "--mix")
    for path in filter(None, (source, recording, mixed)):
        check_file(path)
    own, delays = _own_sound(source, options, recording, mixed)

    def at_s(path: Path) -> Fraction:
        """When the first sample of a file is heard."""
        start_s = delays.sound_s if are_one(path, source) else options.start or Fraction(0)
        return start_s + Fraction(str(options.offset)) / 1000

    speech = speech_tracks_of(recording, at_s, options)
    heard = [*dict.fromkeys(piece.path for piece in speech.recordings), *([mixed] if mixed else [])]
    for path in heard:
        check_file(path)
    # What an interrupted run was to replace, it has not replaced yet.
    replaces = options.overwrite or (options.resume and (work_folder_of(target) / KEPT_NAME).exists())
    check_output_path(target, source, *heard, overwrite=replaces)
    info = probe(source)
    encoder = check_encoder(options, info, target)
    for path in heard:
        with closing(read_audio_blocks(path)) as blocks:
            next(blocks, None)
    if info.duration_s is not None:
        lasts_s = info.duration_s + delays.picture_s
        for name, time_s, most_s in (("start", options.start, lasts_s), ("end", options.end, lasts_s + HELD_S)):
            if time_s is not None and not time_s < most_s:
                lasts = f"{source} lasts {float(lasts_s):.2f} s; give a time in it"
                raise InputError(f"--{name} {float(time_s):g}: {lasts}")
    others = _others(source, info, target, options, replaces=replaces)
    if info.duration_s is not None:
        info = replace(info, duration_s=lasts_s)
    mix = None if mixed is None else SoundPiece(mixed, at_s(mixed))
    return Inputs(options, source, target, info, encoder, delays.picture_s, speech, own, mix, *others)


def _others(
    video: Path, info: VideoInfo, output: Path, options: SyncOptions, *, replaces: bool
) -> "tuple[Tracks | None, Credentials | None, Path | None]":
    """What the options that few runs have name: their modules load OpenCV and more."""
    tracks = credentials = page = None
    if options.faces is not None:
        from latentsync_trt.face.track_file import read_tracks
        from latentsync_trt.sync.faces import mark_of

        path = path_argument(options.faces, "--faces")
        tracks = read_tracks(path)
        tracks.check_clip(mark_of(video, info), path)
    if options.enhancer is not None:
        from latentsync_trt.sync.compose import check_enhancer

        check_enhancer(options.enhancer)
    if options.c2pa is not None:
        from latentsync_trt.media.c2pa import read_credentials

        credentials = read_credentials(path_argument(options.c2pa, "--c2pa"), output)
    if options.report is not None:
        from latentsync_trt.measure.page import page_path

        page = page_path(options.report, "--report", overwrite=replaces)
    return tracks, credentials, page


def _own_sound(video: Path, options: SyncOptions, *files: Path | None) -> tuple[SoundPiece | None, Delays]:
    """The video's own sound and when both begin; none where neither `files` nor the time around a part need it."""
    named = [*filter(None, files), *(Path(speaker.voice) for speaker in options.speaker)]
    if options.start is None and options.end is None and not any(are_one(video, path) for path in named):
        return None, Delays()
    with open_input(video) as container:
        if not container.streams.audio:
            return None, Delays()
    delays = delays_of(video, video)
    return SoundPiece(video, delays.sound_s), delays


def path_argument(value: object, name: str) -> Path:
    """`value` as a path; raises `InputError`, naming the argument, if it cannot be one."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InputError(f"{name} {value!r}: is not a path; give a str or a pathlib.Path")
    return local_path(text, name)


def fingerprint(inputs: Inputs, bundle: Path, provider: str, brought: Mapping[str, object]) -> dict[str, str]:
    """By name, all that the pictures of a run depend on, as text that people can compare: an
    interrupted run goes on only where that would give the same ones.

    Files count by their name, size and time, so that a folder may be moved.

    Args:
        bundle: its folder. brought: arrays, and objects that count by their type; None is nothing.

    Raises:
        MediaError: an input has disappeared.
    """
    options, encoder = inputs.options, inputs.encoder
    recordings = [piece.path for piece in inputs.speech.recordings]
    separate = options.turns is None and bool(options.speaker)  # files, then
    names = [f"--speaker {speaker.face}" for speaker in options.speaker] if separate else ["--audio"]
    files = {"--video": inputs.video, **dict(zip(names, recordings, strict=False))}
    files |= {flag_name(name): Path(path) for name in _FILES if (path := getattr(options, name)) is not None}
    left_out = (*_NOT_IN_PICTURES, *_FILES, *(["speaker"] if not options.turns else []))
    runtimes = {name: version for name in _RUNTIMES if (version := distribution_version(name))}
    versions = {"latentsync-trt": __version__, **library_versions(), **runtimes}
    return {
        **{name: _stamp(path) for name, path in files.items()},
        "options": " ".join(command_line(options, leave_out=left_out)),
        **{name: _identity(value) for name, value in brought.items() if value is not None},
        "encoder": " ".join([encoder.ffmpeg, encoder.pixel_format, *(f"{k}={v}" for k, v in encoder.options)]),
        "bundle": sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()[:_DIGITS],
        "provider": provider,
        "cores": str(os.cpu_count()),  # FFV1 divides a picture by them, the same way in all parts
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _identity(value: object) -> str:
    if isinstance(value, np.ndarray):
        return sha256(value.tobytes()).hexdigest()[:_DIGITS]
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _stamp(path: Path) -> str:
    """Name, size and time of a file."""
    with reading(path):
        status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC).isoformat()
    return f"{path.name}, {status.st_size} bytes, {changed}"
