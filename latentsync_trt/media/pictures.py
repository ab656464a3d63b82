"""Frames and their patches as pictures for the encoder."""

from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

from latentsync_trt.media.codecs import VideoEncoder
from latentsync_trt.media.color import BT709, RGB_IDENTITY, coding_of
from latentsync_trt.media.conversion import COLOR_RANGES, converted, frame_of, packed_view, tags_of, to_rgb
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.media.patching import planes_of
from latentsync_trt.types import ColorTags, Frame, Patch, UInt8Array, VideoInfo

_SMALL_PX = 480


def picture_info(width_px: int, height_px: int, *, rgb: bool) -> VideoInfo:
    """The source of frames that have no planes: 8-bit RGB, to be written as that, or as 4:2:0 in BT.709."""
    color = ColorTags(BT709, BT709, RGB_IDENTITY if rgb else BT709, full_range=rgb)
    return VideoInfo(width_px, height_px, None, "gbrp" if rgb else "yuv420p", False, Fraction(1), color)


class PictureMaker:
    """Mixes patches into the planes of frames and makes them pictures of the encoder's format, with its color tags.

    Samples without a patch are those of the source, unless the encoder has another format. Not thread-safe.

    Args:
        info: the source; its color is that of frames without planes.
    """

    def __init__(self, info: VideoInfo, encoder: VideoEncoder) -> None:
        self._info, self._encoder = info, encoder
        self._reformatter = VideoReformatter()

    def frame(self, frame: Frame, patches: Iterable[Patch] = ()) -> VideoFrame:
        """The picture to encode; later patches cover earlier ones. It has no time stamp."""
        encoder = self._encoder
        planes = planes_of(frame.rgb, self._info.color) if frame.planes is None else frame.planes
        picture = frame_of(planes, encoder.width_px, encoder.height_px, patches)
        if picture.format.name != encoder.pixel_format:
            own, wanted = (coding_of(tags, picture.width, picture.height) for tags in (planes.color, encoder.color))
            picture = converted(self._reformatter, picture, encoder.pixel_format, own, wanted)
        color = encoder.color
        picture.color_primaries, picture.color_trc = color.primaries, color.transfer
        picture.colorspace, picture.color_range = color.matrix, COLOR_RANGES[color.full_range]
        return picture

    def small_rgb(self, frame: Frame, patches: Iterable[Patch] = ()) -> UInt8Array:
        """The picture to encode for people to look at: uint8 `(h, w, 3)` RGB, h ≤ 480, square pixels; HDR as SDR."""
        picture = self.frame(frame, patches)
        color, height = tags_of(picture), min(picture.height, _SMALL_PX)
        width = max(1, round(picture.width * self._info.sample_aspect_ratio * height / picture.height))
        hdr, coding = hdr_of(color.transfer), coding_of(color, picture.width, picture.height)
        name = "rgb48le" if hdr else "rgb24"
        # Not the reformatter of `frame`, which keeps the tables of its last conversion.
        small = packed_view(
            to_rgb(VideoReformatter(), picture, coding, Interpolation.BILINEAR, name, size_px=(width, height))
        )
        return hdr.sdr(small) if hdr else small.astype(np.uint8)
