"""Video out: encoded once, with the original sound, and there only when it is complete."""

import contextlib
import os
import tempfile
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import av
from av.container import OutputContainer
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange
from av.video.stream import VideoStream

from latentsync_trt.config import MODEL_FPS, Encoder
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.media.color import BT709
from latentsync_trt.media.encoders import h264_encoder
from latentsync_trt.media.failures import ffmpeg_name, writing
from latentsync_trt.media.patch import apply_patch, paint, planes_of
from latentsync_trt.media.pictures import frame_of_planes
from latentsync_trt.media.soundtrack import Soundtrack
from latentsync_trt.types import ColorTags, Frame, Patch, UInt8Array, VideoInfo

SUFFIXES = (".mp4", ".mov", ".mkv")
LOSSLESS_SUFFIX = ".mkv"
TEMPORARY_PREFIX = ".latentsync-"

_LOSSLESS_FORMAT = "bgr0"
"""8-bit RGB as FFV1 takes it."""

_NEAR_LOSSLESS_CRF = 10

# Left alone, x264 starts 1.5 threads a core, each with frames of its own: gigabytes on a large server, and no faster.
_ENCODER_THREADS = min(16, os.cpu_count() or 1)


def check_output_path(output: Path, *inputs: Path, lossless: bool) -> None:
    """Says before any work is done whether `output` can be written.

    Raises:
        InputError: another container than `SUFFIXES` (lossless: than .mkv), or one of the `inputs`.
        OutputError: its folder is missing or not writable, or it is a folder itself.
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{output}: cannot write {suffix or 'a file without ending'}; use {', '.join(SUFFIXES)}")
    if lossless and suffix != LOSSLESS_SUFFIX:
        raise InputError(f"{output}: lossless output needs a name that ends in {LOSSLESS_SUFFIX}")
    if output.is_dir():
        raise OutputError(f"{output}: is a folder; name a file in it")
    for source in inputs:
        if output.exists() and source.exists() and output.samefile(source):
            raise InputError(f"{output}: is also an input; choose another name for the output")
    folder = output.parent
    if not folder.is_dir():
        raise OutputError(f"{folder}: no such folder; create it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: not writable; choose another folder or change its permissions")


class VideoWriter:
    """Writes frames at `fps`. Use as a context manager: leaving it without an error puts the file in its place.

    The file is made in a temporary folder beside `output`, which is removed whatever happens.

    Args:
        output: .mp4, .mov or .mkv. info: the source, whose pixel aspect is kept; color tags come with the frames.
        audio: whose first audio stream is the sound; None for silence.
        crf: x264's quality, 0 to 51. encoder: see `h264_encoder`. lossless: FFV1 RGB instead.

    Raises:
        OutputError: on entering, writing or leaving: the file cannot be written, or the encoder does not open.
        MediaError: the sound cannot be read.
    """

    def __init__(
        self,
        output: Path,
        info: VideoInfo,
        *,
        audio: Path | None = None,
        crf: int = 16,
        encoder: Encoder = "x264",
        lossless: bool = False,
        fps: int = MODEL_FPS,
    ) -> None:
        self._output, self._info, self._audio = output, info, audio
        self._crf, self._encoder, self._lossless, self._fps = crf, encoder, lossless, fps
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._sound: Soundtrack | None = None
        self._count = 0
        self.notices = _losses(info)

    def __enter__(self) -> Self:
        with writing(self._output):
            self._folder = tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=self._output.parent)
        return self

    def write(self, frame: Frame, patch: Patch | None = None) -> None:
        """Encodes the next frame, with the new pixels of `patch`; only those differ from the frame's own.

        Raises:
            OutputError: disk full, for example. MediaError: the sound cannot be read.
        """
        with writing(self._output):
            container, stream = self._opened(frame)
            picture = self._picture(frame, patch)
            picture.pts, picture.time_base = self._count, Fraction(1, self._fps)
            container.mux(stream.encode(picture))
            self._count += 1
            if self._sound is not None:
                for packet in self._sound.packets(Fraction(self._count, self._fps)):
                    container.mux(packet)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._release()

    @property
    def _part(self) -> Path:
        if self._folder is None:
            raise OutputError(f"{self._output}: written to outside of `with`")
        return Path(self._folder.name) / self._output.name

    def _opened(self, frame: Frame) -> tuple[OutputContainer, VideoStream]:
        """The container, opened when the first frame says what it holds."""
        if self._container is None or self._stream is None:
            options = {} if self._output.suffix.lower() == ".mkv" else {"movflags": "+faststart"}
            self._container = av.open(ffmpeg_name(self._part), "w", options=options)
            self._stream = self._add_video(self._container, frame)
            if self._audio is not None:
                self._sound = Soundtrack(self._audio, self._container, self._output.suffix.lower())
                if not self._sound.copied:
                    self.notices += (f"{self._output.suffix} does not take the sound as it is: encoded as AAC",)
        return self._container, self._stream

    def _add_video(self, container: OutputContainer, frame: Frame) -> VideoStream:
        height, width = frame.picture.shape[:2]
        if self._lossless:
            stream = container.add_stream("ffv1", rate=self._fps)
            stream.pix_fmt = _LOSSLESS_FORMAT
        else:
            height, width = self._even(height, width)
            h264 = h264_encoder(self._encoder, self._crf, width, height)
            # PyAV knows the kind of a stream by the names of some encoders only.
            stream = cast(VideoStream, container.add_stream(h264.codec, rate=self._fps, options=h264.options))
            stream.pix_fmt = "yuv420p"
            if frame.planes is not None:
                _tag(stream, frame.planes.color)
        stream.width, stream.height = width, height
        stream.thread_count = _ENCODER_THREADS
        stream.time_base = Fraction(1, self._fps)
        stream.codec_context.sample_aspect_ratio = self._info.sample_aspect_ratio
        return stream

    def _even(self, height: int, width: int) -> tuple[int, int]:
        even = height + height % 2, width + width % 2
        if even != (height, width):
            sizes = f"{width}×{height} to {even[1]}×{even[0]}"
            self.notices += (f"H.264 needs even sides: the picture grows from {sizes} by repeating its edge",)
        return even

    def _picture(self, frame: Frame, patch: Patch | None) -> VideoFrame:
        if self._lossless or frame.planes is None:
            rgb = frame.rgb if patch is None else paint(frame.rgb, patch)
            return VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=_LOSSLESS_FORMAT)
        planes = frame.planes if patch is None else apply_patch(frame.planes, patch)
        picture = frame_of_planes(planes, even=True)
        picture.color_range = _range(planes.color)
        return picture

    def _finish(self) -> None:
        if self._container is None or self._stream is None:
            raise OutputError(f"{self._output}: no frame was written")
        with writing(self._output):
            self._container.mux(self._stream.encode(None))
            if self._sound is not None:
                for packet in self._sound.finish(Fraction(self._count, self._fps)):
                    self._container.mux(packet)
            container, self._container = self._container, None
            container.close()
            self._part.replace(self._output)

    def _release(self) -> None:
        """Lets go of everything; what was not finished is thrown away."""
        if self._sound is not None:
            self._sound.__exit__()
        if self._container is not None:
            # The file is thrown away; why it failed is already on its way to the caller.
            with contextlib.suppress(av.error.FFmpegError, OSError):
                self._container.close()
        if self._folder is not None:
            self._folder.cleanup()


def write_pictures(
    path: Path, pictures: Iterable[UInt8Array], *, lossless: bool = False, audio: Path | None = None
) -> None:
    """Writes pictures of one size, uint8 `(H, W, 3)` RGB, at the model's rate, near lossless or lossless.

    Args:
        audio: whose first audio stream is the sound, as long as there are pictures; None for silence.

    Raises:
        OutputError: the file cannot be written, or there are no pictures. MediaError: the sound cannot be read.
    """
    stream = iter(pictures)
    first = next(stream, None)
    if first is None:
        raise OutputError(f"{path}: there are no pictures to write")
    height, width = first.shape[:2]
    color = ColorTags(BT709, BT709, BT709, full_range=False)
    info = VideoInfo(width, height, Fraction(MODEL_FPS), None, "h264", "yuv420p", 0, color)
    with VideoWriter(path, info, audio=audio, crf=_NEAR_LOSSLESS_CRF, lossless=lossless) as writer:
        for index, rgb in enumerate(chain([first], stream)):
            planes = None if lossless else planes_of(rgb, color)
            writer.write(Frame(index, Fraction(index, MODEL_FPS), rgb, planes))


def _losses(info: VideoInfo) -> tuple[str, ...]:
    """What of the source the output cannot hold."""
    losses = []
    bits = max((component.bits for component in VideoFormat(info.pixel_format).components), default=8)
    if bits > 8:
        losses.append(f"the picture has {bits} bits a channel ({info.pixel_format}); 8 are written")
    if info.interlaced:
        losses.append("the picture is interlaced; its fields are kept together and not separated")
    return tuple(losses)


def _tag(stream: VideoStream, color: ColorTags) -> None:
    """Carries the color tags of the pictures over to the stream."""
    context = stream.codec_context
    context.color_primaries = color.primaries
    context.color_trc = color.transfer
    context.colorspace = color.matrix
    context.color_range = _range(color)


def _range(color: ColorTags) -> int:
    if color.full_range is None:
        return int(ColorRange.UNSPECIFIED)
    return int(ColorRange.JPEG if color.full_range else ColorRange.MPEG)
