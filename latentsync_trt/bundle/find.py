"""Finds the bundle for a command: a path, a name below `checkpoints/`, the built-in demo, or the
user's default.
"""

import os
from pathlib import Path

from latentsync_trt.bundle.machine import setup_command
from latentsync_trt.bundle.manifest import DEMO_NAME, MANIFEST_NAME, Manifest, read_manifest
from latentsync_trt.errors import BundleError, InputError, OutputError
from latentsync_trt.files import whole_file
from latentsync_trt.paths import below_home, local_path, path_exists

CHECKPOINTS_VARIABLE = "LATENTSYNC_TRT_CHECKPOINTS"
"""Names the folder of bundles and checkpoints."""

CHOICE_NAME = "default-bundle"
"""File in the folder of bundles that contains the name of the one to run where none is named."""

SYNCNET_FILE = "syncnet.onnx"
"""SyncNet's graph in the folder of bundles, which `export --syncnet` writes."""


def checkpoints_folder() -> Path:
    """Returns the folder of bundles and checkpoints: $LATENTSYNC_TRT_CHECKPOINTS, else
    `./checkpoints`.

    Raises:
        InputError: the variable names a home folder that does not exist.
    """
    named = os.environ.get(CHECKPOINTS_VARIABLE)
    if named:
        return below_home(named, f"choose another place with {CHECKPOINTS_VARIABLE}")
    return Path("checkpoints")


def demo_folder() -> Path:
    """Returns the folder of the built-in bundle."""
    return Path(__file__).parents[1] / "assets" / "demo_bundle"


def exported_bundles() -> list[Path]:
    """Returns the folders below `checkpoints/` with a manifest, by name; hidden ones are being
    written.
    """
    root = checkpoints_folder()
    if not path_exists(root):
        return []
    return sorted(path.parent for path in root.glob(f"[!.]*/{MANIFEST_NAME}"))


def name_of(folder: Path) -> str:
    """Returns what `--bundle` takes for a bundle: "demo", its name below `checkpoints/`, else its
    path.
    """
    if folder == demo_folder():
        return DEMO_NAME
    if folder.parent == checkpoints_folder():
        return folder.name
    return str(folder)


def describe(folder: Path) -> str:
    """Returns name and facts, as in "1.6-512-fp16 (model 1.6, 512 px, fp16)", or that the bundle is
    damaged.
    """
    try:
        note = facts(read_manifest(folder))
    except BundleError:
        note = "damaged"
    return f"{name_of(folder)} ({note})"


def describe_choice(folder: Path, why: str) -> str:
    """Returns in words what `find_bundle` returned, as in "bundle 1.6-512-fp16 (named)"."""
    return f"bundle {name_of(folder)} ({why})"


def facts(manifest: Manifest) -> str:
    """Returns what tells bundles apart, as in "model 1.6, 512 px, fp16"."""
    return f"model {manifest.model}, {manifest.resolution_px} px, {manifest.precision}"


def find_bundle(name: str | None) -> tuple[Path, str]:
    """Returns the folder of `--bundle name`, and why it was chosen.

    `name` is a path, a name below `checkpoints/`, or "demo"; None means the remembered choice, else
    the only exported bundle, never the demo.

    Raises:
        BundleError: there is no such bundle, or there are several and none was chosen.
        InputError: the name is empty or a URL.
    """
    if name is None:
        return _default()
    if name == DEMO_NAME:
        return demo_folder(), "built in"
    path = local_path(name, "bundle")
    for folder in (path, checkpoints_folder() / path):
        if path_exists(folder / MANIFEST_NAME):
            return folder, "named"
    names = ", ".join([DEMO_NAME, *(path.name for path in exported_bundles())])
    cure = f"choose from {names}; `{setup_command()}` makes another"
    raise BundleError(f"{name}: no bundle there nor in {checkpoints_folder()}; {cure}", usage=True)


def _default() -> tuple[Path, str]:
    chosen = remembered_choice()
    exported = exported_bundles()
    root = checkpoints_folder()
    gone = ""
    if chosen is not None:
        if root / chosen in exported:
            return root / chosen, "chosen with `setup --use`"
        gone = f"{root / CHOICE_NAME}: names {chosen!r}, but there is no such bundle; "
    elif len(exported) == 1:
        return exported[0], "the only exported one"
    if exported:
        cure = (
            f"{len(exported)} exported bundles: {', '.join(map(describe, exported))}; say which "
            "with `--bundle NAME`, or choose one for all commands with "
            "`latentsync-trt setup --use NAME`"
        )
    else:
        cure = (
            f"no exported bundle; get one with `{setup_command()}`, "
            "or try the small one with `--bundle demo`"
        )
    raise BundleError(f"{gone}{root}: {cure}", usage=True)


def default_bundle() -> tuple[str | None, str]:
    """Returns the name of the bundle that runs without `--bundle`, and why it was chosen; or None
    and why there is none, with the cure.
    """
    try:
        folder, why = _default()
    except BundleError as error:
        return None, str(error)
    return folder.name, why


def remembered_choice() -> str | None:
    """Returns the name that `remember` wrote, None without one; raises `BundleError` if the file
    cannot be read.
    """
    path = checkpoints_folder() / CHOICE_NAME
    try:
        return path.read_text(encoding="utf-8").strip() if path_exists(path) else None
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{path}: cannot be read ({error}); choose again with `latentsync-trt setup --use NAME`"
        ) from error


def remember(name: str) -> Path:
    """Makes a bundle below `checkpoints/` the default of all commands; returns its folder.

    Args:
        name: its name, or its path.

    Raises:
        BundleError: there is no such bundle, or it is damaged.
        InputError: it lies elsewhere, or is the built-in one.
        OutputError: the choice cannot be written.
    """
    folder, _ = find_bundle(name)
    chosen = next((each for each in exported_bundles() if each.samefile(folder)), None)
    if chosen is None:
        raise InputError(
            f"{name}: not in {checkpoints_folder()}; name the "
            "built-in bundle, and bundles elsewhere, with `--bundle`"
        )
    read_manifest(chosen)
    path = checkpoints_folder() / CHOICE_NAME
    try:
        with whole_file(path) as written:
            written.write_text(f"{chosen.name}\n", encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: the name is not Unicode
        raise OutputError(f"{path}: cannot be written ({error})") from error
    return chosen
