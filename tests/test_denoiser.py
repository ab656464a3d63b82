"""The denoiser's buffers, on graphs whose results can be computed by hand."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bundle.manifest import Bundle, step_graph
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion import DenoisingPlan, cache_plan, denoise, dpmpp_schedule
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.selection import Selection
from tests.small import LATENT_SIDE, small_bundle
from tests.toy import FRAMES, toy_inputs, write_toy

pytestmark = pytest.mark.integration

SUM_OF_FEW = 1e-6
"""A handful of float32 additions, relative to the sum."""

NO_COEFFICIENTS = np.zeros(5, np.float32)


def opened(bundle: Bundle, graphs: Iterable[str] = (), **options: bool) -> Model:
    return open_model(
        bundle, Selection("cpu"), RuntimeOptions(**options), [*(graphs or bundle.manifest.graphs)]
    )


@pytest.fixture(params=["dynamic", "static"])
def denoiser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GraphDenoiser]:
    """Variable shapes, where the provider allocates `hidden`, and the same graphs with fixed
    shapes.
    """
    with closing(
        opened(write_toy(tmp_path / "toy", unguided=True), dynamic=request.param == "dynamic")
    ) as model:
        yield model.denoiser


def run(denoiser: GraphDenoiser, plan: str, guidance: float) -> None:
    """The steps of `plan`, each compared with what it should come to."""
    latents, conditioning, audio = toy_inputs()
    denoiser.begin(latents, conditioning, audio, guidance)
    wanted = latents
    hidden = np.zeros_like(latents)
    for kind in plan.split():
        cached = kind == "cached"
        denoiser.step(7, NO_COEFFICIENTS, cached=cached)
        hidden = hidden if cached else (2 if guidance > 1 else 1) * wanted
        wanted = wanted + hidden
        assert np.abs(denoiser.latents() - wanted).max() <= SUM_OF_FEW * np.abs(wanted).max()


def test_batches_with_and_without_guidance_alternate(denoiser: GraphDenoiser) -> None:
    for guidance in (1.5, 1.0, 1.5, 1.0):  # the last ones on the buffers of the first
        # ends on either pair of states
        for plan in ("full cached cached full", "full full cached full cached"):
            run(denoiser, plan=plan, guidance=guidance)


def test_arrays_given_and_returned_share_no_memory_with_buffers(denoiser: GraphDenoiser) -> None:
    arrays = toy_inputs()
    copies = [array.copy() for array in arrays]
    denoiser.begin(*arrays, 1.5)
    before = denoiser.latents()
    kept = before.copy()
    for _ in range(3):
        denoiser.step(7, NO_COEFFICIENTS, cached=False)
    assert np.array_equal(before, kept)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, copies, strict=True))


@pytest.mark.parametrize(("guidance", "halves"), [(2.5, 2), (1.0, 1)])
def test_a_run_is_its_graphs_one_by_one(guidance: float, halves: int) -> None:
    """On the built-in networks, whose `hidden` has two halves with guidance."""
    bundle = Bundle.load(small_bundle(), verify=False)
    graphs = [step_graph(guided=guidance > 1, cached=cached) for cached in (False, True)]
    random = np.random.default_rng(5)
    noise = random.standard_normal((1, 4, 1, LATENT_SIDE, LATENT_SIDE), np.float32)
    conditioning = random.standard_normal((9, 16, LATENT_SIDE, LATENT_SIDE), np.float32)
    audio = random.standard_normal((16, 50, 32), np.float32)
    plan = DenoisingPlan(guidance, dpmpp_schedule(3), cache_plan(3, 2))
    latents = np.ascontiguousarray(np.broadcast_to(noise, (1, 4, 16, LATENT_SIDE, LATENT_SIDE)))
    hidden = np.zeros(0)
    history = np.zeros_like(latents)
    sessions = [Session(bundle.graph_path(graph)) for graph in graphs]
    for step, full in zip(plan.schedule, plan.full, strict=True):
        session = sessions[not full]
        values = {
            "latents": latents,
            "conditioning": conditioning[None],
            "audio": audio[None],
            "timestep": np.array(step.timestep, np.int64),
            "guidance": np.array(guidance, np.float32),
            "history": history,
            "coefficients": step.coefficients,
        }
        latents, history, *new = session.run(values | ({} if full else {"hidden": hidden}))
        if full:
            hidden = new[0]
    assert hidden.shape[0] == halves
    with closing(opened(bundle, graphs)) as model:
        found = denoise(model.denoiser, noise, conditioning, audio, plan)
    assert np.array_equal(found, latents[0])


def test_windows_may_differ_in_size_within_the_range(tmp_path: Path) -> None:
    with closing(opened(write_toy(tmp_path / "toy"))) as model:
        denoiser = model.denoiser
        for frames in (FRAMES, 8, 2):
            latents, *others = toy_inputs(frames)
            denoiser.begin(latents, *others, 1.5)
            for cached in (False, True):
                denoiser.step(7, NO_COEFFICIENTS, cached=cached)
            assert (
                np.abs(denoiser.latents() - 5 * latents).max()
                <= SUM_OF_FEW * 5 * np.abs(latents).max()
            )
