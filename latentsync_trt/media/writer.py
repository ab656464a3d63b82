"""Video output: encoded once, with the original sound; the file appears only when it is complete."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import av
from av.container import OutputContainer
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from latentsync_trt.config import MODEL_FPS, Encoder
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.media.codecs import H264, even_size, h264_encoder
from latentsync_trt.media.color import BT709, RGB_IDENTITY
from latentsync_trt.media.conversion import COLOR_RANGES, even_frame
from latentsync_trt.media.files import ffmpeg_name, reason_of, writing
from latentsync_trt.media.patching import apply_patch, paint, planes_of
from latentsync_trt.media.soundtrack import CopiedSound, EncodedSound, open_soundtrack, why_encoded
from latentsync_trt.paths import exists
from latentsync_trt.temporary import temporary_folder
from latentsync_trt.types import ColorTags, Frame, Patch, UInt8Array, VideoInfo

SUFFIXES = (".mp4", ".mov", ".mkv")
LOSSLESS_SUFFIX = ".mkv"

_LOSSLESS_FORMAT = "bgr0"
"""The 8-bit RGB format that FFV1 supports."""

_BT709_TAGS = ColorTags(BT709, BT709, BT709, full_range=False)
"""Of output from frames without planes."""

_NEAR_LOSSLESS_CRF = 10

# By default x264 starts 1.5 threads per core, each with its own frames: gigabytes on a large server, but no faster.
_ENCODER_THREADS = min(16, os.cpu_count() or 1)


def check_output_path(output: Path, *inputs: Path, lossless: bool) -> None:
    """Checks that `output` can be written, before any work is done.

    Raises:
        InputError: the container is not one of `SUFFIXES` (lossless: .mkv), or the file is one of the `inputs`.
        OutputError: its folder is missing or not writable, or it is a folder, a device or write-protected itself.
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{output}: cannot write {suffix or 'a file without extension'}; use {', '.join(SUFFIXES)}")
    if lossless and suffix != LOSSLESS_SUFFIX:
        raise InputError(f"{output}: lossless output needs a name that ends in {LOSSLESS_SUFFIX}")
    try:
        problem = _problem_of_place(output)
    except OSError as error:  # the system refuses the name, for example as too long
        raise OutputError(f"{output}: cannot be written: {reason_of(error)}", usage=True) from error
    if problem:
        raise OutputError(problem, usage=True)
    for source in inputs:
        if exists(output) and exists(source) and output.samefile(source):
            raise InputError(f"{output}: is also an input; choose another name for the output")


def _problem_of_place(output: Path) -> str | None:
    """Why no file can be written to `output`, and what to do; raises `OSError`."""
    folder = output.parent
    if output.is_dir():
        return f"{output}: is a folder; name a file in it"
    if not folder.is_dir():
        return f"{folder}: no such folder; create it first"
    if not os.access(folder, os.W_OK):
        return f"{folder}: not writable; choose another folder or change its permissions"
    if output.exists() and not output.is_file():
        return f"{output}: is not a file but a device or a pipe; choose another name"
    if output.exists() and not os.access(output, os.W_OK):
        return f"{output}: is write-protected; choose another name, or change its permissions"
    return None


