"""Converts FFmpeg's frames to upright planes, and planes to frames; what frames say of HDR."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
from av import VideoCodecContext, VideoFormat, VideoFrame
from av.sidedata.sidedata import Type as SideDataType
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import RGB_IDENTITY, UNSPECIFIED, Coding, blend_patches, coding_of
from latentsync_trt.media.filters import apply_filters
from latentsync_trt.types import ColorTags, HdrMetadata, Patch, SampleArray, YuvPlanes

_COLOR_RANGES = {
    None: int(ColorRange.UNSPECIFIED),
    False: int(ColorRange.MPEG),
    True: int(ColorRange.JPEG),
}
"""FFmpeg's number for each value of `ColorTags.full_range`."""
_FULL_RANGE = {number: full_range for full_range, number in _COLOR_RANGES.items()}

# By default swscale truncates from YUV to RGB: about one code too dark. With these flags it rounds.
_EXACT_SMOOTH = (
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
)

_DYNAMIC = {
    SideDataType.DOVI_RPU_BUFFER: "Dolby Vision",
    SideDataType.DOVI_METADATA: "Dolby Vision",
    SideDataType.DYNAMIC_HDR_PLUS: "HDR10+",
    SideDataType.DYNAMIC_HDR_VIVID: "HDR Vivid",
}
"""Names of HDR metadata that change from picture to picture."""
_READ_KINDS = {
    SideDataType.DISPLAYMATRIX,
    SideDataType.A53_CC,
    SideDataType.CONTENT_LIGHT_LEVEL,
    SideDataType.MASTERING_DISPLAY_METADATA,
    SideDataType.SPHERICAL,
    SideDataType.STEREO3D,
    *_DYNAMIC,
}
"""The kinds of side data that are read here or named in notices."""
_KINDS = 64
"""A number above that of all kinds of side data; FFmpeg 8.1 has about half as many."""


def side_data_of(frame: VideoFrame) -> dict[SideDataType, bytes]:
    """Returns the side data that are read here, by their kind.

    FFmpeg removes all others first. PyAV would free the metadata of side data a second time, which
    ends the process: a PNG has the name of its color profile there. For kinds that it has no name
    for, as Exif, it raises an error.
    """
    read: list[Any] = [kind.value for kind in _READ_KINDS]
    unread = [("sidedata", f"delete:{number}") for number in range(_KINDS) if number not in read]
    entries: Any = apply_filters([frame], *unread).side_data
    return {entry.type: bytes(entry) for entry in entries}


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a decoded picture is made upright: it is transposed, then flipped."""

    transposes: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    def make_upright(self, plane: SampleArray) -> SampleArray:
        """Returns a plane in rows of its own, upright."""
        if self.transposes:
            plane = plane.T
        if self.flips_rows:
            plane = plane[::-1]
        if self.flips_columns:
            plane = plane[:, ::-1]
        return np.array(plane, order="C")

    def upright_place(self, place: tuple[int, int] | None) -> tuple[int, int] | None:
        """Returns where the chroma samples of a picture lie, as in `VideoInfo`, once it is
        upright.
        """
        if place is None:
            return None
        x, y = place
        if self.transposes:
            x, y = y, x
        if self.flips_columns:
            x = 2 - x
        if self.flips_rows:
            y = 2 - y
        return x, y

    def upright_field(self, top_first: bool | None) -> bool | None:
        """Returns whether the top field of an upright picture is the earlier one; transposed ones
        have no fields of rows.
        """
        if self.transposes or top_first is None:
            return None
        return top_first != self.flips_rows


def orientation_of(side_data: Mapping[SideDataType, bytes]) -> Orientation:
    matrix = side_data.get(SideDataType.DISPLAYMATRIX)
    if matrix is None:
        return Orientation()
    # Row vectors: x' = a·x + c·y, y' = b·x + d·y, in 16.16 fixed point and machine byte order.
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix)
    transposes = bool(b or c)
    if transposes and (a or d):
        raise InputError("its display matrix rotates by an angle that is not a multiple of 90°")
    down = b if transposes else d
    right = c if transposes else a
    return Orientation(transposes, flips_rows=down < 0, flips_columns=right < 0)


def bits_of(form: VideoFormat) -> int:
    """Returns how many bits a sample has."""
    return form.components[0].bits


def _with_depth(layout: str, bits: int) -> str:
    """Returns FFmpeg's name of planes laid out as "gbrp" or "yuv420p", with so many bits."""
    return layout if bits == 8 else f"{layout}{bits}le"


