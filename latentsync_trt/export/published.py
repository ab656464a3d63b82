"""Where the weights are published, and `download.json`, which says where those in a folder come from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.checks import parsed
from latentsync_trt.bundle.find import checkpoints_folder
from latentsync_trt.bundle.manifest import FileEntry
from latentsync_trt.errors import CheckpointError
from latentsync_trt.temporary import whole_file

Model = Literal["1.6", "1.5"]

RECORD_NAME = "download.json"
UNET_FILE, WHISPER_FILE = "latentsync_unet.pt", "whisper/tiny.pt"

# Also part of the address at which OpenAI publishes the file.
_WHISPER_SHA256 = "65147644a518d12f04e32d6f3b26facc3f8dd46e5390956a9424a650c0ce22b9"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository on the hub: the commit to download, and the SHA-256 of each needed file there."""

    name: str
    revision: str
    files: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """Where `export` looks for its files."""
        return checkpoints_folder() / self.name.partition("/")[2].lower()


def _latentsync(model: str, revision: str, unet_sha256: str) -> Repository:
    return Repository(
        f"ByteDance/LatentSync-{model}", revision, {UNET_FILE: unet_sha256, WHISPER_FILE: _WHISPER_SHA256}
    )


LATENTSYNC = {
    "1.6": _latentsync(
        "1.6",
        "c42c7e6c8e9c213626389fa7d9a3c444b8536353",
        "0a478e89eb660f82da4c35dbdde8a5adfb27f99d1b4e50edd03729e1e98316d3",
    ),
    "1.5": _latentsync(
        "1.5",
        "32a20d29aead0498e3e885e90dbbe8027da1b61b",
        "6440b49a7ccceff56cdc001f5f17605216337f5bbd66fa360139768926e23f51",
    ),
}
"""By model."""

VAE = Repository(
    "stabilityai/sd-vae-ft-mse",
    "31f26fdeee1355a5c34592e401dd41e45d25a493",
    {
        "config.json": "92d3dfb746fca211a2c9e019e285f8597412211728dce3c5bcf4eda0f2d62e7e",
        "diffusion_pytorch_model.safetensors": "a1d993488569e928462932c8c38a0760b874d166399b14414135bd9c42df5815",
    },
)


@dataclass(frozen=True, slots=True)
class Record:
    """Content of `download.json`: repository, commit, and the files of its folder by name."""

    repository: str
    revision: str
    files: Mapping[str, FileEntry]

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}"


def read_record(folder: Path) -> Record | None:
    """The record in `folder`, None without one; raises `CheckpointError` if it is damaged."""
    path = folder / RECORD_NAME
    try:
        record: Record = parsed(json.loads(path.read_text(encoding="utf-8")), Record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); delete it and download again") from error
    return record


def write_record(folder: Path, record: Record) -> None:
    """Writes `download.json` into `folder`; raises OSError."""
    with whole_file(folder / RECORD_NAME) as part:
        part.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def record_of(weights: Path) -> Record | None:
    """The record of the download that `weights` is a file of; raises as `read_record`."""
    for folder in weights.parents[:2]:
        record = read_record(folder)
        if record is not None and weights.relative_to(folder).as_posix() in record.files:
            return record
    return None


def check_model(unet: Path, model: str, resolution_px: int, made_for_px: Mapping[str, int]) -> None:
    """Raises `CheckpointError` if the U-Net was downloaded as one model and is to be exported as the other.

    `made_for_px`: resolution by model.
    """
    record = record_of(unet)
    own = next((name for name, each in LATENTSYNC.items() if record and each.name == record.repository), model)
    if own != model or (record and resolution_px in {px for name, px in made_for_px.items() if name != own}):
        raise CheckpointError(
            f"{unet}: weights of LatentSync {own} ({record}), made for {made_for_px[own]} px: as model {model} at "
            f"{resolution_px} px the mouth gets blurred; give `--model {own}` and no --resolution",
            usage=True,
        )
