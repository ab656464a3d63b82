"""Which H.264 encoder writes a video, and how it is told its quality."""

from dataclasses import dataclass
from fractions import Fraction

import av
import av.error
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from latentsync_trt.config import Encoder
from latentsync_trt.errors import OutputError
from latentsync_trt.media.failures import reason_of

# Among x264's presets at one crf, quality hardly changes and size by about a tenth; this one keeps up with a GPU.
_X264_PRESET = "veryfast"

# NVIDIA's presets go from p1 (fast) to p7; the encoder is a chip of its own, and this one is far from its limit.
_NVENC_PRESET = "p5"
_NVENC_LEAST_QP = 1


@dataclass(frozen=True, slots=True)
class H264:
    """An encoder by FFmpeg's name, and its options."""

    codec: str
    options: dict[str, str]


def h264_encoder(encoder: Encoder, crf: int, width_px: int, height_px: int) -> H264:
    """The encoder that `encoder` stands for; "auto" is the GPU's where it opens for pictures of this size.

    Args:
        crf: 0 to 51. x264 takes it as such; NVENC as the quantizer of every frame, which is near to it, not the same.

    Raises:
        OutputError: the GPU's encoder is demanded and does not open.
    """
    x264 = H264("libx264", {"crf": str(crf), "preset": _X264_PRESET})
    if encoder == "x264":
        return x264
    qp = str(max(crf, _NVENC_LEAST_QP))
    nvenc = H264("h264_nvenc", {"preset": _NVENC_PRESET, "rc": "constqp", "qp": qp})
    problem = _problem_of(nvenc, width_px, height_px)
    if problem is None:
        return nvenc
    if encoder == "auto":
        return x264
    raise OutputError(f"--encoder nvenc: the GPU's H.264 encoder does not open: {problem}; use --encoder x264")


def _problem_of(encoder: H264, width_px: int, height_px: int) -> str | None:
    """Why `encoder` cannot encode a picture; None if it can, which is tried."""
    try:
        context = av.CodecContext.create(encoder.codec, "w")
        if not isinstance(context, VideoCodecContext):
            return f"{encoder.codec} is no video encoder"
        context.width, context.height = width_px, height_px
        context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 25)
        context.options = encoder.options
        picture = VideoFrame.from_ndarray(np.zeros((height_px * 3 // 2, width_px), np.uint8), format="yuv420p")
        context.encode(picture)
        context.encode(None)
    except (av.error.FFmpegError, ValueError, OSError) as error:
        return reason_of(error)
    return None
