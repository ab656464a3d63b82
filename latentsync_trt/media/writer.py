"""Video output: encoded once, with its sound; the file appears only when it is complete."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import av

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import InferenceError, NoFaceError, OutOfMemory, OutputError
from latentsync_trt.files import (
    KEPT_NAME,
    end_of_links,
    temporary_folder,
    work_folder,
)
from latentsync_trt.media.contents import NO_EXTRAS, FileExtras, choose_contents
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import writing
from latentsync_trt.media.losses import losses
from latentsync_trt.media.muxing import make_whole, replace_output
from latentsync_trt.media.parts import (
    FinishedParts,
    PartWriter,
    ResumeRequest,
    part_of,
    stamps_per_s,
)
from latentsync_trt.media.pictures import PictureMaker, picture_info
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.timing import nearest
from latentsync_trt.spans import Span
from latentsync_trt.stopping import delayed
from latentsync_trt.types import Frame, Patch, UInt8Array, VideoInfo

_NEAR_LOSSLESS = SyncOptions(crf=10)
"""Finer than the default of H.264, 16, so that what is measured in it is hardly the encoder's work;
0 would be a profile that few players decode.
"""
_LOSSLESS = SyncOptions(codec="ffv1")

_CAN_GO_ON = (KeyboardInterrupt, OutOfMemory, InferenceError, OutputError)
"""Errors after which the same command may succeed: Ctrl-C, a lack of memory, a lost GPU, a full
disk.
"""


class VideoWriter:
    """Writes frames at their own times; the file appears when the block ends without an error.

    Meanwhile the picture lies in parts in a folder beside `output`. With `resume`, that folder is
    kept where the block ends with an error, or its process is killed, once a part is closed; the
    next run can go on there.

    Args:
        output: .mp4, .mov or .mkv.
        info: the source, for which `encoder` is made. Stamps are written in its `time_base`, by
            default at the model's rate.

    Raises:
        InputError: what is to be gone on with was made from other files or with other options.
        OutputError: the file cannot be written, or the encoder does not open.
        MediaError: an input cannot be read.
    """

    def __init__(
        self,
        output: Path,
        info: VideoInfo,
        encoder: VideoEncoder,
        extras: FileExtras = NO_EXTRAS,
        resume: ResumeRequest | None = None,
    ) -> None:
        suffix = output.suffix.lower()
        self.output = output
        self._resume = resume
        self._contents = choose_contents(suffix, encoder, info, extras)
        self._maker = PictureMaker(info, encoder)
        per_s = stamps_per_s(info)
        self._finished = FinishedParts({}, per_s)
        self.notices = tuple(losses(self._contents))
        """What the output cannot preserve, and what is done with an interrupted run."""
        if resume is not None:
            self._finished, notices = resume.begin(output, per_s)
            self.notices += notices
        self.frames_done = self._finished.frames
        """Frames that an interrupted run has finished; `write` ignores those of a lower index."""
        self.end_s = self._finished.end_s
        """When the last frame ends."""
        self.todo = self._finished.todo
        self.redone: tuple[Span, ...] = ()
        """The spans that are done again: none, as all is written."""
        self._part: PartWriter | None = None
        self._part_number = -1
        self._last_stamp = -1
        if self.frames_done:
            self._last_stamp = max(self._finished.parts[-1].stamps)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened, writing(self.output):
            place = end_of_links(self.output)
            place.parent.mkdir(parents=True, exist_ok=True)
            if self._resume is None:
                folder = temporary_folder(place.parent)
            else:
                folder = work_folder(place)
            self._folder = opened.enter_context(folder)
            if self.frames_done:
                self._finished.write(self._folder)  # without files that this run has no use for
            self._cleanup = opened.pop_all()
        return self

    def write(self, frame: Frame, patches: Iterable[Patch] = ()) -> None:
        """Encodes the next frame, in which `patches` replace parts of the picture."""
        if frame.index < self.frames_done:
            return
        number = part_of(frame.time_s)
        stamp = self._stamp(frame.time_s)
        with delayed(), writing(self.output):
            if self._part is not None and number != self._part_number:
                self._close_part(stamp)
            picture = self._maker.frame(frame, patches)
            if self._part is None:
                encoder = self._contents.encoder
                info = self._contents.info
                self._part = PartWriter(
                    self._folder, encoder, info, self._finished.time_base, stamp
                )
            self._part.write(picture, stamp)
            self._part_number = number
            self._last_stamp = stamp
            self.end_s = frame.time_s + frame.duration_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            with self._cleanup:
                self._finish()
            return
        try:
            self._end_part(error)
            if isinstance(error, NoFaceError) and self._finished.parts:  # nothing to go on with
                (self._folder / KEPT_NAME).unlink(missing_ok=True)
        finally:
            self._cleanup.__exit__(kind, error, trace)

    def _stamp(self, time_s: Fraction) -> int:
        return max(nearest(time_s, self._finished.per_s), self._last_stamp + 1)

    def _close_part(self, end: int, *, last: bool = False) -> None:
        if self._part is not None:
            closed = self._part.close(end)
            self._part = None
            self._finished = replace(self._finished, parts=(*self._finished.parts, closed))
        # A short clip has nothing to go on with.
        if self._resume is not None and len(self._finished.parts) > (1 if last else 0):
            self._finished.write(self._folder)

    def _end_part(self, error: BaseException | None) -> None:
        """Closes the open part where it stops, so that the next run can go on there; drops it if
        that fails, what an earlier run has kept would be lost, or the same command would fail
        again.
        """
        part = self._part
        if part is None:
            return
        replaces = not self._finished.parts and (self._folder / KEPT_NAME).exists()
        if self._resume is not None and isinstance(error, _CAN_GO_ON) and not replaces:
            with contextlib.suppress(av.FFmpegError, OSError):  # `error` says what is wrong
                self._close_part(self._stamp(self.end_s))
                return
        part.abandon()

    def _finish(self) -> None:
        with writing(self.output):
            self._close_part(self._stamp(self.end_s), last=True)
            if not self._finished.parts:
                raise OutputError(f"{self.output}: no frame was written")
            whole, notices = make_whole(
                self._folder, self.output.suffix, self._finished, self._contents
            )
            self.notices += notices
            try:
                self.notices += replace_output(self.output, whole, self._contents)
            finally:
                if not whole.exists():  # nothing is left to go on with
                    (self._folder / KEPT_NAME).unlink(missing_ok=True)


def write_pictures(
    path: Path,
    pictures: Iterable[UInt8Array],
    *,
    fps: Fraction = Fraction(MODEL_FPS),
    lossless: bool = False,
    audio: Path | None = None,
    audio_delay_s: Fraction = Fraction(0),
) -> None:
    """Writes pictures of one size, uint8 `(H, W, 3)` RGB, near lossless or lossless; the sound, the
    main audio stream of `audio` from `audio_delay_s` on, is cut at the last picture. Raises as
    `VideoWriter`.
    """
    sound = () if audio is None else (SoundPiece(audio, audio_delay_s),)
    frames = (
        Frame(index, index / fps, 1 / fps, index / fps, rgb, None)
        for index, rgb in enumerate(pictures)
    )
    options = _LOSSLESS if lossless else _NEAR_LOSSLESS
    write_rgb(path, frames, options, sound, frames_per_s=fps, time_base=1 / fps)


def write_rgb(
    path: Path,
    frames: Iterable[Frame],
    options: SyncOptions,
    sound: tuple[SoundPiece, ...],
    *,
    frames_per_s: Fraction | None,
    time_base: Fraction | None,
) -> None:
    """Writes frames of one size that have no planes: as RGB where `options` name FFV1, else as
    4:2:0. The sound is cut at the end of the last. Raises as `VideoWriter`.
    """
    remaining = iter(frames)
    first = next(remaining, None)
    if first is None:
        raise OutputError(f"{path}: there are no pictures to write")
    height_px, width_px, _ = first.picture.shape
    info = picture_info(width_px, height_px, rgb=options.codec == "ffv1")
    info = replace(info, frames_per_s=frames_per_s, time_base=time_base)
    encoder = choose_encoder(options, info)
    with VideoWriter(path, info, encoder, FileExtras(sound)) as writer:
        for frame in chain([first], remaining):
            writer.write(frame)