def _planar_format(form: VideoFormat, *, transposed: bool) -> str:
    """Returns the planar format that frames have before they are made upright: their own, if there
    is one, without alpha.

    Gray and 4:1:0 become 4:2:0, 4:1:1 4:2:2, palettes RGB, floating point 16 bits, fewer than 8
    bits 8.
    """
    bits = min(max(8, *(component.bits for component in form.components)), 16)
    if form.is_rgb or form.has_palette:
        return _with_depth("gbrp", bits)
    sampling = "420"
    if len(form.components) > 2:
        # Of 16 columns and 16 rows of pixels.
        chroma_size = (form.chroma_width(16), form.chroma_height(16))
        samplings = {(4, 16): "422", (8, 16): "422", (16, 8): "440", (16, 16): "444"}
        sampling = samplings.get(chroma_size, "420")
    if sampling == "422" and transposed and bits not in (8, 10, 12):
        sampling = "444"  # FFmpeg has no upright twin of this depth
    return _with_depth(f"yuv{sampling}p", bits)


@dataclass(frozen=True, slots=True)
class _PlaneFormat:
    """What the planes of all frames of a video have in common: that of the first one."""

    orientation: Orientation
    color: ColorTags
    pixel_format: str
    """FFmpeg's name of the format before they are made upright."""

    @classmethod
    def of(cls, frame: VideoFrame) -> "_PlaneFormat":
        orientation = orientation_of(side_data_of(frame))
        pixel_format = _planar_format(frame.format, transposed=orientation.transposes)
        return cls(orientation, _color_tags(frame), pixel_format)


class FrameConverter:
    """Converts decoded frames of one video into upright planes of the first frame's format. Keeps
    swscale's tables between frames; not thread-safe.
    """

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._format: _PlaneFormat | None = None

    def planes(self, frame: VideoFrame) -> YuvPlanes:
        """Returns the frame as planes: the decoder's own samples for planar formats, else one
        conversion, always with the first one's sampling, depth, matrix and range. Raises
        `InputError` if that is not supported.
        """
        if self._format is None:
            self._format = _PlaneFormat.of(frame)
        target = self._format
        coding = coding_of(_color_tags(frame), frame.width, frame.height)
        target_coding = coding_of(target.color, frame.width, frame.height)
        # Alpha is left out; "yuvj" says nothing but the range.
        name = frame.format.name.replace("yuvj", "yuv")
        name = name.replace("yuva", "yuv").replace("gbrap", "gbrp")
        if coding != target_coding or name != target.pixel_format:
            # swscale takes gray as full range, whatever its tag says
            if name.startswith(("gray", "ya")):
                coding = replace(coding, full_range=True)
                target_coding = replace(target_coding, full_range=True)
            try:
                frame = convert_format(
                    self._reformatter, frame, target.pixel_format, coding, target_coding
                )
            except OSError as error:
                raise InputError(
                    f"its pixel format {name} is not supported; re-encode it"
                ) from error
        y, u, v = map(target.orientation.make_upright, plane_views(frame)[:3])
        return YuvPlanes(y, u, v, target.color, bits_of(frame.format))


def convert_format(
    reformatter: VideoReformatter, frame: VideoFrame, name: str, coding: Coding, target: Coding
) -> VideoFrame:
    """Returns `frame`, which is in `coding`, in the pixel format `name`, for YUV in the coding
    `target`.
    """
    return reformatter.reformat(
        frame,
        format=name,
        interpolation=_EXACT_SMOOTH,
        src_colorspace=coding.swscale_matrix or None,
        dst_colorspace=target.swscale_matrix or None,
        src_color_range=_COLOR_RANGES[coding.full_range],
        dst_color_range=_COLOR_RANGES[target.full_range],
        threads=1,
    )


