"""Published files are recognized, and errors in them are reported in one line."""

import dataclasses
from pathlib import Path

import pytest
import torch

from latentsync_trt.errors import CheckpointError, InputError
from latentsync_trt.export.checkpoint import load_unet, load_whisper
from latentsync_trt.export.exporter import export_bundle
from latentsync_trt.export.naming import checkpoint_tensors
from latentsync_trt.export.options import ExportOptions, Sources
from latentsync_trt.export.vae import load_vae
from tests import narrow


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return narrow.write_sources(tmp_path_factory.mktemp("sources"))


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
    loaded = load_unet(sources.unet, torch.float32)
    written = torch.load(sources.unet, weights_only=True)["state_dict"]
    assert loaded.network.config == narrow.UNET
    assert loaded.unused_tensors == 0
    again = checkpoint_tensors(loaded.network)
    assert again.keys() == written.keys()
    assert all(torch.equal(again[name], written[name]) for name in written)


def test_decoder_only_motion_modules_are_inferred(tmp_path: Path) -> None:
    config = dataclasses.replace(narrow.UNET, motion_down=(False, False))
    loaded = load_unet(narrow.write_unet(tmp_path / "unet.pt", config), torch.float32)
    assert loaded.network.config == config


def test_published_names_and_shapes(reference: Path) -> None:
    import gzip
    import json

    from latentsync_trt.export.naming import origins
    from latentsync_trt.export.unet import UNet, UNetConfig

    published = json.loads(gzip.decompress((reference / "unet_state_dict.json.gz").read_bytes()))
    for title, tensors in published.items():
        down = "decoder-only" not in title
        config = UNetConfig((320, 640, 1280, 1280), 2, 384, (True, True, True, False), (down,) * 4, (True,) * 4, 24)
        with torch.device("meta"):
            table = origins(UNet(config))
        ours = {name: list(origin.shape) for origin in table.values() for name in origin.names}
        assert ours == tensors, title


def test_extra_tensors_are_counted_not_refused(sources: Sources, tmp_path: Path) -> None:
    path = _edited(sources.unet, tmp_path / "unet.pt", surplus=torch.zeros(3), another=torch.zeros(1))
    assert load_unet(path, torch.float32).unused_tensors == 2


def test_missing_tensors_are_named(sources: Sources, tmp_path: Path) -> None:
    path = _edited(sources.unet, tmp_path / "unet.pt", **{"conv_out.bias": None, "conv_out.weight": None})
    with pytest.raises(CheckpointError, match=r"unet\.pt: 2 of \d+ tensors missing: conv_out\.weight, conv_out\.bias"):
        load_unet(path, torch.float32)


def test_a_wrong_shape_is_named(sources: Sources, tmp_path: Path) -> None:
    path = _edited(sources.unet, tmp_path / "unet.pt", **{"conv_out.bias": torch.zeros(5)})
    with pytest.raises(CheckpointError, match=r"1 tensors of another shape, first conv_out\.bias: \(5,\), not \(4,\)"):
        load_unet(path, torch.float32)


def test_swapped_files_are_recognized(sources: Sources) -> None:
    with pytest.raises(CheckpointError, match="a Whisper model, not a LatentSync U-Net; give it as --whisper"):
        load_unet(sources.whisper, torch.float32)
    with pytest.raises(CheckpointError, match="a LatentSync U-Net, not one of OpenAI's Whisper models"):
        load_whisper(sources.unet, torch.float32)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_vae(sources.unet.parent, torch.float32)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short", b"\x80\x02c__main__\nx\n."])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "unet.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"unet\.pt: damaged, or not a PyTorch weight file"):
        load_unet(path, torch.float32)


def test_a_truncated_file(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "unet.pt"
    path.write_bytes(sources.unet.read_bytes()[:100_000])
    with pytest.raises(CheckpointError, match="damaged"):
        load_unet(path, torch.float32)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        load_unet(tmp_path / "none.pt", torch.float32)
    with pytest.raises(CheckpointError, match="is a folder"):
        load_unet(tmp_path, torch.float32)


def test_audio_width_must_fit(sources: Sources, tmp_path: Path) -> None:
    wide = narrow.write_whisper(tmp_path / "small.pt", dataclasses.replace(narrow.WHISPER, width=64))
    options = narrow.narrow_options(dataclasses.replace(sources, whisper=wide), tmp_path / "bundle")
    with pytest.raises(CheckpointError, match=r"gives features 64 wide, but .* was trained for 32"):
        export_bundle(options)
    assert [path.name for path in tmp_path.iterdir()] == ["small.pt"]


def test_a_vae_without_all_its_tensors(sources: Sources, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in sources.vae.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    del tensors["decoder.conv_out.bias"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 tensors missing, first decoder\.conv_out\.bias"):
        load_vae(tmp_path, torch.float32)


def test_the_published_vae_has_older_attention_names(sources: Sources, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    older = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    (tmp_path / "config.json").write_bytes((sources.vae / "config.json").read_bytes())
    tensors = load_file(sources.vae / "diffusion_pytorch_model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        for new, old in older.items():
            name = name.replace(f"attentions.0.{new}.", f"attentions.0.{old}.")
        renamed[name] = tensor
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    loaded = load_vae(tmp_path, torch.float32).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(("resolution", "nearest"), [(500, "448 and 512"), (257, "256 and 320")])
def test_resolution_must_divide_by_64(resolution: int, nearest: str) -> None:
    with pytest.raises(InputError, match=f"--resolution {resolution}: not divisible by 64; the nearest are {nearest}"):
        ExportOptions(resolution=resolution)


def test_a_missing_default_checkpoint_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"`hf download ByteDance/LatentSync-1\.5 latentsync_unet\.pt --local-dir"
    ):
        export_bundle(ExportOptions(model="1.5"))
