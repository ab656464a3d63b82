"""What `compare` looks into: steps and layers, on graphs and loops whose noise is known."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bench.onnx_file import Node, OnnxGraph, read_graph
from latentsync_trt.bench.quality import wording
from latentsync_trt.bench.quality.layers import common_layers
from latentsync_trt.bench.quality.sampled_graph import SAMPLED_SUFFIX, stride_for, with_samples
from latentsync_trt.bench.quality.steps import ratio_db, replayed, step_noise
from latentsync_trt.bench.quality.taps import RecordedStep, StepRecord
from latentsync_trt.runtime.sessions.session import Session, SessionSettings
from latentsync_trt.types import Float32Array, WindowBatch
from tests.small import small_bundle

SEED = 7


def test_samples_of_a_graph_are_its_own_values() -> None:
    """Every third value of two layers, beside all of them, from a real step on random inputs."""
    path = small_bundle() / "vae_decoder.onnx"
    graph = read_graph(path)
    first, second = [node.outputs[0] for node in graph.nodes if node.kind == "Conv"][:2]
    latent = np.random.default_rng(SEED).standard_normal((4, 4, 16, 16), np.float32)
    samples = []
    for stride in (1, 3):
        content = with_samples(path.read_bytes(), {first: stride, second: stride})
        session = open_bytes(content, path)
        names = [tensor.name for tensor in session.outputs]
        assert names == ["image", f"{first}{SAMPLED_SUFFIX}", f"{second}{SAMPLED_SUFFIX}"]
        inputs = {tensor.name: latent[: tensor.shape[0]] for tensor in session.inputs}
        samples.append(session.run(inputs))
    (image, *whole), (same_image, *some) = samples
    assert np.array_equal(image, same_image)
    for full, part in zip(whole, some, strict=True):
        assert full.ndim == 1
        assert np.array_equal(full[::3], part)


def open_bytes(content: bytes, path: Path) -> Session:
    """A session of an edited copy, whose weights lie beside the original."""
    copy = path.with_name("copy.onnx")
    settings = SessionSettings(weights_folder=path.parent, by_priority=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: content)
        return Session(copy, settings)


@pytest.mark.parametrize(("size", "wanted"), [(1 << 20, 1 << 14), (30 * 64 * 64, 500), (7, 100), (1, 1)])
def test_strides_take_about_as_many_as_wanted_of_every_channel(size: int, wanted: int) -> None:
    stride = stride_for(size, wanted)
    assert math.gcd(stride, size) == 1
    assert wanted / 2 <= -(-size // stride) <= max(wanted, 2) * 2 or stride == 1


def node(kind: str, inputs: tuple[str, ...], output: str) -> Node:
    return Node(kind, inputs, (output,), {})


def test_layers_are_found_again_where_their_weights_are_quantized() -> None:
    shapes = {"y": (1, 8, 4), "z": ("frames", 8, 4), "w": (1, 8, 4)}
    plain = OnnxGraph(
        (
            node("MatMul", ("x", "proj.weight"), "y"),
            node("MatMul", ("y", "x"), "scores"),
            node("Conv", ("y", "conv.weight", "conv.bias"), "z"),
            node("Conv", ("z", "other.weight"), "w"),
        ),
        {"proj.weight": (8, 8), "conv.weight": (8, 8, 1), "conv.bias": (8,), "other.weight": (8, 8, 1)},
        {**shapes, "scores": (1, 8, 8)},
    )
    quantized = OnnxGraph(
        (
            node("DequantizeLinear", ("proj.weight_8", "s"), "proj.weight_back"),
            node("MatMul", ("x_back", "proj.weight_back"), "y"),
            node("MatMul", ("y", "x"), "scores"),
            node("Conv", ("y", "conv.weight", "conv.bias"), "z"),
            node("Conv", ("z", "other.weight"), "w"),
        ),
        {"proj.weight_8": (8, 8), "conv.weight": (8, 8, 1), "other.weight": (8, 8, 1)},
        {**shapes, "w": (1, 8, 5)},
    )
    for one, other in ((plain, quantized), (quantized, plain)):
        found = common_layers(one, other, {"frames": 16})
        assert [(layer.name, layer.kind, layer.output) for layer in found] == [
            ("proj", "MatMul", "y"),
            ("conv", "Conv", "z"),
        ]
    assert common_layers(plain, OnnxGraph((), {}, {}), {}) == []


class Doubling:
    """A denoiser whose step multiplies the latents."""

    def __init__(self, factor: float) -> None:
        self.factor = np.float32(factor)
        self.batch: WindowBatch | None = None

    def begin(self, batch: WindowBatch) -> None:
        self.now = batch.latents

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        assert not cached
        self.now = self.now * self.factor

    def latents(self) -> Float32Array:
        return self.now


def recorded(factor: float) -> StepRecord:
    record = StepRecord()
    zeros = np.zeros((1, 1, 1), np.float32)
    latents = np.ones((1, 4, 2, 2, 2), np.float32)
    record.begin(WindowBatch(latents, zeros, zeros, 1.5))
    for number, cached in enumerate((False, True)):
        after = latents * np.float32(factor)
        record.add(RecordedStep(900 - number, np.zeros(5, np.float32), cached, True, latents, after))
        latents = after
    return record


def test_steps_are_compared_by_themselves_and_so_far() -> None:
    """Steps of ×2 and ×2.1: updates of 1 and 1.1, then latents of 4 and 4.41."""
    ours, theirs = recorded(2.0), recorded(2.1)
    first, second = step_noise(ours, theirs, replayed(Doubling(2.0), ours), replayed(Doubling(2.1), ours))
    assert (first.step, first.timestep, first.full, first.guided) == (0, 900, True, True)
    assert first.alone_db == pytest.approx(20.0, abs=1e-4)
    assert first.so_far_db == pytest.approx(20 * math.log10(2 / 0.1), abs=1e-4)
    assert not second.full
    assert math.isnan(second.alone_db)
    assert second.so_far_db == pytest.approx(20 * math.log10(4 / 0.41), abs=1e-4)
    assert wording.worst_step((first, second)) == first
    assert wording.worst_step((second,)) is None


def test_only_the_first_batch_is_recorded() -> None:
    record = recorded(2.0)
    assert record.wanted
    first = record.batch
    record.begin(replace(first, guidance=3.0))
    assert not record.wanted
    assert record.batch is first


def test_the_ratio_of_equal_arrays_is_none() -> None:
    ones = np.ones(4, np.float32)
    assert ratio_db(ones, ones) is None
    assert ratio_db(ones, ones * np.float32(1.5)) == pytest.approx(20 * math.log10(2))
