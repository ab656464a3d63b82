"""Pictures of every format that `YuvPlanes` holds, random ones for properties, and patches on
them.
"""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from latentsync_trt.media.color import RGB_IDENTITY, apply_patch, planes_from_rgb
from latentsync_trt.types import (
    BoolArray,
    ColorTags,
    HdrMetadata,
    Patch,
    SampleArray,
    UInt8Array,
    YuvPlanes,
)

LARGEST_SIDE_PX = 13
"""Odd and even, with room for patches that touch no edge, one, or all."""

SAMPLINGS = {"420": (2, 2), "422": (1, 2), "440": (2, 1), "444": (1, 1)}
"""Rows and columns of pixels for each chroma sample."""

HDR10 = HdrMetadata(
    tuple(
        map(
            Fraction,
            ("0.68", "0.32", "0.265", "0.69", "0.15", "0.06", "0.3127", "0.329", "0.005", "1000"),
        )
    ),
    (800, 300),
)

COLORS = st.builds(
    ColorTags,
    st.just(1),
    st.sampled_from([1, 16, 18]),
    st.sampled_from([0, 1, 2, 5, 9]),
    st.sampled_from([None, True]),
)


def noise(
    size: tuple[int, int], sampling: str = "420", bits: int = 8, color: ColorTags | None = None
) -> YuvPlanes:
    """Random planes of a picture of `size` (H, W)."""
    rng = np.random.default_rng(size[0] * size[1] + bits)
    down, across = SAMPLINGS[sampling]
    half = -(-size[0] // down), -(-size[1] // across)
    planes = (rng.integers(0, 2**bits, shape).astype(_kind(bits)) for shape in (size, half, half))
    return YuvPlanes(*planes, color or ColorTags(1, 1, 1), bits)


def levels(*shape: int, bits: int = 8) -> st.SearchStrategy[SampleArray]:
    """Any codes of so many bits."""
    codes = st.integers(0, 2**bits - 1)
    return arrays(_kind(bits), shape, elements=codes, fill=codes)


@st.composite
def patched(draw: Callable[..., object]) -> tuple[YuvPlanes, Patch]:
    """A picture of random size, format and colors, and a patch that lies within it."""
    height, width = (draw(st.integers(1, LARGEST_SIDE_PX)) for _ in range(2))
    color = draw(COLORS)
    bits = draw(st.sampled_from([8, 10, 12, 16]))
    down, across = draw(st.sampled_from(list(SAMPLINGS.values()))) if color.matrix else (1, 1)
    half = -(-height // down), -(-width // across)
    planes = YuvPlanes(
        *(draw(levels(*shape, bits=bits)) for shape in ((height, width), half, half)), color, bits
    )
    y_px = draw(st.integers(0, height - 1))
    x_px = draw(st.integers(0, width - 1))
    size = draw(st.integers(1, height - y_px)), draw(st.integers(1, width - x_px))
    weight = draw(
        arrays(np.float32, size, elements=st.sampled_from([0.0, 0.0, 0.25, 1.0]), fill=st.nothing())
    )
    return planes, Patch(x_px, y_px, draw(levels(*size, 3, bits=16)), weight)


def decoded_planes(path: Path) -> list[tuple[str, list[SampleArray]]]:
    """The pixel format and the planes of each picture as PyAV decodes them; packed RGB is one
    plane.
    """
    with av.open(str(path)) as container:
        return [(frame.format.name, _stored(frame)) for frame in container.decode(video=0)]


def _stored(frame: av.VideoFrame) -> list[SampleArray]:
    bits = frame.format.components[0].bits
    packed = len(frame.planes) == 1 and frame.format.is_rgb
    rows = (np.frombuffer(plane, _kind(bits)).reshape(plane.height, -1) for plane in frame.planes)
    widths = (plane.width * (4 if packed else 1) for plane in frame.planes)
    return [row[:, :width].copy() for row, width in zip(rows, widths, strict=True)]


def _kind(bits: int) -> type[np.uint8] | type[np.uint16]:
    if bits == 8:
        return np.uint8
    return np.uint16


# Patches on RGB pictures, mixed by the code that mixes them into the planes of a video.


def applied(frame: UInt8Array, patch: Patch) -> UInt8Array:
    """A copy of `frame (H, W, 3)` with the patch."""
    planes = apply_patch(
        planes_from_rgb(frame, ColorTags(matrix=RGB_IDENTITY, full_range=True)), patch
    )
    return np.stack([planes.v, planes.y, planes.u], axis=-1).astype(np.uint8)


def changed_pixels(frame: SampleArray, patch: Patch) -> BoolArray:
    """Which pixels of `frame (H, W, …)` the patch may change: `(H, W)`."""
    changed = np.zeros(frame.shape[:2], np.bool_)
    height, width = patch.weight.shape
    changed[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width] = patch.weight > 0
    return changed
