"""Where memory is short: networks take turns, the run goes on and comes to the same, or one clear line says why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InferenceError, OutOfMemory
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync import run
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.types import WindowBatch
from tests.clips import decoded, synced, write_clip
from tests.device import COEFFICIENTS, GRAPHS, DemoNetworks, Device, denoised, inputs, out_of_memory
from tests.small import small_bundle

QUICK = SyncOptions(steps=2, cache_interval=2, lossless=True)
FRAMES, WINDOWS = 36, 3
LOW_MEMORY_NOTICE = "memory of the device is short (it ran out): one network at a time is kept on it, which is slower"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A face of `WINDOWS` windows, and speech as long."""
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


@pytest.fixture(scope="module")
def usual(clip: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What a run with all networks open makes of the clip."""
    return synced(clip, tmp_path_factory.mktemp("usual") / "out.mkv", QUICK)


def test_low_memory_keeps_one_network_and_paints_the_same(
    clip: tuple[Path, Path],
    usual: np.ndarray,
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[int] = []
    paint = Inpainter.paint

    def count(self: Inpainter, windows: list[object]) -> object:
        groups.append(len(windows))
        return paint(self, windows)  # type: ignore[arg-type]

    monkeypatch.setattr(Inpainter, "paint", count)
    assert run._WINDOWS_IN_TURN > 2
    monkeypatch.setattr(run, "_WINDOWS_IN_TURN", 2)  # as few as show the groups
    options = RuntimeOptions(low_memory=True, engine_cache=tmp_path / "cold")
    with LipSync.from_bundle(small_bundle(), "cpu", options) as lip_sync:
        report = lip_sync.sync(*clip, tmp_path / "out.mkv", QUICK)
    assert device.most_networks == 1
    assert report.windows == WINDOWS
    assert groups == [2, 1]
    assert not any("one network at a time" in notice for notice in report.notices)  # nothing that was not asked for
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), usual)


def computed(networks: Networks) -> list[np.ndarray]:
    """One thing from each network, in the order of a run."""
    images = np.linspace(-1, 1, 4 * 3 * 128 * 128, dtype=np.float32).reshape(4, 3, 128, 128)
    heard = networks.encode_mel(np.linspace(-1, 1, 80 * 3000, dtype=np.float32).reshape(1, 80, 3000))
    latents = networks.encode(images)
    return [heard, latents, denoised(networks), networks.decode(latents)]


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(a, b, strict=True))


def test_networks_come_and_go(make: DemoNetworks, device: Device) -> None:
    networks = make(low_memory=True)
    networks.prepare(GRAPHS[:2])
    networks.prepare(GRAPHS[2:])  # builds while another network is there
    assert device.most_networks == 1
    device.opened.clear()
    first = computed(networks)
    assert device.networks() == {"vae.weights"}  # no buffer or binding keeps the denoiser alive
    assert equal(computed(networks), first)
    assert device.most_networks == 1
    assert device.opened.count("denoise_step") == 2
    denoiser = networks.denoiser()
    denoiser.begin(WindowBatch(*inputs(), 1.5))
    denoiser.step(500, COEFFICIENTS, cached=False)
    networks.session("vae_decoder")
    with pytest.raises(InferenceError, match="needs a full step"):
        denoiser.step(500, COEFFICIENTS, cached=True)


@pytest.mark.parametrize("room", [1, 2])
def test_too_little_memory_to_open_all(make: DemoNetworks, device: Device, room: int) -> None:
    usual = make()
    wanted = computed(usual)
    usual.close()
    device.room, device.most_networks = room, 0
    networks = make()
    networks.prepare(GRAPHS)
    assert equal(computed(networks), wanted)
    assert device.most_networks <= room
    assert networks.low_memory
    assert make.notices == [LOW_MEMORY_NOTICE]


def test_too_little_memory_to_run(make: DemoNetworks, device: Device) -> None:
    usual = make()
    wanted = computed(usual)
    usual.close()
    device.room_to_run = 1
    networks = make()
    networks.prepare(GRAPHS)
    assert not networks.low_memory
    assert equal(computed(networks), wanted)
    assert networks.low_memory
    assert networks.take_notices() == (LOW_MEMORY_NOTICE,)
    assert make.notices == [LOW_MEMORY_NOTICE]


def test_memory_that_runs_out_at_a_cached_step(make: DemoNetworks, device: Device) -> None:
    usual = make()
    wanted = denoised(usual)
    usual.close()
    networks = make()
    networks.prepare(GRAPHS)
    denoiser = networks.denoiser()
    denoiser.begin(WindowBatch(*inputs(), 1.5))
    for cached, room in ((False, 9), (True, 1)):
        device.room_to_run = room
        denoiser.step(500, COEFFICIENTS, cached=cached)
    assert np.array_equal(denoiser.latents(), wanted)
    denoiser.step(500, COEFFICIENTS, cached=True)  # with what the full step left
    assert device.networks() == {"unet.weights"}


def test_a_build_takes_the_room_of_open_networks(make: DemoNetworks, device: Device) -> None:
    networks = make()
    networks.prepare(GRAPHS[:2])
    device.room = 2
    networks.prepare(GRAPHS[2:4])  # a second clip, with other settings
    assert device.networks() == {"unet.weights"}
    assert make.notices == [LOW_MEMORY_NOTICE]
    assert networks.low_memory


def test_too_little_memory_for_one_network_reaches_the_caller(make: DemoNetworks, device: Device) -> None:
    networks = make()
    device.room = 0
    with pytest.raises(OutOfMemory, match=r"out of memory .*; use --low-memory, a bundle of a lower --resolution"):
        networks.prepare(GRAPHS)
    device.room, device.room_to_run = 9, 0
    with pytest.raises(OutOfMemory):
        networks.encode(np.zeros((4, 3, 128, 128), np.float32))


def test_the_command_says_out_of_memory_in_one_line(clip: tuple[Path, Path], device: Device, tmp_path: Path) -> None:
    device.room_to_run = 0
    video, audio = map(str, clip)
    arguments = [
        "--video",
        video,
        "--audio",
        audio,
        "-o",
        str(tmp_path / "out.mp4"),
        "--bundle",
        str(small_bundle()),
        "-q",
    ]
    result = CliRunner().invoke(main, ["sync", *arguments])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert "on CPUExecutionProvider: out of memory " in result.stderr
    assert "; use --low-memory, a bundle of a lower --resolution or --precision fp16" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("graph", ["vae_decoder", "vae_encoder", "denoise_step"])
def test_a_session_that_stays_without_memory_is_opened_anew(
    graph: str, device: Device, make: DemoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cuDNN planned for want of memory stays with a session, also when the others are closed."""
    usual = _everything(make())
    spoiled: list[object] = []

    def check_run(session: object) -> None:
        if session in device._alive and _graph_of(session) == graph:
            spoiled.append(session)
            if session is spoiled[0]:
                raise out_of_memory()

    monkeypatch.setattr(device, "check_run", check_run)
    networks = make()
    for one, other in zip(_everything(networks), usual, strict=True):
        assert np.array_equal(one, other)
    assert networks.low_memory
    assert device.opened.count(graph) == 3  # of the usual run, of this one, and once more


def test_a_session_that_never_finds_memory_ends_the_run(
    device: Device, make: DemoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_run(session: object) -> None:
        if session in device._alive and _graph_of(session) == "vae_decoder":
            raise out_of_memory()

    monkeypatch.setattr(device, "check_run", check_run)
    with pytest.raises(OutOfMemory, match="vae_decoder"):
        _everything(make())
    assert device.opened.count("vae_decoder") == 2


def _everything(networks: Networks) -> list[np.ndarray]:
    """Latents of faces, faces of latents, and latents after two steps, with all networks open at first."""
    random, side = np.random.default_rng(6), networks.bundle.manifest.resolution_px
    networks.prepare(GRAPHS)
    faces = random.integers(0, 255, (2, side, side, 3), np.uint8)
    encoded = networks.encode_faces(faces, np.ones((side, side), np.float32))
    return [*encoded, np.stack(networks.decode_faces(encoded[1])), denoised(networks)]


def _graph_of(session: Any) -> str:
    """Of the VAE's and the full step's graphs, which one a session runs; empty for others."""
    given, made = ({tensor.name for tensor in side} for side in (session.get_inputs(), session.get_outputs()))
    if "hidden" in made:
        return "denoise_step"
    return {"latent": "vae_decoder", "image": "vae_encoder"}.get(next(iter(given)), "") if len(given) == 1 else ""
