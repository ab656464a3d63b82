"""A bundle that opens in a moment, for all tests that need one and do not look at what it
paints.
"""

from pathlib import Path

RESOLUTION_PX = 64
LATENT_SIDE = RESOLUTION_PX // 8


def small_bundle() -> Path:
    """Real networks of small widths with random weights: float32, fixed shapes, 64 px, windows of
    16 frames.

    scripts/make_test_bundle.py makes it; its manifest is named as the built-in model's.
    """
    return Path(__file__).parent / "data" / "small_bundle"
