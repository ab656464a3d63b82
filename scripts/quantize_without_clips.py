"""Quantizes a bundle with made-up calibration ranges: to compile and measure engines, not to paint
faces.

    python scripts/quantize_without_clips.py --bundle checkpoints/1.6-512-fp16 --precision int8
    --out build/int8-512

Every layer gets the same range, so operations, types and sizes are right and results are
meaningless. Needs the extra `calibrate`, and a few times the memory of the largest weight tensor.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Bundle, read_manifest  # noqa: E402
from latentsync_trt.quantize.calibration_options import CalibrateOptions  # noqa: E402
from latentsync_trt.quantize.eight_bit_bundle import open_parent, quantize_bundle  # noqa: E402
from latentsync_trt.quantize.layers import layer_names  # noqa: E402
from latentsync_trt.quantize.ranges import ActivationRange, ActivationRanges  # noqa: E402

AMAX = 4.0
"""About the largest of a million normal numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--precision", choices=EIGHT_BIT_PRECISIONS, default="int8")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    start_s = time.perf_counter()
    options = CalibrateOptions(arguments.precision)
    parent = open_parent(arguments.bundle)
    manifest = read_manifest(
        quantize_bundle(parent, made_up_ranges(parent), options, arguments.out)
    )
    size_bytes = sum(entry.bytes for entry in manifest.files.values())
    share = manifest.quantization.share if manifest.quantization else 0.0
    print(
        f"{arguments.out}: {size_bytes / 1e9:.2f} GB, "
        f"{share:.1%} of the U-Net's multiply-adds in 8 bits, "
        f"{time.perf_counter() - start_s:.0f} s"
    )


def made_up_ranges(bundle: Bundle) -> ActivationRanges:
    """The same range for every layer."""
    same = ActivationRange.of_step(AMAX, np.full(1, AMAX, np.float32))
    return dict.fromkeys(layer_names(bundle), same)


if __name__ == "__main__":
    main()
