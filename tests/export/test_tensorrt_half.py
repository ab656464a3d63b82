"""Half precision, variable shapes and whole attention through ONNX Runtime's TensorRT provider,
over the stand-in for TensorRT's libraries.
"""

from pathlib import Path

import pytest

from tests.tensorrt_stand_in.stand_in import StandIn

pytestmark = pytest.mark.integration

SAME = 2e-3
"""Relative: the CPU provider computes float16 in float32 with roundings between; which, depends on
what was fused.
"""


@pytest.mark.slow
def test_engines_of_fixed_and_of_variable_shapes(
    dynamic_half_bundle: Path, stand_in: StandIn
) -> None:
    settings = [
        {"dynamic": False},
        {"dynamic": False, "guidance": 1.0, "faces": False},
        {"dynamic": True},
        {"dynamic": True, "cached": False, "faces": False},
        {"low_memory": True, "faces": False},
    ]
    answers, ended = stand_in.scenario(
        "pictures", bundle=str(dynamic_half_bundle), settings=settings
    )
    for setting, answer in zip(settings, answers, strict=True):
        assert answer["difference"] <= SAME, setting
        assert not any("CUDA graphs" in notice for notice in answer["notices"]), setting
    # Each step is recorded once, also those of dynamic engines, whose runs have one shape; none
    # where memory is short.
    assert ended.count("capture begin") == 2 + 2 + 2 + 1
    assert ended.count(r"build nodes=.* profiles=1 ") == ended.count(r"build nodes=")
