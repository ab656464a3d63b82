"""The exported graphs against the public release: single networks, and the whole 20-step guided loop."""

from pathlib import Path

import numpy as np
import pytest
import torch

from latentsync_trt.bundle.manifest import CACHED_STEP, FULL_STEP
from latentsync_trt.diffusion import cache_plan, ddim_schedule, denoise, dpmpp_schedule
from latentsync_trt.export import exporter
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.export.exporter import plan_graphs
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.providers.select import Selection
from tests.export.test_export_solver import diffusers_solver
from tests.exports import ExportCache

pytestmark = pytest.mark.integration

RESOLUTION_PX = 128
LOOP_TOLERANCE = 1e-3
"""float32 sums in another order, grown over 20 guided steps."""
HALF_PRECISION_DB = 40.0
"""Least signal-to-noise ratio of float16 graphs, compared with the float32 release after the whole loop."""

SOLVER_TOLERANCE = 1e-5
"""diffusers computes its coefficients in float32."""
NOISE_ALONE = np.array([0, 1, 0, 0, 0], np.float32)
"""Coefficients that make `next_latents` the predicted noise."""

STEPS = (FULL_STEP, CACHED_STEP)

Graphs = dict[str, Session]


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def _sessions(folder: Path) -> Graphs:
    return {name: Session(folder / f"{name}.onnx") for name in STEPS}


def _export(reference: Path, out: Path, precision: str) -> None:
    """Exports the steps of the recorded networks, without verification."""
    small = reference / "small"
    sources = {"unet": small / "unet.pt", "vae": small / "vae", "whisper": small / "whisper.pt"}
    options = ExportOptions(
        **sources, output=out, resolution=RESOLUTION_PX, precision=precision, verify=False, cuda_form=False
    )
    with pytest.MonkeyPatch.context() as patch:
        chosen = lambda *arguments: [plan for plan in plan_graphs(*arguments) if plan.name in STEPS]  # noqa: E731
        patch.setattr(exporter, "plan_graphs", chosen)
        exporter.export_bundle(options)


@pytest.fixture(scope="module")
def single(reference: Path, exports: ExportCache) -> Graphs:
    return _sessions(exports.bundle("reference_fp32", lambda out: _export(reference, out, "fp32")))


@pytest.fixture(scope="module")
def half(reference: Path, exports: ExportCache) -> Graphs:
    return _sessions(exports.bundle("reference_fp16", lambda out: _export(reference, out, "fp16")))


def _loop(reference: Path, graphs: Graphs, interval: int) -> np.ndarray:
    recorded = np.load(reference / "small" / "loop_20steps.npz")
    steps = int(recorded["steps"])
    latents = denoise(
        GraphDenoiser(lambda name: graphs[name], Selection("cpu")),
        recorded["noise"],
        recorded["conditioning"][0],
        recorded["audio"],
        float(recorded["guidance"]),
        ddim_schedule(steps),
        cache_plan(steps, interval),
    )
    return latents[None]


@pytest.mark.parametrize(("interval", "recording"), [(1, "final"), (3, "final_cache_interval3")])
def test_the_loop_reproduces_the_release(reference: Path, single: Graphs, interval: int, recording: str) -> None:
    wanted = np.load(reference / "small" / "loop_20steps.npz")[recording]
    assert relative(_loop(reference, single, interval), wanted) <= LOOP_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(("interval", "recording"), [(1, "final"), (3, "final_cache_interval3")])
def test_half_precision_stays_near_the_release(reference: Path, half: Graphs, interval: int, recording: str) -> None:
    wanted = np.load(reference / "small" / "loop_20steps.npz")[recording].astype(np.float64)
    error = _loop(reference, half, interval) - wanted
    assert 10 * np.log10(np.mean(wanted**2) / np.mean(error**2)) >= HALF_PRECISION_DB


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_dpmpp_loop_agrees_with_the_diffusers_scheduler(reference: Path, single: Graphs) -> None:
    """The scheduler of diffusers on the host, with noise that the same graph predicts."""
    steps = 8
    with np.load(reference / "small" / "loop_20steps.npz") as recorded:
        noise, conditioning, audio = recorded["noise"], recorded["conditioning"][0], recorded["audio"]
        guidance = float(recorded["guidance"])
    denoiser = GraphDenoiser(lambda name: single[name], Selection("cpu"))
    found = denoise(denoiser, noise, conditioning, audio, guidance, dpmpp_schedule(steps), cache_plan(steps, 1))
    solver = diffusers_solver(steps)
    frames = conditioning.shape[1]
    latents = torch.from_numpy(noise).repeat(1, 1, frames, 1, 1)
    for timestep in solver.timesteps:
        denoiser.begin(latents[0].numpy(), conditioning, audio, guidance)
        denoiser.step(int(timestep), NOISE_ALONE, cached=False)
        latents = solver.step(torch.from_numpy(denoiser.latents()[None]), timestep, latents).prev_sample
    assert relative(found, latents[0].numpy()) <= SOLVER_TOLERANCE