class VideoWriter:
    """Writes frames at the model's rate; a context manager: the file appears when the block ends without an error.

    It is written in a temporary folder beside `output`, which is always removed.

    Args:
        output: .mp4, .mov or .mkv.
        info: the source, for its pixel aspect and, if lossless, its color tags, which else come with the frames; None
            if there is none.
        audio: file whose first audio stream becomes the sound; None for silence. audio_delay_s: when it starts.
        crf: x264's quality, 0 to 51. encoder: see `h264_encoder`. lossless: FFV1 RGB instead.

    Raises:
        OutputError: on entering, writing or leaving: the file cannot be written, or the encoder does not open.
        MediaError: the sound cannot be read, which is found out at once.
    """

    def __init__(
        self,
        output: Path,
        info: VideoInfo | None,
        *,
        audio: Path | None = None,
        audio_delay_s: Fraction = Fraction(0),
        crf: int = 16,
        encoder: Encoder = "x264",
        lossless: bool = False,
    ) -> None:
        self._output, self._info, self._audio, self._audio_delay_s = output, info, audio, audio_delay_s
        self._crf, self._encoder, self._lossless = crf, encoder, lossless
        self._cleanup = contextlib.ExitStack()
        self._opened: tuple[OutputContainer, VideoStream] | None = None
        self._sound: CopiedSound | EncodedSound | None = None
        self._count = 0
        problem = None if audio is None else why_encoded(audio, output.suffix.lower())
        self._sound_is_encoded = problem is not None
        self.notices = (*_losses(info, lossless=lossless), *((problem,) if problem else ()))
        """What the output cannot preserve."""

    def __enter__(self) -> Self:
        with writing(self._output):
            folder = temporary_folder(self._output.parent, self._add_notice)
            self._part = self._cleanup.enter_context(folder) / self._output.name
        return self

    def write(self, frame: Frame, patch: Patch | None = None) -> None:
        """Encodes the next frame with the changed pixels of `patch`.

        Raises:
            OutputError: disk full, for example. MediaError: the sound cannot be read.
        """
        with writing(self._output):
            picture = self._picture(frame, patch)
            self._opened = self._opened or self._open(picture)
            container, stream = self._opened
            picture.pts, picture.time_base = self._count, Fraction(1, MODEL_FPS)
            container.mux(stream.encode(picture))
            self._count += 1
            if self._sound is not None:
                container.mux(list(self._sound.packets(Fraction(self._count, MODEL_FPS))))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup:
            if kind is None:
                self._finish()

    def _add_notice(self, text: str) -> None:
        self.notices += (text,)

    def _open(self, picture: VideoFrame) -> tuple[OutputContainer, VideoStream]:
        """The container and its video stream, for pictures like `picture`."""
        suffix = self._output.suffix.lower()
        options = {} if suffix == ".mkv" else {"movflags": "+faststart"}
        container = av.open(ffmpeg_name(self._part), "w", options=options)
        self._cleanup.callback(_close, container, self._part)
        stream = self._add_video(container, picture)
        if self._audio is not None:
            sound = open_soundtrack(self._audio, container, self._audio_delay_s, encoded=self._sound_is_encoded)
            self._sound = self._cleanup.enter_context(sound)
        return container, stream

    def _add_video(self, container: OutputContainer, picture: VideoFrame) -> VideoStream:
        if self._lossless:
            encoder = H264("ffv1", {})
        else:
            encoder = h264_encoder(self._encoder, self._crf, picture.width, picture.height)
        # PyAV's types know only some encoders by name.
        stream = cast(VideoStream, container.add_stream(encoder.codec, rate=MODEL_FPS, options=encoder.options))
        stream.pix_fmt = picture.format.name
        stream.width, stream.height = picture.width, picture.height
        stream.thread_count = _ENCODER_THREADS
        stream.time_base = Fraction(1, MODEL_FPS)
        context = stream.codec_context
        context.color_primaries, context.color_trc = int(picture.color_primaries), int(picture.color_trc)
        context.colorspace, context.color_range = int(picture.colorspace), int(picture.color_range)
        context.sample_aspect_ratio = self._info.sample_aspect_ratio if self._info else Fraction(1)
        return stream

    def _picture(self, frame: Frame, patch: Patch | None) -> VideoFrame:
        """The frame as it will be encoded, with its color tags."""
        if self._lossless:
            rgb = frame.rgb if patch is None else paint(frame.rgb, patch)
            picture = VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=_LOSSLESS_FORMAT)
            source = self._info.color if self._info else _BT709_TAGS
            color = replace(source, matrix=RGB_IDENTITY, full_range=True)
        else:
            planes = planes_of(frame.rgb, _BT709_TAGS) if frame.planes is None else frame.planes
            planes = planes if patch is None else apply_patch(planes, patch)
            picture, color = even_frame(planes), planes.color
        picture.color_primaries, picture.color_trc = color.primaries, color.transfer
        picture.colorspace, picture.color_range = color.matrix, COLOR_RANGES[color.full_range]
        return picture

    def _finish(self) -> None:
        if self._opened is None:
            raise OutputError(f"{self._output}: no frame was written")
        container, stream = self._opened
        with writing(self._output):
            container.mux(stream.encode(None))
            if self._sound is not None:
                container.mux(list(self._sound.flush()))
            container.close()
            self._part.replace(self._output)


def _close(container: OutputContainer, part: Path) -> None:
    """Closes a container, unless it is closed already; its file `part` is incomplete then, and errors do not matter."""
    # Closing moves all of an MP4 to make room for its index at the front, unless the file is gone.
    for end in (part.unlink, container.close):
        with contextlib.suppress(av.error.FFmpegError, OSError):
            end()


def write_pictures(
    path: Path,
    pictures: Iterable[UInt8Array],
    *,
    lossless: bool = False,
    audio: Path | None = None,
    audio_delay_s: Fraction = Fraction(0),
) -> None:
    """Writes pictures of one size, uint8 `(H, W, 3)` RGB, at the model's rate, near lossless or lossless.

    Args:
        audio: file whose first audio stream is the sound, cut at the last picture; None for silence.
        audio_delay_s: when it starts.

    Raises:
        OutputError: the file cannot be written, or there are no pictures. MediaError: the sound cannot be read.
    """
    stream = iter(pictures)
    first = next(stream, None)
    if first is None:
        raise OutputError(f"{path}: there are no pictures to write")
    crf = _NEAR_LOSSLESS_CRF
    with VideoWriter(path, None, audio=audio, audio_delay_s=audio_delay_s, crf=crf, lossless=lossless) as writer:
        for index, rgb in enumerate(chain([first], stream)):
            writer.write(Frame(index, Fraction(index, MODEL_FPS), rgb, None))


def _losses(info: VideoInfo | None, *, lossless: bool) -> tuple[str, ...]:
    losses: list[str] = []
    if info is None:
        return ()
    size = info.width_px, info.height_px
    even = even_size(*size)
    if even != size and not lossless:
        sizes = f"{size[0]}×{size[1]} to {even[0]}×{even[1]}"
        losses.append(f"H.264 needs even sides: the picture grows from {sizes} by repeating its edge")
    if lossless and info.sample_aspect_ratio != 1:
        # PyAV sets the aspect of an encoder, which FFV1 does not write, but not that of a stream.
        aspect = info.sample_aspect_ratio * Fraction(*size)
        cure = f"to add it afterwards: ffmpeg -i OUTPUT -c copy -aspect {aspect.numerator}:{aspect.denominator} NEW.mkv"
        losses.append(f"lossless output does not store its pixel aspect {info.sample_aspect_ratio}; {cure}")
    bits = max((component.bits for component in VideoFormat(info.pixel_format).components), default=8)
    if bits > 8:
        losses.append(f"the picture has {bits} bits per channel ({info.pixel_format}); 8 are written")
    if info.interlaced:
        losses.append("the picture is interlaced; its fields are not separated")
    return tuple(losses)
