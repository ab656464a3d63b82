"""What fits into a GPU's memory, by estimates that agree with measurements."""

import json
from dataclasses import replace

import pytest

from latentsync_trt.bundle.manifest import Bundle, GraphVariant, Manifest
from latentsync_trt.runtime.memory_estimate import (
    MemoryEstimate,
    MemoryPlan,
    plan_memory,
    window_bytes,
)
from latentsync_trt.runtime.providers.table import CUDA
from tests.conftest import REPOSITORY
from tests.small import small_bundle

GB = 10**9
WEIGHT_BYTES = {
    "unet.weights": 2 * 1_270_000_000,
    "vae.weights": 2 * 83_700_000,
    "audio_encoder.weights": 2 * 8_200_000,
}
"""Of the published networks, in float16."""

PEAKS = [
    ("bench-cuda-h100-512.json", 512, "cuda"),
    ("bench-cuda-h100-256.json", 256, "cuda"),
    ("sync-cuda-h200-512-fp16-first.json", 512, "portable"),
]
"""Measurements of whole clips, the side of their pictures, and the variant of their graphs."""


@pytest.fixture(scope="module")
def published() -> Manifest:
    manifest = Bundle.load(small_bundle(), verify=False).manifest
    assert {entry.weights for entry in manifest.graphs.values()} == set(WEIGHT_BYTES)
    files = {
        name: replace(entry, bytes=WEIGHT_BYTES.get(name, entry.bytes))
        for name, entry in manifest.files.items()
    }
    unet = {"widths": [320, 640, 1280, 1280]}
    return replace(manifest, resolution_px=256, frames=16, precision="fp16", unet=unet, files=files)


def measured_peak_bytes(file: str) -> float:
    """Most device memory of any row of a measurement."""
    content = json.loads((REPOSITORY / "benchmarks" / file).read_text(encoding="utf-8"))
    if "peak_device_gb" in content:
        return float(content["peak_device_gb"]) * GB
    return max(float(row["memory"]["device_bytes"]) for row in content["rows"])


def test_a_window_takes_what_was_measured(published: Manifest) -> None:
    assert window_bytes(published) == pytest.approx(0.61 * GB, rel=0.15)  # at 256 px in float16
    assert window_bytes(replace(published, resolution_px=512)) == 4 * window_bytes(published)
    assert window_bytes(replace(published, precision="fp32")) == 2 * window_bytes(published)


@pytest.mark.parametrize(("file", "side_px", "variant"), PEAKS)
def test_a_run_needs_what_was_measured(
    published: Manifest, file: str, side_px: int, variant: GraphVariant
) -> None:
    manifest = replace(published, resolution_px=side_px)
    needed = MemoryEstimate(manifest, CUDA, variant).needed_bytes()
    peak = measured_peak_bytes(file)
    assert peak < needed < 1.2 * peak


@pytest.mark.parametrize(
    ("free_gb", "plan"),
    [
        (None, MemoryPlan("pipelined")),
        (7, MemoryPlan("one network at a time")),
        (9, MemoryPlan("in turn")),
        (13, MemoryPlan("in turn", cuda_graph=True)),
        (15, MemoryPlan("pipelined")),
        (18, MemoryPlan("pipelined", cuda_graph=True)),
    ],
)
@pytest.mark.parametrize("cuda_graph", [None, True, False])
def test_a_model_is_opened_as_memory_allows(
    published: Manifest, free_gb: int | None, plan: MemoryPlan, cuda_graph: bool | None
) -> None:
    """At 512 px, with graphs made for CUDA; CUDA graphs where there is room, or as asked."""
    manifest = replace(published, resolution_px=512)
    estimate = MemoryEstimate(manifest, CUDA, "cuda")
    free_bytes = None if free_gb is None else free_gb * GB
    expected = plan if cuda_graph is None else replace(plan, cuda_graph=cuda_graph)
    assert plan_memory(estimate, free_bytes, cuda_graph=cuda_graph) == expected
