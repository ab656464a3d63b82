"""Video output: encoded once, with its sound; the file appears only when it is complete. Copies for
browsers.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from math import lcm
from pathlib import Path
from types import TracebackType
from typing import Self

import av

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import InferenceError, InputError, NoFaceError, OutOfMemory, OutputError
from latentsync_trt.files import (
    KEPT_NAME,
    end_of_links,
    put_in_place,
    temporary_folder,
    work_folder,
)
from latentsync_trt.media.contents import Contents
from latentsync_trt.media.decoding import is_photo
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import codec_name, open_input, writing
from latentsync_trt.media.losses import losses
from latentsync_trt.media.muxing import assemble
from latentsync_trt.media.parts import FinishedParts, PartWriter, ResumeRequest, part_of
from latentsync_trt.media.pictures import PictureMaker, picture_info, small_rgb
from latentsync_trt.media.playback import HELD_S, Playback
from latentsync_trt.media.reader import delays_of, is_same_file, probe, read_frames
from latentsync_trt.media.soundtrack import LOSSLESS_WITH, ChosenSound, SoundPiece, choose_sound
from latentsync_trt.media.timing import nearest
from latentsync_trt.paths import check_file_to_write, check_free
from latentsync_trt.stopping import delayed
from latentsync_trt.types import Frame, Patch, UInt8Array, VideoInfo

SUFFIXES = (".mp4", ".mov", ".mkv")
_NEAR_LOSSLESS_CRF = 10

# After which the same command may succeed: Ctrl-C, a lack of memory, a lost GPU, a full disk.
_CAN_GO_ON = (KeyboardInterrupt, OutOfMemory, InferenceError, OutputError)
_FINE_PER_S = 600

_PREVIEW_PX = 720
_UNSEEN_S = Fraction(1, 100)
"""By which pictures beside each other may be apart: less than half the period of any."""
_PREVIEW = SyncOptions(codec="h264", encoder="x264:ultrafast", crf=23)

# By FFmpeg's name of the container, what all browsers play; they take WebM for Matroska, but not
# H.264 in it.
_BROWSER_CODECS = {"mov": ("h264", "av1", "vp9"), "matroska": ("vp8", "vp9", "av1")}
_BROWSER_FORMATS = "yuv420p", "yuvj420p"
_BROWSER_SOUNDS = "aac", "mp3", "opus", "vorbis", "flac"


def check_output_path(output: Path, *inputs: Path, overwrite: bool) -> None:
    """Checks that `output` can be written, before any work is done: `InputError` if it is none of
    `SUFFIXES`, one of the `inputs`, or not to be replaced; `OutputError` if the system does not let
    it be written.
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{output}: cannot write {suffix or 'a file without extension'}; "
            f"use {', '.join(SUFFIXES)}"
        )
    try:
        check_file_to_write(output)
        protected = output.exists() and not (output.is_file() and os.access(output, os.W_OK))
    except InputError as error:
        raise OutputError(str(error), usage=True) from error
    except OSError as error:  # the system refuses the name, for example as too long
        raise OutputError(f"{output}: cannot be written: {error.strerror}", usage=True) from error
    if protected:
        raise OutputError(
            f"{output}: is write-protected, a device or a pipe; choose another name", usage=True
        )
    if any(is_same_file(output, source) for source in inputs):
        raise InputError(f"{output}: is also an input; choose another name for the output")
    check_free(output, overwrite=overwrite)


