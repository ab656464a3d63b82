"""Overlapping squares that cover a picture, to find faces that are too small for a search in the whole. Pure.

BlazeFace finds nine of ten faces that are a tenth as high as its square picture or more.
"""

from math import ceil

SIDE_PX = 480
"""A tenth of it is the smallest face that is worth painting."""
_MOST_ALONG = 9
"""Along the longer side; of larger pictures than 4K, larger tiles are taken."""
_OVERLAP = 0.25
"""So that a face which is too small for the next larger search is whole in one tile, or nearly so."""


def tiles(width_px: int, height_px: int) -> list[tuple[int, int, int]]:
    """Left, top and side of each tile; none for a picture that is hardly larger than one."""
    longest = max(width_px, height_px)
    if longest * (1 - _OVERLAP) < SIDE_PX:
        return []
    side = max(SIDE_PX, ceil(longest / (1 + (_MOST_ALONG - 1) * (1 - _OVERLAP))))
    return [(left, top, side) for top in _starts(height_px, side) for left in _starts(width_px, side)]


def _starts(length_px: int, side_px: int) -> list[int]:
    count = 1 + max(0, ceil((length_px - side_px) / (side_px * (1 - _OVERLAP))))
    return [round(number * (length_px - side_px) / max(1, count - 1)) for number in range(count)]
