"""Quantizes a bundle without looking at any clip: for compiling and weighing engines, not for faces.

    python scripts/quantize_unseen.py --bundle checkpoints/1.6-512-fp16 --precision int8 --out build/int8-512

Every channel of every layer's input is said to reach the same value, so what is written computes nonsense in the right
operations, types and sizes. Needs the extra `calibrate`. Takes the memory of the largest weight a few times over.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.bundle.manifest import Bundle, read_manifest  # noqa: E402
from latentsync_trt.quantize.bundle_out import open_parent, quantize_bundle  # noqa: E402
from latentsync_trt.quantize.cast import EIGHT_BIT  # noqa: E402
from latentsync_trt.quantize.layers import layers_of  # noqa: E402
from latentsync_trt.quantize.mixed import STEP_PREFIX  # noqa: E402
from latentsync_trt.quantize.options import QuantizeOptions  # noqa: E402
from latentsync_trt.quantize.ranges import LayerInput, observed  # noqa: E402

AMAX = 4.0
"""About what the largest of a million normal numbers reaches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--precision", choices=EIGHT_BIT, default="int8")
    parser.add_argument("--smooth", type=float, metavar="ALPHA", help="with SmoothQuant's factors, too")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    start_s = time.perf_counter()
    options = QuantizeOptions(arguments.precision, smooth_alpha=arguments.smooth)
    ranges = unseen_ranges(open_parent(arguments.bundle))
    made = read_manifest(quantize_bundle(arguments.bundle, ranges, options, arguments.out))
    size_bytes = sum(entry.bytes for entry in made.files.values())
    share = made.quantization.share if made.quantization else 0.0
    print(
        f"{arguments.out}: {size_bytes / 1e9:.2f} GB, {share:.1%} of the U-Net's multiply-adds in eight bits, "
        f"{time.perf_counter() - start_s:.0f} s"
    )


def unseen_ranges(bundle: Bundle) -> dict[str, LayerInput]:
    """Ranges of all layers that begin and end at the same value."""
    found: dict[str, LayerInput] = {}
    for graph in bundle.manifest.graphs:
        if graph.startswith(STEP_PREFIX):
            model = onnx.load(bundle.graph_path(graph), load_external_data=False)
            dims = {initializer.name: initializer.dims for initializer in model.graph.initializer}
            for layer in layers_of(model):
                channels = dims[layer.weight][1 if layer.convolution else 0]
                amax = np.full(channels, AMAX, np.float32)
                found[layer.weight] = observed(amax, amax, 0)
    return found


if __name__ == "__main__":
    main()
