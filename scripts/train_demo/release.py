"""Exports trained checkpoints to the bundle that the package ships."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.manifest import MANIFEST_NAME, read_manifest, write_manifest
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.export.exporter import export_bundle
from scripts.train_demo.networks import WINDOW_FRAMES, CheckpointFiles

NAME = "demo"
LIMITS = (
    "a small model trained on synthetic speech and one animated portrait: "
    "it shows that lips follow speech, and is not made for other faces"
)

Precision = Literal["fp32", "fp16"]


def release(checkpoints: Path, out: Path, resolution_px: int, precision: Precision = "fp16") -> Path:
    """Exports and verifies the networks in the folder `checkpoints`, and adds their limits to the manifest.

    Raises:
        CheckpointError, ExportMismatch, OutputError: as `export_bundle`.
        FileExistsError: `out` exists and is not a bundle.
    """
    files = CheckpointFiles(checkpoints)
    if out.exists() and not (out / MANIFEST_NAME).is_file():
        raise FileExistsError(f"{out}: exists and is not a bundle; choose another --work folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        options = ExportOptions(
            unet=files.unet,
            vae=files.vae,
            whisper=files.whisper,
            out=Path(folder) / NAME,
            resolution=resolution_px,
            frames=WINDOW_FRAMES,
            precision=precision,
            cuda_form=False,  # its kernels do not support groups of three channels
        )
        bundle = export_bundle(options, lambda stage, done: print(f"{100 * done:3.0f} % {stage}", flush=True))
        manifest = read_manifest(bundle)
        (bundle / MANIFEST_NAME).unlink()
        write_manifest(bundle, replace(manifest, name=NAME, model=NAME, notes=(*manifest.notes, LIMITS)))
        if out.exists():
            shutil.rmtree(out)
        bundle.rename(out)
    return out
