"""The small networks must match the classes of the exporter and of diffusers."""

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL

from latentsync_trt.export.checkpoint import load_unet, load_whisper
from latentsync_trt.export.unet import UNet
from latentsync_trt.export.vae import VaeDecoder, VaeEncoder, load_vae
from scripts.train_demo.networks import (
    SHIPPED,
    TINY,
    Sizes,
    make_unet,
    make_vae,
    make_whisper,
    save_checkpoints,
)
from scripts.train_demo.vae import save_vae

SAME = 1e-5
"""float32 rounding, relative to values near 1."""
HALVED = 5e-3
"""Weights stored in half precision."""

SHIPPED_BYTES = 18e6
"""Two bytes a parameter; graphs take about 2 MB more, of the 25 that the package allows."""


def test_the_vae_equals_that_of_diffusers(tmp_path: Path) -> None:
    vae = make_vae(TINY, 1).eval()
    save_vae(vae, tmp_path, 0.5)
    theirs, report = AutoencoderKL.from_pretrained(tmp_path, low_cpu_mem_usage=False, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        latent = vae.encode(image)
        torch.testing.assert_close(theirs.encode(image).latent_dist.mode(), latent, atol=SAME, rtol=SAME)
        torch.testing.assert_close(theirs.decode(latent).sample, vae.decode(latent), atol=SAME, rtol=SAME)


def test_a_timestep_per_window_gives_the_same_as_separate_calls() -> None:
    trained = make_unet(TINY, 2)
    torch.nn.init.normal_(trained.conv_out.weight)
    plain = UNet(TINY.unet)
    plain.load_state_dict(trained.state_dict())
    generator = torch.Generator().manual_seed(3)
    sample, audio = torch.randn(6, 13, 8, 8, generator=generator), torch.randn(6, 30, 32, generator=generator)
    with torch.no_grad():
        both = trained(sample, torch.tensor([30, 700]), audio, frames=3)[0]
        first = plain(sample[:3], torch.tensor(30), audio[:3], frames=3)[0]
        second = plain(sample[3:], torch.tensor(700), audio[3:], frames=3)[0]
    torch.testing.assert_close(both, torch.cat([first, second]), atol=SAME, rtol=SAME)


@pytest.mark.parametrize(
    "sizes", [pytest.param(TINY, id="tiny"), pytest.param(SHIPPED, id="shipped", marks=pytest.mark.slow)]
)
def test_the_exporter_loads_the_checkpoints(sizes: Sizes, tmp_path: Path) -> None:
    unet, whisper, vae = make_unet(sizes, 1), make_whisper(sizes, 2), make_vae(sizes, 3)
    torch.nn.init.normal_(unet.conv_out.weight, std=0.1)
    files = save_checkpoints(tmp_path, unet, whisper, vae, 0.7, step=12)
    loaded = load_unet(files.unet, torch.float32)
    assert loaded.unused_tensors == 0
    assert loaded.network.config == sizes.unet
    theirs = load_vae(files.vae, torch.float32)
    generator = torch.Generator().manual_seed(4)
    sample, audio = torch.randn(4, 13, 8, 8, generator=generator), torch.randn(4, 20, sizes.whisper.width)
    mel, image = torch.randn(1, 80, 3000, generator=generator), torch.randn(1, 3, 64, 64, generator=generator)
    with torch.no_grad():
        expected = unet(sample, torch.tensor([9]), audio, frames=4)[0]
        found = loaded.network(sample, torch.tensor(9), audio, frames=4)[0]
        torch.testing.assert_close(found, expected, atol=HALVED, rtol=HALVED)
        torch.testing.assert_close(load_whisper(files.whisper, torch.float32)(mel), whisper(mel), atol=2e-2, rtol=2e-2)
        latent = VaeEncoder(theirs)(image)
        torch.testing.assert_close(latent, 0.7 * vae.encode(image), atol=HALVED, rtol=HALVED)
        torch.testing.assert_close(VaeDecoder(theirs)(latent), vae.decode(latent / 0.7), atol=2e-2, rtol=2e-2)


def test_the_shipped_networks_fit_into_the_package() -> None:
    networks = make_unet(SHIPPED, 0), make_whisper(SHIPPED, 0), make_vae(SHIPPED, 0)
    count = sum(parameter.numel() for network in networks for parameter in network.parameters())
    assert 2 * count < SHIPPED_BYTES
    assert SHIPPED.unet.attention == (True, True, True, False)
    assert all(SHIPPED.unet.motion_down + SHIPPED.unet.motion_up)
