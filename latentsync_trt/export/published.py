"""Where the weights are published, and the checksums that tell them from others."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.find import checkpoints_folder

Model = Literal["1.6", "1.5"]

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

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


LATENTSYNC = {
    model: Repository(f"ByteDance/LatentSync-{model}", commit, {UNET_FILE: unet, WHISPER_FILE: _WHISPER_SHA256})
    for model, commit, unet in (
        (
            "1.6",
            "c42c7e6c8e9c213626389fa7d9a3c444b8536353",
            "0a478e89eb660f82da4c35dbdde8a5adfb27f99d1b4e50edd03729e1e98316d3",
        ),
        (
            "1.5",
            "32a20d29aead0498e3e885e90dbbe8027da1b61b",
            "6440b49a7ccceff56cdc001f5f17605216337f5bbd66fa360139768926e23f51",
        ),
    )
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


def origin(sha256: str, model: str) -> str:
    """Where a file is published, as "ByteDance/LatentSync-1.6@c42c7e6c…", of several places that of `model`; or ""."""
    places = (LATENTSYNC[model], VAE, *LATENTSYNC.values())
    return next((str(each) for each in places if sha256 in each.files.values()), "")
