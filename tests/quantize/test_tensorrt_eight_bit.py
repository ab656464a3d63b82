"""8-bit bundles through ONNX Runtime's TensorRT provider, with the stand-in for TensorRT's
libraries.
"""

import collections
from pathlib import Path

import onnx
import pytest

from tests.tensorrt_stand_in.stand_in import StandIn

pytestmark = pytest.mark.integration

SAME = 1e-5
FULL_STEP = "denoise_step"
FLAG_OF_STRONG_TYPES = 2


def qdq_nodes(bundle: Path) -> int:
    nodes = onnx.load(bundle / f"{FULL_STEP}.onnx", load_external_data=False).graph.node
    counts = collections.Counter(node.op_type for node in nodes)
    return counts["QuantizeLinear"] + counts["DequantizeLinear"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8_bundle", "fp8_bundle"])
def test_tensorrt_builds_all_pairs_and_paints_what_the_cpu_paints(
    kind: str, stand_in: StandIn, request: pytest.FixtureRequest
) -> None:
    bundle: Path = request.getfixturevalue(kind)
    ((answer,), ended) = stand_in.scenario("pictures", bundle=str(bundle), settings=[{}])
    assert answer["difference"] <= SAME
    assert max(ended.numbers(r"build nodes=.* qdq=(\d+) strong=1 ")) == qdq_nodes(bundle) > 100
    # Weights are read from the bundle's file; a graph itself contains scales and the like.
    assert max(ended.numbers(r"build nodes=.* inline_bytes=(\d+)")) < 200_000
    assert set(ended.numbers(r"network flags=(\d+)")) == {FLAG_OF_STRONG_TYPES}
