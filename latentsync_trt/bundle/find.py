"""Finds the bundle for a command: a path, a name below `checkpoints/`, or the built-in demo."""

import os
from pathlib import Path

from latentsync_trt.bundle.manifest import DEMO_NAME, MANIFEST_NAME
from latentsync_trt.errors import BundleError

CHECKPOINTS_VARIABLE = "LATENTSYNC_TRT_CHECKPOINTS"


def checkpoints_folder() -> Path:
    """The folder of bundles and checkpoints: $LATENTSYNC_TRT_CHECKPOINTS, else `./checkpoints`."""
    return Path(os.environ.get(CHECKPOINTS_VARIABLE) or "checkpoints")


def demo_folder() -> Path:
    """The folder of the small bundle that is part of the package."""
    return Path(__file__).parents[1] / "assets" / "demo_bundle"


def exported_bundles() -> list[Path]:
    """Folders below `checkpoints/` with a manifest, newest first."""
    manifests = checkpoints_folder().glob(f"*/{MANIFEST_NAME}")
    return [path.parent for path in sorted(manifests, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def find_bundle(name: str | None) -> tuple[Path, str]:
    """The folder of `--bundle name`, and why it was chosen.

    `name` is a path, a name below `checkpoints/`, or "demo"; None means the newest exported bundle, else the demo.

    Raises:
        BundleError: there is no bundle of that name.
    """
    if name is not None:
        return _named(name)
    exported = exported_bundles()
    if exported:
        return exported[0], f"newest of {len(exported)} exported"
    return demo_folder(), "built in; no exported bundle found"


def _named(name: str) -> tuple[Path, str]:
    if name == DEMO_NAME:
        return demo_folder(), "built in"
    for folder in (Path(name), checkpoints_folder() / name):
        if (folder / MANIFEST_NAME).is_file():
            return folder, "named"
    known = ", ".join([DEMO_NAME, *(path.name for path in exported_bundles())])
    raise BundleError(f"{name}: no bundle there nor in {checkpoints_folder()}; found: {known}")
