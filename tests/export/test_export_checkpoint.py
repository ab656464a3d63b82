"""Published files are recognized, and errors in them are reported in one line."""

import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from latentsync_trt.cli import main
from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.checkpoints import load_unet, load_vae, load_whisper, origins
from latentsync_trt.export.export_options import Sources
from latentsync_trt.export.syncnet import load_syncnet
from latentsync_trt.export.unet import UNet, UNetConfig
from scripts.published import checkpoint_tensors
from tests import narrow
from tests.export.conftest import UNET

WEIGHTS = "diffusion_pytorch_model.safetensors"


def _edited(source: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of a U-Net file with some tensors replaced (or, with None, removed)."""
    content = torch.load(source, weights_only=True)
    for name, tensor in changes.items():
        if tensor is None:
            del content["state_dict"][name]
        else:
            content["state_dict"][name] = tensor
    torch.save(content, target)
    return target


def test_configuration_and_weights_are_read_back(sources: Sources) -> None:
    network = load_unet(sources.unet, torch.float32)
    written = torch.load(sources.unet, weights_only=True)["state_dict"]
    assert network.config == UNET
    again = checkpoint_tensors(network)
    assert again.keys() == written.keys()
    assert all(torch.equal(again[name], written[name]) for name in written)


def test_motion_modules_are_inferred(tmp_path: Path) -> None:
    config = dataclasses.replace(UNET, motion_down=(True, False))
    extra = {"surplus": torch.zeros(3)}  # not refused
    assert (
        load_unet(narrow.write_unet(tmp_path / "unet.pt", config, extra), torch.float32).config
        == config
    )


def test_published_names_and_shapes(reference: Path) -> None:
    published = json.loads(gzip.decompress((reference / "unet_state_dict.json.gz").read_bytes()))
    for title, tensors in published.items():
        down = "decoder-only" not in title
        config = UNetConfig(
            (320, 640, 1280, 1280), 2, 384, (True, True, True, False), (down,) * 4, (True,) * 4, 24
        )
        with torch.device("meta"):
            table = origins(UNet(config))
        ours = {name: list(origin.shape) for origin in table.values() for name in origin.names}
        assert ours == tensors, title


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"1 of \d+ tensors .* first conv_out\.bias: missing, not \(4,\)"),
        (torch.zeros(5), r"1 of \d+ tensors .* first conv_out\.bias: \(5,\), not \(4,\)"),
        (
            torch.full((4,), float("nan")),
            r"conv_out\.bias .*values up to nan, .*; the file is damaged",
        ),
        (
            torch.full((4,), 1e6),
            r"conv_out\.bias .*values up to 1e\+06, .*; export with --precision fp32",
        ),
    ],
)
def test_wrong_tensors_are_named(
    sources: Sources, tmp_path: Path, value: torch.Tensor | None, message: str
) -> None:
    path = _edited(sources.unet, tmp_path / "unet.pt", **{"conv_out.bias": value})
    with pytest.raises(CheckpointError, match=rf"unet\.pt: {message}"):
        load_unet(path, torch.float16)


def test_bfloat16_weights_are_read(sources: Sources, tmp_path: Path) -> None:
    path = _edited(
        sources.unet, tmp_path / "unet.pt", **{"conv_out.bias": torch.ones(4, dtype=torch.bfloat16)}
    )
    assert torch.equal(load_unet(path, torch.float32).conv_out.bias, torch.ones(4))


class _Code:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02c__main__\nx\n.", b"PK\x03\x04 cut short"],
)
def test_files_that_are_no_weights(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "unet.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"unet\.pt: damaged"):
        load_unet(tmp_path / "unet.pt", torch.float32)
    with pytest.raises(CheckpointError, match=r"unet\.pt: damaged"):
        load_syncnet(tmp_path / "unet.pt")


def test_a_pickle_with_code_is_not_executed(sources: Sources, tmp_path: Path) -> None:
    torch.save({"state_dict": _Code(tmp_path / "executed")}, tmp_path / "unet.pt")
    with pytest.raises(CheckpointError, match=r"unet\.pt: damaged"):
        load_unet(tmp_path / "unet.pt", torch.float32)
    vae = tmp_path / "vae"
    vae.mkdir()
    (vae / "config.json").write_bytes((sources.vae / "config.json").read_bytes())
    torch.save({"weight": _Code(tmp_path / "executed")}, vae / "diffusion_pytorch_model.bin")
    with pytest.raises(CheckpointError, match="AutoencoderKL"):
        load_vae(vae, torch.float32)
    assert not (tmp_path / "executed").exists()


def test_the_published_vae_has_older_attention_names(sources: Sources, tmp_path: Path) -> None:
    vae = shutil.copytree(sources.vae, tmp_path / "vae")
    tensors = load_file(vae / WEIGHTS)
    renamed = {}
    for name, tensor in tensors.items():
        for new, old in {
            "to_q": "query",
            "to_k": "key",
            "to_v": "value",
            "to_out.0": "proj_attn",
        }.items():
            name = name.replace(f"attentions.0.{new}.", f"attentions.0.{old}.")
        renamed[name] = tensor
    assert renamed.keys() != tensors.keys()
    save_file(renamed, vae / WEIGHTS, metadata={"format": "pt"})
    loaded = load_vae(vae, torch.float32).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_vae_with_other_layers_is_refused(tmp_path: Path) -> None:
    narrow.make_vae(use_quant_conv=False).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="use_quant_conv is False"):
        load_vae(tmp_path, torch.float32)


def test_swapped_files_are_recognized(sources: Sources) -> None:
    with pytest.raises(CheckpointError, match="U-Net"):
        load_unet(sources.whisper, torch.float32)
    with pytest.raises(CheckpointError, match="Whisper"):
        load_whisper(sources.unet, torch.float32)
    with pytest.raises(CheckpointError, match="not SyncNet's weights"):
        load_syncnet(sources.unet)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_vae(sources.unet.parent, torch.float32)


def test_a_missing_default_checkpoint_says_how_to_get_it(tmp_path: Path) -> None:
    result = CliRunner(env={"LATENTSYNC_TRT_CHECKPOINTS": str(tmp_path)}).invoke(
        main, ["export", "--model", "1.5"]
    )
    assert result.exit_code == 2
    assert "`latentsync-trt download 1.5`" in result.stderr
