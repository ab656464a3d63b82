"""Where memory is short: one network at a time is open, with the same result, or one clear line says why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt import LipSync
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InferenceError, OutOfMemory
from latentsync_trt.runtime.model import Networks
from latentsync_trt.sync import run
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.types import WindowBatch
from tests.clips import LOSSLESS, decoded
from tests.compiling import COMPILING, compiling_provider
from tests.device import COEFFICIENTS, GRAPHS, DemoNetworks, Device, denoised, inputs, out_of_memory
from tests.small import small_bundle

pytestmark = pytest.mark.integration

WINDOWS = 3
LOW_MEMORY_NOTICE = "memory of the device is short (it ran out): one network at a time is kept on it, which is slower"


def test_low_memory_keeps_one_network_and_paints_the_same(
    three_windows: tuple[Path, Path],
    three_windows_synced: np.ndarray,
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[int] = []
    encode = Inpainter.encode

    def count(self: Inpainter, windows: list[object]) -> object:
        groups.append(len(windows))
        return encode(self, windows)  # type: ignore[arg-type]

    monkeypatch.setattr(Inpainter, "encode", count)
    assert run._LOW_MEMORY_WINDOWS > 2
    monkeypatch.setattr(run, "_LOW_MEMORY_WINDOWS", 2)  # as few as show the groups
    options = RuntimeOptions(low_memory=True, engine_cache=tmp_path / "cold")
    with LipSync.from_bundle(small_bundle(), "cpu", options) as lip_sync:
        report = lip_sync.sync(*three_windows, tmp_path / "out.mkv", LOSSLESS)
    assert device.most_networks == 1
    assert report.windows == WINDOWS
    assert groups == [2, 1]
    assert not any("one network at a time" in notice for notice in report.notices)  # nothing that was not asked for
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), three_windows_synced)


def computed(networks: Networks) -> list[np.ndarray]:
    """A result of each network, in the order of a run."""
    side = networks.bundle.manifest.resolution_px
    faces = np.arange(4 * side * side * 3).reshape(4, side, side, 3).astype(np.uint8)
    features = networks.encode_mel(np.linspace(-1, 1, 80 * 3000, dtype=np.float32).reshape(1, 80, 3000))

    def paint() -> list[np.ndarray]:
        _, latents = networks.codec.encode_faces(faces, np.ones((side, side), np.float32))
        return [latents, denoised(networks), np.stack(networks.codec.decode_faces(latents))]

    return [features, *networks.run(paint)]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What `computed` returns with all networks open."""
    with DemoNetworks(tmp_path_factory.mktemp("cache")) as make:
        return computed(make())


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(a, b, strict=True))


def test_one_network_at_a_time_is_open(make: DemoNetworks, device: Device) -> None:
    networks = make(low_memory=True)
    networks.prepare(GRAPHS[:2])
    networks.prepare(GRAPHS[2:])
    assert device.most_networks == 1
    device.opened.clear()
    first = computed(networks)
    assert device.networks() == {"vae.weights"}  # no buffer or binding keeps the denoiser alive
    assert equal(computed(networks), first)
    assert device.most_networks == 1
    assert device.opened.count("denoise_step") == 2
    denoiser = networks.denoiser
    denoiser.begin(WindowBatch(*inputs(), 1.5))
    denoiser.step(500, COEFFICIENTS, cached=False)
    networks.session("vae_decoder")
    with pytest.raises(InferenceError, match="needs a full step"):
        denoiser.step(500, COEFFICIENTS, cached=True)


def test_too_little_memory_to_open_all(make: DemoNetworks, device: Device, wanted: list[np.ndarray]) -> None:
    device.room = 1
    networks = make()
    networks.prepare(GRAPHS)
    assert equal(computed(networks), wanted)
    assert device.most_networks == 1
    assert networks.low_memory
    assert make.notices == [LOW_MEMORY_NOTICE]


def test_a_second_clip_takes_the_room_of_open_networks(
    make: DemoNetworks, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling_provider(monkeypatch)
    networks = make(COMPILING)
    networks.prepare(GRAPHS[:2])
    device.room, device.most_networks = 2, 0
    make.notices.clear()
    networks.prepare(GRAPHS[2:4])  # with other settings, and so with other graphs
    assert device.networks() == {"unet.weights"}
    assert device.most_networks <= 2
    assert any("is short (it ran out)" in notice for notice in make.notices)


def test_too_little_memory_for_one_network_is_an_error(make: DemoNetworks, device: Device) -> None:
    networks = make()
    device.room = 0
    with pytest.raises(OutOfMemory, match=r"out of memory .*; use low_memory, a bundle of lower resolution"):
        networks.prepare(GRAPHS)
    device.room, device.room_to_run = 9, 0
    with pytest.raises(OutOfMemory):
        networks.encode_mel(np.zeros((1, 80, 3000), np.float32))


@pytest.mark.parametrize("graph", ["vae_encoder", "denoise_step"])
def test_a_window_is_painted_again_with_new_sessions(
    graph: str, device: Device, make: DemoNetworks, wanted: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cuDNN planned because memory was short stays with a session."""
    spoiled: list[object] = []

    def check_run(session: object) -> None:
        if session in device._alive and _graph_of(session) == graph:
            spoiled.append(session)
            if session is spoiled[0]:
                raise out_of_memory()

    monkeypatch.setattr(device, "check_run", check_run)
    networks = make()
    networks.prepare(GRAPHS)
    assert equal(computed(networks), wanted)
    assert networks.low_memory
    assert device.opened.count(graph) == 2


def _graph_of(session: Any) -> str:
    """Of the VAE's and the full step's graphs, which one a session runs; empty for others."""
    given, made = ({tensor.name for tensor in side} for side in (session.get_inputs(), session.get_outputs()))
    if "hidden" in made:
        return "denoise_step"
    return {"latent": "vae_decoder", "image": "vae_encoder"}.get(next(iter(given)), "") if len(given) == 1 else ""
