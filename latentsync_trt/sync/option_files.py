"""Checks what options name: files of tracks, masks and keys, an earlier result, an enhancer.

Modules that few runs need, which load OpenCV and more, are imported by these functions.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.paths import path_argument
from latentsync_trt.types import VideoInfo

if TYPE_CHECKING:
    from latentsync_trt.face.track_file import Tracks
    from latentsync_trt.media.c2pa import Credentials
    from latentsync_trt.media.earlier_result import EarlierResult
    from latentsync_trt.media.keep_mask import KeepMask


def check_enhancer_of(options: SyncOptions) -> None:
    if options.enhancer is not None:
        from latentsync_trt.compositing.enhancer import check_enhancer

        check_enhancer(options.enhancer)


def tracks_of(video: Path, info: VideoInfo, options: SyncOptions) -> "Tracks | None":
    if options.faces is None:
        return None
    from latentsync_trt.face.track_file import mark_of, read_tracks

    path = path_argument(options.faces, "--faces")
    tracks = read_tracks(path)
    tracks.check_clip(mark_of(video, info), path)
    if options.face == "speaking" and tracks.turns is None and len(tracks.people) > 1:
        problem = f"--face speaking: {path} does not say who speaks"
        raise InputError(f"{problem}; write it anew with latentsync-trt faces")
    return tracks


def earlier_of(output: Path, options: SyncOptions) -> "EarlierResult | None":
    if not options.redo:
        return None
    from latentsync_trt.media.earlier_result import EarlierResult

    if not output.exists():
        raise InputError(
            f"{output}: does not exist; --redo does a part of a result again, so name that with "
            "--output"
        )
    earlier = EarlierResult.read(output)
    earlier.check_spans(options.redo)
    return earlier


def keep_mask_of(video: Path, info: VideoInfo, options: SyncOptions) -> "KeepMask | None":
    if options.keep_mask is None:
        return None
    from latentsync_trt.media.keep_mask import check_keep_mask

    return check_keep_mask(path_argument(options.keep_mask, "--keep-mask"), video, info)


def credentials_of(output: Path, options: SyncOptions) -> "Credentials | None":
    if options.c2pa is None:
        return None
    from latentsync_trt.media.c2pa import read_credentials

    return read_credentials(path_argument(options.c2pa, "--c2pa"), output)


def page_of(options: SyncOptions, *, overwrite: bool) -> Path | None:
    if options.report is None:
        return None
    from latentsync_trt.measure.page import page_path

    return page_path(options.report, "--report", overwrite=overwrite)
