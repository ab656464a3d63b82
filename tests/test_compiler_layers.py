"""The summary of what TensorRT's engine inspector says of an engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.runtime.compiler.process import LayerSize, summarize


def tensor(words: str, *shape: int) -> dict[str, Any]:
    return {"Name": "t", "Location": "Device", "Dimensions": list(shape), "Format/Datatype": words}


LAYERS = [
    {
        "Name": "conv + relu",
        "LayerType": "CaskConvolution",
        "Inputs": [tensor("Thirty-two wide channel vectorized row major Int8 format.", 16, 512, 28, 28)],
        "Outputs": [tensor("Thirty-two wide channel vectorized row major Int8 format.", 16, 256, 28, 28)],
        "Weights": {"Type": "Int8", "Count": 131072},
        "Bias": {"Type": "Float", "Count": 256},
        "TacticName": "sm80_xmma_fprop",
    },
    {
        "Name": "__myl_CastAdd",
        "LayerType": "kgen",
        "Inputs": [tensor("Half", -1, 8), tensor("Row major linear FP16 format", 8)],
        "Outputs": [tensor("BFloat16", -1, 8), tensor("Float", 2, 2)],
    },
    {"Name": "gemm", "LayerType": "gemm", "Inputs": [tensor("FP8", 4)], "Outputs": [tensor("Half", 4)]},
    {"Name": "wait", "LayerType": "signal", "Inputs": [], "Outputs": []},
]
"""As in NVIDIA's guide to its engine inspector, and in the words that TensorRT 10 has for fused layers."""


def described(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_layers_are_counted_by_kind_precision_and_format_and_the_largest_named(tmp_path: Path) -> None:
    summary = summarize(described(tmp_path / "a.json", json.dumps({"Layers": LAYERS, "Bindings": []})))
    assert summary is not None
    assert summary.layers == 4
    assert summary.kinds == {"CaskConvolution": 1, "kgen": 1, "gemm": 1, "signal": 1}
    assert summary.precisions == {"int8": 1, "bf16": 1, "fp16": 1}
    assert summary.formats["Half"] == 1
    assert sum(summary.formats.values()) == 4
    assert summary.largest == (
        LayerSize("conv + relu", "CaskConvolution", 16 * 28 * 28 * (512 + 256) + 131072 + 4 * 256),
        LayerSize("__myl_CastAdd", "kgen", 16 + 16 + 16 + 16),
        LayerSize("gemm", "gemm", 4 + 8),
        LayerSize("wait", "signal", 0),
    )


@pytest.mark.parametrize("content", ["", '{"Layers": [}', "[]", "{}"])
def test_what_is_no_description_has_no_summary(tmp_path: Path, content: str) -> None:
    assert summarize(described(tmp_path / "a.json", content)) is None
    assert summarize(tmp_path / "none.json") is None
