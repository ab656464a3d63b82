"""8-bit bundles through ONNX Runtime's TensorRT provider, with the stand-in for TensorRT's libraries."""

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


def test_without_constant_folding_a_provider_gets_all_pairs_and_weights_on_disk(
    int8_bundle: Path, stand_in: StandIn
) -> None:
    """As the RTX plug-in gets its graphs, through ONNX Runtime."""
    asked = {"bundle": str(int8_bundle), "graph": FULL_STEP}
    _, whole = stand_in.scenario("provider_builds", optimize=False, **asked)
    assert whole.numbers(r"build nodes=.* qdq=(\d+)") == [qdq_nodes(int8_bundle)]
    _, folded = stand_in.scenario("provider_builds", optimize=True, **asked)
    assert folded.numbers(r"build nodes=.* qdq=(\d+)")[0] < qdq_nodes(int8_bundle)  # why it must be off
    (kept,), (lost,) = (run.numbers(r"build nodes=.* inline_bytes=(\d+)") for run in (whole, folded))
    assert kept < lost
