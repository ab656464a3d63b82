"""Steps against the public release: the whole 20-step guided loop, with PyTorch and with exported
graphs.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from latentsync_trt.bundle.manifest import CACHED_STEP, FULL_STEP
from latentsync_trt.diffusion import DenoisingPlan, cache_plan, ddim_schedule, denoise
from latentsync_trt.export.checkpoints import load_unet
from latentsync_trt.export.denoise_step import DenoiseStep
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Denoiser, Float32Array
from tests.export.conftest import export_only
from tests.exports import ExportCache

pytestmark = pytest.mark.integration

LOOP_TOLERANCE = 1e-3
"""float32 sums in another order, grown over 20 guided steps."""
LEAST_DB = {"fp32": 60.0, "fp16": 40.0}
"""Signal-to-noise ratio of exported graphs after the whole loop, compared with the float32
release.
"""


class TorchDenoiser:
    """Guided steps by the modules that graphs are traced from."""

    def __init__(self, unet: Path) -> None:
        network = load_unet(unet, torch.float32)
        self._steps = [DenoiseStep(network, guided=True, cached=cached) for cached in (False, True)]

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        self._latents, *self._window = (
            torch.from_numpy(array)[None] for array in (latents, conditioning, audio)
        )
        self._history = torch.zeros_like(self._latents)
        self._guidance = torch.tensor(guidance)
        self._hidden: tuple[torch.Tensor, ...] = ()

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool) -> None:
        further = (
            torch.tensor(timestep),
            self._guidance,
            self._history,
            torch.from_numpy(coefficients),
        )
        with torch.inference_mode():
            outputs = self._steps[cached](
                self._latents, *self._window, *further, *(self._hidden if cached else ())
            )
        self._latents, self._history = outputs[:2]
        self._hidden = outputs[2:] or self._hidden

    def latents(self) -> Float32Array:
        return np.array(self._latents[0].numpy())


@pytest.fixture(scope="module")
def recorded(reference: Path) -> dict[str, np.ndarray]:
    return dict(np.load(reference / "small" / "loop_20steps.npz"))


def loop(denoiser: Denoiser, recorded: dict[str, np.ndarray], interval: int) -> np.ndarray:
    steps = int(recorded["steps"])
    full = cache_plan(steps, interval)
    plan = DenoisingPlan(float(recorded["guidance"]), ddim_schedule(steps), full)
    window = (recorded["noise"], recorded["conditioning"][0], recorded["audio"])
    return denoise(denoiser, *window, plan)[None]


def test_the_loop_reproduces_the_release(reference: Path, recorded: dict[str, np.ndarray]) -> None:
    """Full steps and cached ones."""
    latents_after = loop(TorchDenoiser(reference / "small" / "unet.pt"), recorded, 3)
    wanted = recorded["final_cache_interval3"]
    assert latents_after.shape == wanted.shape
    assert np.abs(latents_after - wanted).max() <= LOOP_TOLERANCE * np.abs(wanted).max()


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exported(reference: Path, exports: ExportCache, precision: str) -> Path:
    """The steps of the recorded networks, not verified."""
    small = reference / "small"
    how = {"precision": precision, "verify": False, "cuda_form": False}
    sources = {"unet": small / "unet.pt", "vae": small / "vae", "whisper": small / "whisper.pt"}

    def make(out: Path) -> None:
        export_only(
            (FULL_STEP, CACHED_STEP), ExportOptions(**sources, **how, output=out, resolution=128)
        )

    return exports.bundle(f"reference_{precision}", make)


@pytest.mark.slow
@pytest.mark.parametrize(("interval", "recording"), [(1, "final"), (3, "final_cache_interval3")])
def test_exported_graphs_stay_near_the_release(
    recorded: dict[str, np.ndarray], exported: Path, precision: str, interval: int, recording: str
) -> None:
    graphs = {name: Session(exported / f"{name}.onnx") for name in (FULL_STEP, CACHED_STEP)}
    wanted = recorded[recording].astype(np.float64)
    error = (
        loop(GraphDenoiser(lambda name: graphs[name], Selection("cpu")), recorded, interval)
        - wanted
    )
    assert 10 * np.log10(np.mean(wanted**2) / np.mean(error**2)) >= LEAST_DB[precision]
