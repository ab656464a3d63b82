"""Which bundle a command means: a path, a name below `checkpoints/`, or the one that is part of the package."""

import os
from contextlib import suppress
from pathlib import Path

from latentsync_trt.bundle.manifest import (
    DEMO_NAME,
    EIGHT_BIT_PRECISIONS,
    MANIFEST_NAME,
    Precision,
    manifest_sha256,
    read_manifest,
)
from latentsync_trt.errors import BundleError

CHECKPOINTS_VARIABLE = "LATENTSYNC_TRT_CHECKPOINTS"


def checkpoints_folder() -> Path:
    """Where bundles and checkpoints are looked for: $LATENTSYNC_TRT_CHECKPOINTS, else `checkpoints/` here."""
    return Path(os.environ.get(CHECKPOINTS_VARIABLE) or "checkpoints")


def demo_folder() -> Path:
    """The small model that is part of the package."""
    return Path(__file__).parents[1] / "assets" / "demo_bundle"


def exported_bundles() -> list[Path]:
    """Folders below `checkpoints/` that hold a manifest, newest first."""
    manifests = checkpoints_folder().glob(f"*/{MANIFEST_NAME}")
    return [path.parent for path in sorted(manifests, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def find_bundle(name: str | None, precision: Precision | None = None) -> tuple[Path, str]:
    """The folder meant by `--bundle name --precision precision` and, in words, why it was chosen.

    `name` is a path, a name below `checkpoints/`, or "demo"; None means the newest exported bundle, else the demo.
    Where a precision is given, it is one of that precision: the named bundle, else the newest calibrated from it.

    Raises:
        BundleError: nothing there by that name, or nothing in that precision.
    """
    if name is not None:
        folder, why = _named(name)
        return (folder, why) if precision is None else _in_precision(folder, why, precision)
    newest = [folder for folder in exported_bundles() if precision is None or _is_in(folder, precision)]
    if newest:
        return newest[0], f"newest of {len(newest)} exported{'' if precision is None else f' in {precision}'}"
    if precision is not None and not _is_in(demo_folder(), precision):
        raise BundleError(f"no {precision} bundle in {checkpoints_folder()}; {_how_to_make(precision, '…')}")
    return demo_folder(), "built in; no exported bundle found"


def _named(name: str) -> tuple[Path, str]:
    if name == DEMO_NAME:
        return demo_folder(), "built in"
    for folder in (Path(name), checkpoints_folder() / name):
        if (folder / MANIFEST_NAME).is_file():
            return folder, "as asked"
    known = ", ".join([DEMO_NAME, *(path.name for path in exported_bundles())])
    raise BundleError(f"{name}: no bundle there nor in {checkpoints_folder()}; found: {known}")


def _in_precision(folder: Path, why: str, precision: Precision) -> tuple[Path, str]:
    found = read_manifest(folder)
    if found.precision == precision:
        return folder, why
    parent = manifest_sha256(folder)
    for other in exported_bundles():
        with suppress(BundleError):  # another one's damage is no trouble of this one
            made = read_manifest(other)
            if made.precision == precision and made.quantization and made.quantization.parent_sha256 == parent:
                return other, f"{precision} of {folder.name}"
    raise BundleError(f"{folder}: is in {found.precision}; {_how_to_make(precision, folder.name)}")


def _is_in(folder: Path, precision: Precision) -> bool:
    try:
        return read_manifest(folder).precision == precision
    except BundleError:
        return False


def _how_to_make(precision: Precision, name: str) -> str:
    if precision in EIGHT_BIT_PRECISIONS:
        return f"make it with `latentsync-trt calibrate --bundle {name} --precision {precision}`"
    return f"make one with `latentsync-trt export --precision {precision}`"
