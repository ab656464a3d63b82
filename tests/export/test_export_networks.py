"""The PyTorch networks against numbers recorded from the public release, and against themselves."""

from pathlib import Path

import numpy as np
import pytest
import torch

from latentsync_trt.export.checkpoints import load_unet, load_vae, load_whisper
from latentsync_trt.export.networks import VaeDecoder, VaeEncoder
from latentsync_trt.export.unet import UNet
from tests import narrow
from tests.sounds import log_mel

NETWORK_TOLERANCE = 1e-4
"""float32 sums in another order."""
FEATURE_TOLERANCE = 1e-3
"""As above, plus a log-mel made by another FFT."""
SAME_ARITHMETIC = 1e-5
"""The same operations, in batches of other sizes."""
SCALING_FACTOR = 0.18215


def relative(found: torch.Tensor, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found.numpy() - wanted).max() / np.abs(wanted).max())


@pytest.fixture(scope="module", autouse=True)
def _without_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def unet() -> UNet:
    network = UNet(narrow.UNET)
    narrow.randomize(network)
    return network.eval()


@pytest.fixture(scope="module")
def step() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "sample": torch.randn(narrow.FRAMES, 13, 8, 8, generator=generator),
        "timestep": torch.tensor(321),
        "audio": torch.randn(narrow.FRAMES, 50, narrow.AUDIO_WIDTH, generator=generator),
    }


def test_unet_reproduces_the_release(reference: Path) -> None:
    network = load_unet(reference / "small" / "unet.pt", torch.float32)
    recorded = np.load(reference / "small" / "unet_io.npz")
    batch, channels, frames, height, width = recorded["sample"].shape
    sample = (
        torch.from_numpy(recorded["sample"]).transpose(1, 2).reshape(-1, channels, height, width)
    )
    audio = torch.from_numpy(recorded["audio"]).flatten(0, 1)
    noise, _ = network(sample, torch.from_numpy(recorded["timestep"]), audio, frames=frames)
    assert (
        relative(noise.unflatten(0, (batch, frames)).transpose(1, 2), recorded["output"])
        <= NETWORK_TOLERANCE
    )


def test_vae_reproduces_the_release(reference: Path) -> None:
    vae = load_vae(reference / "small" / "vae", torch.float32)
    recorded = np.load(reference / "small" / "vae_io.npz")
    mode = recorded["latent_mode_unscaled"]
    encoded = VaeEncoder(vae)(torch.from_numpy(recorded["image"]))
    decoded = VaeDecoder(vae)(torch.from_numpy(mode * np.float32(SCALING_FACTOR)))
    assert relative(encoded, mode * SCALING_FACTOR) <= NETWORK_TOLERANCE
    assert relative(decoded, recorded["decoded"]) <= NETWORK_TOLERANCE


def test_whisper_reproduces_the_release(reference: Path, assets: Path) -> None:
    import av

    with av.open(str(assets / "demo1_audio.wav")) as container:
        samples = np.concatenate(
            [frame.to_ndarray().ravel() for frame in container.decode(audio=0)]
        )
    mel = log_mel(samples.astype(np.float32) / 32768)
    segment = np.zeros((1, 80, 3000), np.float32)
    segment[0, :, : mel.shape[1]] = mel
    features = load_whisper(reference / "small" / "whisper.pt", torch.float32)(
        torch.from_numpy(segment)
    )
    recorded = np.load(reference / "small" / "whisper_io.npz")["features"]
    assert relative(features[0, : len(recorded)], recorded) <= FEATURE_TOLERANCE


def test_guided_halves_equal_two_separate_runs(unet: UNet, step: dict[str, torch.Tensor]) -> None:
    both, _ = unet(**step, frames=narrow.FRAMES, guided=True)
    conditional, _ = unet(**step, frames=narrow.FRAMES)
    unconditional, _ = unet(
        **(step | {"audio": torch.zeros_like(step["audio"])}), frames=narrow.FRAMES
    )
    assert relative(both[: narrow.FRAMES], unconditional.numpy()) <= SAME_ARITHMETIC
    assert relative(both[narrow.FRAMES :], conditional.numpy()) <= SAME_ARITHMETIC
    assert relative(conditional, unconditional.numpy()) > 100 * SAME_ARITHMETIC


def test_windows_are_independent(unet: UNet, step: dict[str, torch.Tensor]) -> None:
    other = {"sample": step["sample"].flip(0, 2), "audio": step["audio"].flip(1)}
    pair = {name: torch.cat([step[name], other[name]]) for name in other}
    together, _ = unet(**(step | pair), frames=narrow.FRAMES)
    alone, _ = unet(**(step | other), frames=narrow.FRAMES)
    assert relative(together[narrow.FRAMES :], alone.numpy()) <= SAME_ARITHMETIC


@pytest.mark.parametrize("guided", [True, False])
def test_cached_step_continues_from_hidden(
    unet: UNet, step: dict[str, torch.Tensor], guided: bool
) -> None:
    full, hidden = unet(**step, frames=narrow.FRAMES, guided=guided)
    cached, _ = unet.tail()(**step, hidden=hidden, frames=narrow.FRAMES, guided=guided)
    assert relative(cached, full.numpy()) <= SAME_ARITHMETIC
    changed, _ = unet.tail()(**step, hidden=-hidden, frames=narrow.FRAMES, guided=guided)
    assert relative(changed, full.numpy()) > 100 * SAME_ARITHMETIC
