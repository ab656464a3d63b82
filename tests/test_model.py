"""How a bundle is opened: on which provider, and what runs before it is used."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.bundle.manifest import step_graph
from latentsync_trt.errors import BundleError, EngineBuildError, LatentSyncError, OutOfMemory, OutputError
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.sync.inpaint import graphs_for
from tests.compiling import COMPILING, CopyBuilder, compiling_provider
from tests.device import CPU, DemoModels, Device, denoised

pytestmark = pytest.mark.integration

TWO = ("vae_encoder", "denoise_step")
REFUSED = EngineBuildError("denoise_step: TensorRT built no engine: no kernel for Attention")
FULL = OutputError("/cache: the disk is full")
SHORT = OutOfMemory("denoise_step: out of memory; use --low-memory")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> CopyBuilder:
    return compiling_provider(monkeypatch)


def refuse(patch: pytest.MonkeyPatch, method: str, error: LatentSyncError) -> None:
    """Makes the provider that compiles fail with the full step."""
    usual = getattr(CopyBuilder, method)

    def refusing(self: CopyBuilder, graph: Path, folder: Path) -> Session | None:
        if graph.stem == "denoise_step":
            raise error
        found: Session | None = usual(self, graph, folder)
        return found

    patch.setattr(CopyBuilder, method, refusing)


@pytest.mark.parametrize(("method", "error"), [("build", REFUSED), ("open", REFUSED), ("build", FULL)])
def test_auto_goes_on_with_the_next_provider_and_a_named_one_fails(
    make: DemoModels,
    builder: CopyBuilder,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: LatentSyncError,
) -> None:
    refuse(monkeypatch, method, error)
    with pytest.raises(type(error), match=str(error)):
        make(replace(COMPILING, is_named=True), TWO)
    assert device.networks() == set()  # what was open has been closed
    model = make(COMPILING, TWO)
    assert model.selection.name == "cpu"
    assert f"tensorrt is not used for this bundle, continuing with cpu: {error}" in model.notices
    assert {time.provider for time in model.times()} == {"cpu"}


def test_too_little_memory_does_not_change_the_provider(
    make: DemoModels, builder: CopyBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "open", SHORT)
    with pytest.raises(OutOfMemory, match="use --low-memory"):
        make(COMPILING, TWO)


@pytest.mark.parametrize(("selection", "runs"), [(COMPILING, 1), (CPU, 0)], ids=["on a GPU", "on the CPU"])
def test_on_a_gpu_each_graph_runs_once_before_it_is_used(
    make: DemoModels, builder: CopyBuilder, selection: Selection, runs: int
) -> None:
    model = make(selection, graphs_for(SyncOptions(steps=8, guidance_interval=(0.5, 1.0))))
    steps = {step_graph(guided=guided, cached=cached) for guided in (True, False) for cached in (True, False)}
    # The VAE encodes masked faces and whole ones.
    expected = dict.fromkeys({"audio_encoder", "vae_decoder", *steps}, runs) | {"vae_encoder": 2 * runs}
    assert {time.graph: time.runs for time in model.times()} == expected


def test_what_is_closed_is_freed(make: DemoModels, device: Device) -> None:
    model = make()
    denoised(model)
    assert len(device.networks()) == 3
    model.close()
    gc.collect()
    assert device.networks() == set()
    model.close()


def test_a_graph_that_the_bundle_lacks_is_named(make: DemoModels) -> None:
    with pytest.raises(BundleError, match="denoise_step_upside_down"):
        make(CPU, ["denoise_step", "denoise_step_upside_down"])
