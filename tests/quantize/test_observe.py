"""Observed graphs: what they tell of their layers' inputs, and that they compute what they did before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.loop import denoise
from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.errors import BundleError, InferenceError
from latentsync_trt.quantize.layers import layers_of
from latentsync_trt.quantize.observe import SAMPLE, sample_stride, write_observed
from latentsync_trt.quantize.ranges import LayerInput, merged, observed
from latentsync_trt.quantize.shapes import shapes_of
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.observer import ObservedTensor, ObservingDenoiser
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions import session as sessions
from latentsync_trt.types import Float32Array, WindowBatch
from tests.quantize.toy_layers import CONVOLUTION, LINEAR, OTHER, write_layers
from tests.small import small_bundle
from tests.toy import FRAMES, toy_inputs

CPU = Selection("cpu")
STEPS = 4
NO_COEFFICIENTS = np.zeros(5, np.float32)


class Eye:
    """Remembers what it was told, by weights."""

    def __init__(self) -> None:
        self.seen: dict[str, LayerInput] = {}
        self.told = 0

    def __call__(self, tensor: ObservedTensor, timestep: int, amax: Float32Array, sample: Float32Array) -> None:
        self.told += 1
        now = observed(amax, sample, timestep)
        for layer in tensor.layers:
            self.seen[layer] = merged(self.seen[layer], now) if layer in self.seen else now


def toy_batch(seed: int = 1, scale: float = 1.0) -> WindowBatch:
    latents, known, audio = (np.float32(scale) * values for values in toy_inputs(1, seed=seed))
    return WindowBatch(latents, known, audio, 1.5)


def small_batch() -> tuple[Float32Array, Float32Array, Float32Array]:
    """Noise, conditioning and audio for the small bundle."""
    manifest, random = Bundle.load(small_bundle(), verify=False).manifest, np.random.default_rng(2)
    side, frames, width = manifest.latent_px, manifest.frames, manifest.audio_width
    shapes = [(1, 4, 1, side, side), (1, 9, frames, side, side), (1, frames, 10 * manifest.audio_layers, width)]
    noise, known, audio = (random.standard_normal(shape, np.float32) for shape in shapes)
    return noise, known, audio


def observe_toy(folder: Path, batch: WindowBatch, dtype: type[np.floating] = np.float32) -> tuple[Eye, Float32Array]:
    """What one step of the toy shows, and its latents after it."""
    eye = Eye()
    denoiser = ObservingDenoiser(
        {"denoise_step": write_observed(write_layers(folder / "toy", dtype), "denoise_step", folder)}, CPU, eye
    )
    denoiser.begin(batch)
    denoiser.step(7, NO_COEFFICIENTS, cached=False)
    return eye, denoiser.latents()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_channel_maxima_and_samples_are_those_of_the_inputs(tmp_path: Path, dtype: type[np.floating]) -> None:
    batch = toy_batch()
    eye, _ = observe_toy(tmp_path, batch, dtype)
    latents, audio = np.abs(batch.latents.astype(dtype)), np.abs(batch.audio.astype(dtype))
    np.testing.assert_array_equal(eye.seen[CONVOLUTION].channel_amax, latents.max(axis=(0, 2, 3, 4)))
    np.testing.assert_array_equal(eye.seen[LINEAR].channel_amax, audio.max(axis=(0, 1, 2)))
    # Tensors as small as these are sampled whole.
    whole = observed(latents.max(axis=(0, 2, 3, 4)).astype(np.float32), latents.ravel().astype(np.float32), 7)
    np.testing.assert_array_equal(eye.seen[CONVOLUTION].counts, whole.counts)


def test_layers_that_read_one_tensor_are_told_of_it_once(tmp_path: Path) -> None:
    eye, _ = observe_toy(tmp_path, toy_batch())
    assert eye.told == 2
    assert eye.seen[LINEAR] is eye.seen[OTHER]


def test_variable_dimensions_are_those_of_one_window(tmp_path: Path) -> None:
    """Calibration sees one window at a time, whatever the bundle usually takes."""
    bundle = write_layers(tmp_path / "toy")
    graph = write_observed(bundle, "denoise_step", tmp_path)
    assert graph.dimensions == {"windows": 1, "frames": FRAMES}
    assert bundle.manifest.ranges["windows"].optimum == 2


def test_an_observed_loop_computes_what_the_plain_one_does(tmp_path: Path) -> None:
    bundle, inputs = Bundle.load(small_bundle(), verify=False), small_batch()
    schedule, plan = solver_schedule("ddim", STEPS), cache_plan(STEPS, 3)
    eye = Eye()
    names = ("denoise_step", "denoise_step_cached")
    graphs = {name: write_observed(bundle, name, tmp_path) for name in names}
    watched = ObservingDenoiser(graphs, CPU, eye)
    observed_latents = denoise(watched, *inputs, 1.5, schedule, plan)
    networks = Networks(bundle, CPU, RuntimeOptions(engine_cache=tmp_path / "cache"))
    plain_latents = denoise(networks.denoiser(), *inputs, 1.5, schedule, plan)
    networks.close()
    np.testing.assert_array_equal(observed_latents, plain_latents)
    layers = {layer.weight for layer in layers_of(onnx.load(bundle.graph_path(names[0]), load_external_data=False))}
    assert set(eye.seen) == layers
    full = {step.timestep for step, planned in zip(schedule, plan, strict=True) if planned.full}
    everywhere = {step.timestep for step in schedule}
    assert {frozenset(seen.step_amax) for seen in eye.seen.values()} == {frozenset(full), frozenset(everywhere)}


def test_unguided_loops_run_the_graphs_without_the_unheard_half(tmp_path: Path) -> None:
    bundle, inputs = Bundle.load(small_bundle(), verify=False), small_batch()
    eye = Eye()
    denoiser = ObservingDenoiser(
        {"denoise_step_unguided": write_observed(bundle, "denoise_step_unguided", tmp_path)}, CPU, eye
    )
    latents = denoise(denoiser, *inputs, 1.0, solver_schedule("ddim", 1), cache_plan(1, 1))
    assert np.isfinite(latents).all()
    assert eye.seen


def test_a_cached_step_needs_a_full_one_of_the_same_window(tmp_path: Path) -> None:
    eye, _ = observe_toy(tmp_path, toy_batch())
    denoiser = ObservingDenoiser({}, CPU, eye)
    denoiser.begin(toy_batch())
    with pytest.raises(InferenceError, match="full step before"):
        denoiser.step(7, NO_COEFFICIENTS, cached=True)


def test_an_overflow_is_told_with_its_layer_and_timestep(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=rf"{CONVOLUTION} is not finite at timestep 7.*fp32"):
        observe_toy(tmp_path, toy_batch(scale=1e6), np.float16)


def test_a_graph_that_hides_its_sizes_is_refused(tmp_path: Path) -> None:
    bundle = write_layers(tmp_path / "toy")
    path = bundle.graph_path("denoise_step")
    model = onnx.load(path)
    del model.graph.value_info[:]
    onnx.save(model, path)
    with pytest.raises(BundleError, match="how large flat is"):
        write_observed(bundle, "denoise_step", tmp_path)


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ([2, 3], (2, 3)),
        (["windows", 3], (1, 3)),
        (["2*windows*frames", 3], (8, 3)),
        ([], ()),
        (["segments", 3], None),
        ([None, 3], None),
        (None, None),
    ],
)
def test_sizes_may_be_expressions(stated: list[str | int | None] | None, known: tuple[int, ...] | None) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, stated)
    graph = onnx.helper.make_graph([], "graph", [], [], value_info=[value])
    assert shapes_of(onnx.helper.make_model(graph), {"windows": 1, "frames": 4}).get("x") == known


def test_a_damaged_graph_is_refused(tmp_path: Path) -> None:
    bundle = write_layers(tmp_path / "toy")
    bundle.graph_path("denoise_step").write_bytes(b"no graph")
    with pytest.raises(BundleError, match="cannot be read"):
        write_observed(bundle, "denoise_step", tmp_path)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((32, 320, 64, 64), 1), ((131072, 320), 1), ((2, 16, 4096, 640), 3), ((4, 13, 7, 7), 1), ((1, 1280), 1)],
)
def test_a_sample_meets_all_channels_alike(shape: tuple[int, ...], axis: int) -> None:
    size = int(np.prod(shape))
    positions = np.arange(0, size, sample_stride(shape, axis))
    assert min(size, SAMPLE) / 2 < len(positions) < 1.1 * SAMPLE
    counts = np.bincount(positions // int(np.prod(shape[axis + 1 :])) % shape[axis], minlength=shape[axis])
    assert counts.max() - counts.min() <= max(2, 0.1 * counts.mean())


@pytest.fixture
def settings_of_sessions(monkeypatch: pytest.MonkeyPatch) -> list[ort.SessionOptions]:
    """The options of all sessions that are opened from now on."""
    made: list[ort.SessionOptions] = []
    original: Callable[[sessions.SessionSettings], ort.SessionOptions] = sessions._ort_options

    def remember(settings: sessions.SessionSettings) -> ort.SessionOptions:
        made.append(original(settings))
        return made[-1]

    monkeypatch.setattr(sessions, "_ort_options", remember)
    return made


def test_reductions_do_not_wait_until_the_end(tmp_path: Path, settings_of_sessions: list[ort.SessionOptions]) -> None:
    """In ONNX Runtime's own order they would run last: at full size 19 GB of tensors would be held for them."""
    observe_toy(tmp_path, toy_batch())
    assert [options.execution_order for options in settings_of_sessions] == [ort.ExecutionOrder.PRIORITY_BASED]