class VideoWriter:
    """Writes frames at their own times; the file appears when the block ends without an error.

    Meanwhile the picture lies in parts in a folder beside `output`. With `work`, that folder is
    kept where the block ends with an error, or its process is killed, once a part is closed; the
    next run can go on there. `notices`: what the output cannot preserve, and what is done with an
    interrupted run. `frames_done`: frames that such a run has finished; `write` ignores those of a
    lower index. `paint_from`: see `FinishedParts`.

    Args:
        output: .mp4, .mov or .mkv. info: the source, for which `encoder` is made. Stamps are
            written in its `time_base`, by default at the model's rate. sound: the sum of pieces;
            none for silence.
        others: file whose other audio tracks, subtitles, chapters and tags are kept, usually the
            source. Its first picture is shown at `others_delay_s`.
        mark: say in the file that AI changed the picture. sign: called with the complete file;
            returns notices.

    Raises:
        InputError: what is to be gone on with was made from other files or with other options.
        OutputError: the file cannot be written, or the encoder does not open. MediaError: an input
            cannot be read.
    """

    def __init__(
        self,
        output: Path,
        info: VideoInfo,
        encoder: VideoEncoder,
        sound: tuple[SoundPiece, ...] = (),
        others: Path | None = None,
        *,
        others_delay_s: Fraction = Fraction(0),
        work: ResumeRequest | None = None,
        mark: bool = False,
        sign: Callable[[Path], tuple[str, ...]] | None = None,
    ) -> None:
        suffix = output.suffix.lower()
        lossless = encoder.codec in LOSSLESS_WITH
        if sound:
            chosen = choose_sound(sound, suffix, lossless=lossless)
        else:
            chosen = ChosenSound(())
        origin_s = (info.start_s or Fraction(0)) - others_delay_s
        self.output = output
        self._work = work
        self._sign = sign
        self._contents = Contents(suffix, encoder, info, chosen, others, origin_s, mark)
        self._maker = PictureMaker(info, encoder)
        per_s = MODEL_FPS if info.time_base is None else info.time_base.denominator
        # Finer where pictures held at the model's rate would be rounded visibly.
        self._finished = FinishedParts({}, per_s if per_s >= _FINE_PER_S else lcm(per_s, MODEL_FPS))
        self.notices = tuple(losses(self._contents))
        if work is not None:
            self._finished, notices = work.begin(output, self._finished.per_s)
            self.notices += notices
        self.frames_done = self._finished.frames
        self.end_s = self._finished.end_s
        self.paint_from = self._finished.paint_from
        self._part: PartWriter | None = None
        self._number = -1
        if self.frames_done:
            self._last = max(self._finished.parts[-1].stamps)
        else:
            self._last = -1

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened, writing(self.output):
            place = end_of_links(self.output)
            place.parent.mkdir(parents=True, exist_ok=True)
            if self._work is None:
                kept = temporary_folder(place.parent)
            else:
                kept = work_folder(place)
            self._folder = opened.enter_context(kept)
            if self.frames_done:
                self._finished.write(self._folder)  # without files that this run has no use for
            self._cleanup = opened.pop_all()
        return self

    def write(self, frame: Frame, patches: Iterable[Patch] = ()) -> None:
        if frame.index < self.frames_done:
            return
        number = part_of(frame.time_s)
        stamp = self._stamp(frame.time_s)
        with delayed(), writing(self.output):
            if self._part is not None and number != self._number:
                self._close_part(stamp)
            picture = self._maker.frame(frame, patches)
            if self._part is None:
                encoder = self._contents.encoder
                info = self._contents.info
                self._part = PartWriter(
                    self._folder, encoder, info, self._finished.time_base, stamp
                )
            self._part.write(picture, stamp)
            self._number = number
            self._last = stamp
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
        return max(nearest(time_s, self._finished.per_s), self._last + 1)

    def _close_part(self, end: int, *, last: bool = False) -> None:
        if self._part is not None:
            part = self._part.close(end)
            self._part, self._finished = (
                None,
                replace(self._finished, parts=(*self._finished.parts, part)),
            )
        # A short clip has nothing to go on with.
        if self._work is not None and len(self._finished.parts) > (1 if last else 0):
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
        if self._work is not None and isinstance(error, _CAN_GO_ON) and not replaces:
            with contextlib.suppress(av.FFmpegError, OSError):  # `error` says what is wrong
                self._close_part(self._stamp(self.end_s))
                return
        part.abandon()

    def _finish(self) -> None:
        with writing(self.output):
            self._close_part(self._stamp(self.end_s), last=True)
            if not self._finished.parts:
                raise OutputError(f"{self.output}: no frame was written")
            # short, as Windows limits paths to 259 characters
            whole = self._folder / f"whole{self.output.suffix}"
            self.notices += assemble(whole, self._folder, self._finished, self._contents)
            if self._sign is not None:
                self.notices += self._sign(whole)
            try:
                put_in_place(whole, self.output)
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
    first audio stream of `audio` from `audio_delay_s` on, is cut at the last picture. Raises as
    `VideoWriter`.
    """
    stream = iter(pictures)
    first = next(stream, None)
    if first is None:
        raise OutputError(f"{path}: there are no pictures to write")
    period_s = 1 / fps
    height_px, width_px, _ = first.shape
    info = replace(
        picture_info(width_px, height_px, rgb=lossless), frames_per_s=fps, time_base=period_s
    )
    if lossless:
        options = SyncOptions(codec="ffv1")
    else:
        options = SyncOptions(crf=_NEAR_LOSSLESS_CRF)
    sound = () if audio is None else (SoundPiece(audio, audio_delay_s),)
    with VideoWriter(path, info, choose_encoder(options, info), sound) as writer:
        for index, rgb in enumerate(chain([first], stream)):
            writer.write(Frame(index, index * period_s, period_s, index * period_s, rgb, None))


def plays(video: Path) -> bool:
    """Whether all browsers can play a file; raises `MediaError`."""
    with open_input(video) as container:
        pictures = container.streams.video
        sounds = container.streams.audio
        codecs = [
            codec
            for name in container.format.name.split(",")
            for codec in _BROWSER_CODECS.get(name, ())
        ]
        return (
            bool(pictures)
            and not is_photo(pictures[0])
            and codec_name(pictures[0]) in codecs
            and pictures[0].codec_context.pix_fmt in _BROWSER_FORMATS
            and all(codec_name(each) in _BROWSER_SOUNDS for each in sounds)
        )


def keeps_time(video: Path, playback: Playback) -> bool:
    """Whether players show the pictures of a file at the times that `playback` gives them; raises
    `MediaError`.
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
    """Writes a small copy for browsers: with the same times and with sound, or silent as `playback`
    says; raises `LatentSyncError`.
    """
    info = probe(video)
    small_of = partial(small_rgb, info, max_height_px=_PREVIEW_PX)
    shown = read_frames(video, playback or Playback())
    frames = (replace(frame, picture=small_of(frame), planes=None) for frame in shown)
    first = next(frames)
    height_px, width_px, _ = first.picture.shape
    small = picture_info(width_px, height_px, rgb=False)
    small = replace(small, frames_per_s=info.frames_per_s, time_base=info.time_base)
    sound = _sound_beside(video) if playback is None else ()
    with VideoWriter(target, small, choose_encoder(_PREVIEW, small), sound) as writer:
        for frame in chain([first], frames):
            writer.write(frame)


def _sound_beside(video: Path) -> tuple[SoundPiece, ...]:
    """The sound of a file, if it has some, at its time after the first picture."""
    with open_input(video) as container:
        has_sound = any(map(codec_name, container.streams.audio[:1]))
    if not has_sound:
        return ()
    delays = delays_of(video, video)
    return (SoundPiece(video, delays.sound_s - delays.picture_s),)
