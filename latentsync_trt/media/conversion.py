"""Converts FFmpeg's frames to upright planes, and planes to frames; what frames say of HDR."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
from av import VideoFormat, VideoFrame
from av.sidedata.sidedata import Type as SideDataType
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import RGB_IDENTITY, UNSPECIFIED, Coding, blend_patches, coding_of
from latentsync_trt.media.filters import apply_filters
from latentsync_trt.types import ColorTags, HdrMetadata, Patch, SampleArray, YuvPlanes

# FFmpeg's number for each value of `ColorTags.full_range`.
COLOR_RANGES = {
    None: int(ColorRange.UNSPECIFIED),
    False: int(ColorRange.MPEG),
    True: int(ColorRange.JPEG),
}
_FULL_RANGE = {number: full_range for full_range, number in COLOR_RANGES.items()}

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
_READ_KINDS = {
    SideDataType.DISPLAYMATRIX,
    SideDataType.A53_CC,
    SideDataType.CONTENT_LIGHT_LEVEL,
    SideDataType.MASTERING_DISPLAY_METADATA,
    SideDataType.SPHERICAL,
    SideDataType.STEREO3D,
    *_DYNAMIC,
}
_KINDS = 64  # of side data; FFmpeg 8.1 has about half as many


def side_data_of(frame: VideoFrame) -> dict[SideDataType, bytes]:
    """The side data that are read here, by their kind.

    FFmpeg removes all others first. PyAV would free the metadata of side data a second time, which
    ends the process: a PNG has the name of its color profile there. For kinds that it has no name
    for, as Exif, it raises an error.
    """
    read: list[Any] = [kind.value for kind in _READ_KINDS]
    unread = [("sidedata", f"delete:{number}") for number in range(_KINDS) if number not in read]
    entries: Any = apply_filters([frame], *unread).side_data
    return {entry.type: bytes(entry) for entry in entries}


def orientation_of(side_data: Mapping[SideDataType, bytes]) -> tuple[bool, int, int]:
    """How to make a frame upright: whether to transpose it, then steps, 1 or −1, of rows and
    columns.
    """
    matrix = side_data.get(SideDataType.DISPLAYMATRIX)
    if matrix is None:
        return False, 1, 1
    # Row vectors: x' = a·x + c·y, y' = b·x + d·y, in 16.16 fixed point and machine byte order.
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix)
    if (a or d) and (b or c):
        raise InputError("its display matrix rotates by an angle that is not a multiple of 90°")
    across, down = (c, b) if b or c else (a, d)
    return bool(b or c), -1 if down < 0 else 1, -1 if across < 0 else 1


def upright_place(
    place: tuple[int, int] | None, orientation: tuple[bool, int, int]
) -> tuple[int, int] | None:
    """Where chroma samples lie, as in `VideoInfo`, in pictures that were made upright."""
    if place is None:
        return None
    transpose, down, across = orientation
    x, y = place
    if transpose:
        x, y = y, x
    if across < 0:
        x = 2 - x
    if down < 0:
        y = 2 - y
    return x, y


def upright_field(top_first: bool | None, orientation: tuple[bool, int, int]) -> bool | None:
    """As `VideoInfo.top_field_first`, in pictures that were made upright. Transposed ones have no
    fields of rows."""
    transpose, down, _ = orientation
    if transpose or top_first is None:
        return None
    return top_first == (down > 0)


def _coded_format(form: VideoFormat, *, transposed: bool) -> str:
    """The planar format that frames have before they are made upright: their own, if there is one.
    Without alpha. Gray and 4:1:0 become 4:2:0, 4:1:1 4:2:2, palettes RGB, floating point 16 bits,
    fewer than 8 bits 8.
    """
    bits = min(max(8, *(component.bits for component in form.components)), 16)
    depth = "" if bits == 8 else f"{bits}le"
    if form.is_rgb or form.has_palette:
        return f"gbrp{depth}"
    if len(form.components) > 2:
        size = (form.chroma_width(16), form.chroma_height(16))
    else:
        size = (8, 8)
    sampling = {(4, 16): "422", (8, 16): "422", (16, 8): "440", (16, 16): "444"}.get(size, "420")
    if sampling == "422" and transposed and bits not in (8, 10, 12):
        sampling = "444"  # FFmpeg has no upright twin of this depth
    return f"yuv{sampling}p{depth}"


class FrameConverter:
    """Converts decoded frames of one video into upright planes of the first frame's format. Keeps
    swscale's tables between frames; not thread-safe.
    """

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._first: tuple[tuple[bool, int, int], ColorTags, str, int] | None = None

    def planes(self, frame: VideoFrame) -> YuvPlanes:
        """The frame as planes: the decoder's own samples for planar formats, else one conversion,
        always with the first one's sampling, depth, matrix and range. Raises `InputError` if that
        is not supported.
        """
        color = _planes_tags(frame)
        # Read once: PyAV's frames and their side data form reference cycles, so each
        # frame would stay in memory until garbage collection.
        if self._first is None:
            upright = orientation_of(side_data_of(frame))
            name = _coded_format(frame.format, transposed=upright[0])
            self._first = upright, color, name, VideoFormat(name).components[0].bits
        (transpose, down, across), common, wanted, bits = self._first
        own, target = (coding_of(tags, frame.width, frame.height) for tags in (color, common))
        # Alpha is left out; "yuvj" says nothing but the range.
        name = (
            frame.format.name.replace("yuvj", "yuv").replace("yuva", "yuv").replace("gbrap", "gbrp")
        )
        if own != target or name != wanted:
            # swscale takes gray as full range, whatever its tag says
            if name.startswith(("gray", "ya")):
                own = replace(own, full_range=True)
                target = replace(target, full_range=True)
            try:
                frame = convert_format(self._reformatter, frame, wanted, own, target)
            except OSError as error:
                raise InputError(
                    f"its pixel format {name} is not supported; re-encode it"
                ) from error
        turned = (view.T if transpose else view for view in plane_views(frame)[:3])
        y, u, v = (np.array(view[::down, ::across], order="C") for view in turned)
        return YuvPlanes(y, u, v, common, bits)


def convert_format(
    reformatter: VideoReformatter, frame: VideoFrame, name: str, own: Coding, wanted: Coding
) -> VideoFrame:
    """`frame`, coded as `own` says, in the pixel format `name`, for YUV in the coding `wanted`."""
    return reformatter.reformat(
        frame,
        format=name,
        interpolation=_EXACT_SMOOTH,
        src_colorspace=own.swscale_matrix or None,
        dst_colorspace=wanted.swscale_matrix or None,
        src_color_range=COLOR_RANGES[own.full_range],
        dst_color_range=COLOR_RANGES[wanted.full_range],
        threads=1,
    )


def _planes_tags(frame: VideoFrame) -> ColorTags:
    """The tags of a frame's planes; RGB has matrix 0 and full range, "yuvj" full range. Gray
    without a tag, as in photographs and raw video, has full range: where a codec implies the
    limited one, its decoder says so.
    """
    is_gray = len(frame.format.components) < 3
    full_range = _FULL_RANGE.get(int(frame.color_range))
    if frame.format.name.startswith("yuvj") or (is_gray and full_range is None):
        full_range = True
    color = ColorTags(
        int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace), full_range
    )
    if frame.format.is_rgb or frame.format.has_palette:
        return replace(color, matrix=RGB_IDENTITY, full_range=True)
    if color.matrix != RGB_IDENTITY:
        return color
    if not is_gray:
        raise InputError(
            "its planes are YUV, but have the tag of "
            "RGB's color matrix; convert the video to BT.709"
        )
    return replace(color, matrix=UNSPECIFIED)  # PNG in gray or black and white has the tag of RGB


def pixel_format_of(planes: YuvPlanes) -> str:
    depth = "" if planes.bits == 8 else f"{planes.bits}le"
    if planes.color.matrix == RGB_IDENTITY:
        return f"gbrp{depth}"
    samplings = {(1, 1): 444, (1, 2): 422, (2, 1): 440, (2, 2): 420}
    return f"yuv{samplings[planes.pixels_per_sample]}p{depth}"


def frame_from_planes(
    planes: YuvPlanes, width_px: int, height_px: int, patches: Iterable[Patch] = ()
) -> VideoFrame:
    """A frame of at least the size of `planes`, with a copy of them and `patches` mixed in. It is
    padded by repeating the edge. Raises `InputError` as `blend_patches`.
    """
    frame = VideoFrame(width_px, height_px, pixel_format_of(planes))
    own = (planes.y, planes.u, planes.v)
    copies = plane_views(frame)
    y, u, v = (
        view[: plane.shape[0], : plane.shape[1]] for view, plane in zip(copies, own, strict=True)
    )
    for copy, plane in zip((y, u, v), own, strict=True):
        copy[:] = plane
    blend_patches(YuvPlanes(y, u, v, planes.color, planes.bits), patches)
    for view, plane in zip(copies, own, strict=True):
        rows, columns = plane.shape
        view[:rows, columns:] = view[:rows, columns - 1 : columns]
        view[rows:] = view[rows - 1]
    return frame


def plane_views(frame: VideoFrame) -> list[SampleArray]:
    """Each plane of a planar `frame` as an array `(H, W)` on FFmpeg's memory, uint8 or uint16."""
    depth = np.dtype(np.uint16 if frame.format.components[0].bits > 8 else np.uint8)
    planes = cast(Any, frame.planes)
    stored = (
        np.frombuffer(plane, depth, plane.height * plane.line_size // depth.itemsize)
        for plane in planes
    )
    return [
        samples.reshape(plane.height, -1)[:, : plane.width]
        for plane, samples in zip(planes, stored, strict=True)
    ]


def metadata_of(transfer: int, data: Mapping[SideDataType, bytes]) -> HdrMetadata:
    """The HDR metadata in the side data of a frame; `transfer`: the frame's, as in `ColorTags`.
    Raises `InputError` for Dolby Vision in its own color space (profile 5).
    """
    dynamic = tuple(dict.fromkeys(name for kind, name in _DYNAMIC.items() if kind in data))
    if "Dolby Vision" in dynamic and transfer == UNSPECIFIED:
        what = (
            "it is Dolby Vision without a picture for other "
            "displays (profile 5), which only its own decoders show"
        )
        raise InputError(f"{what}; export it as HDR10, HLG or SDR")
    mastering = None
    light = data.get(SideDataType.CONTENT_LIGHT_LEVEL)
    if display := data.get(SideDataType.MASTERING_DISPLAY_METADATA):
        # FFmpeg's struct: ten fractions, then whether primaries and luminance are set.
        *numbers, has_primaries, has_luminance = struct.unpack_from("=22i", display)
        if has_primaries and has_luminance and all(numbers[1::2]):
            mastering = tuple(map(Fraction, numbers[0::2], numbers[1::2]))
    return HdrMetadata(mastering, struct.unpack_from("=2I", light) if light else None, dynamic)