def _color_tags(frame: VideoFrame) -> ColorTags:
    """Returns the tags of a frame's planes; RGB has matrix 0 and full range, "yuvj" full range.

    Gray without a tag, as in photographs and raw video, has full range: where a codec implies the
    limited one, its decoder says so.
    """
    is_gray = len(frame.format.components) < 3
    full_range = _FULL_RANGE.get(int(frame.color_range))
    matrix = int(frame.colorspace)
    if frame.format.is_rgb or frame.format.has_palette:
        matrix = RGB_IDENTITY
        full_range = True
    elif matrix == RGB_IDENTITY and is_gray:
        matrix = UNSPECIFIED  # PNG in gray or black and white has the tag of RGB
    elif matrix == RGB_IDENTITY:
        raise InputError(
            "its planes are YUV, but have the tag of "
            "RGB's color matrix; convert the video to BT.709"
        )
    if frame.format.name.startswith("yuvj") or (is_gray and full_range is None):
        full_range = True
    return ColorTags(int(frame.color_primaries), int(frame.color_trc), matrix, full_range)


def tag_color(target: VideoFrame | VideoCodecContext, color: ColorTags) -> None:
    """Gives a picture, or an encoder that is not open yet, these tags of color."""
    target.color_primaries = color.primaries
    target.color_trc = color.transfer
    target.colorspace = color.matrix
    target.color_range = _COLOR_RANGES[color.full_range]


def pixel_format_of(planes: YuvPlanes) -> str:
    """Returns FFmpeg's name of the format that planes have."""
    if planes.color.matrix == RGB_IDENTITY:
        return _with_depth("gbrp", planes.bits)
    samplings = {(1, 1): 444, (1, 2): 422, (2, 1): 440, (2, 2): 420}
    return _with_depth(f"yuv{samplings[planes.pixels_per_sample]}p", planes.bits)


def frame_from_planes(
    planes: YuvPlanes, width_px: int, height_px: int, patches: Iterable[Patch] = ()
) -> VideoFrame:
    """Returns a frame of at least the size of `planes`, with a copy of them and `patches` blended
    in. It is padded by repeating the edge. Raises `InputError` as `blend_patches`.
    """
    frame = VideoFrame(width_px, height_px, pixel_format_of(planes))
    views = plane_views(frame)
    copies = list[SampleArray]()
    for view, plane in zip(views, (planes.y, planes.u, planes.v), strict=True):
        rows, columns = plane.shape
        view[:rows, :columns] = plane
        copies.append(view[:rows, :columns])
    y, u, v = copies
    blend_patches(YuvPlanes(y, u, v, planes.color, planes.bits), patches)
    for view, copy in zip(views, copies, strict=True):
        rows, columns = copy.shape
        view[:rows, columns:] = copy[:, -1:]
        view[rows:] = view[rows - 1]
    return frame


def plane_views(frame: VideoFrame) -> list[SampleArray]:
    """Returns each plane of a planar `frame` as an array `(H, W)` on FFmpeg's memory, uint8 or
    uint16.
    """
    depth = np.dtype(np.uint16 if bits_of(frame.format) > 8 else np.uint8)
    views = list[SampleArray]()
    for plane in cast(Any, frame.planes):
        row_samples = plane.line_size // depth.itemsize
        samples = np.frombuffer(plane, depth, plane.height * row_samples)
        views.append(samples.reshape(plane.height, row_samples)[:, : plane.width])
    return views


def metadata_of(transfer: int, data: Mapping[SideDataType, bytes]) -> HdrMetadata:
    """Returns the HDR metadata in the side data of a frame with this transfer, as in `ColorTags`.
    Raises `InputError` for Dolby Vision in its own color space (profile 5).
    """
    dynamic = tuple(dict.fromkeys(name for kind, name in _DYNAMIC.items() if kind in data))
    if "Dolby Vision" in dynamic and transfer == UNSPECIFIED:
        raise InputError(
            "it is Dolby Vision without a picture for other displays (profile 5), "
            "which only its own decoders show; export it as HDR10, HLG or SDR"
        )
    mastering = None
    if display := data.get(SideDataType.MASTERING_DISPLAY_METADATA):
        # FFmpeg's struct: ten fractions, then whether primaries and luminance are set.
        *numbers, has_primaries, has_luminance = struct.unpack_from("=22i", display)
        if has_primaries and has_luminance and all(numbers[1::2]):
            mastering = tuple(map(Fraction, numbers[0::2], numbers[1::2]))
    light = None
    if light_level := data.get(SideDataType.CONTENT_LIGHT_LEVEL):
        light = struct.unpack_from("=2I", light_level)
    return HdrMetadata(mastering, light, dynamic)
