"""Enhancers of other packages, which improve painted faces before these are pasted."""

from importlib.metadata import EntryPoint, entry_points

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Enhancer, UInt16Array

_GROUP = "latentsync_trt.enhancers"
"""Entry points of this group name a class, or a function, that makes an `Enhancer` without arguments."""

_WHITE = np.float32(65535)


def load_enhancer(name: str) -> Enhancer:
    """The enhancer with the entry point `name`.

    Raises:
        InputError: there is none, it cannot be imported, or what it makes has no method `enhance`.
    """
    entry = check_enhancer(name)
    try:
        make = entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"--enhancer {name}: cannot be imported: {error}; reinstall its package") from error
    enhancer: Enhancer = make()
    if not callable(getattr(enhancer, "enhance", None)):
        raise InputError(f"--enhancer {name}: {entry.value} makes no object with a method enhance(face)")
    return enhancer


def check_enhancer(name: str) -> EntryPoint:
    """The entry point of an installed enhancer, without importing it; raises `InputError` if there is none."""
    installed = entry_points(group=_GROUP)
    if name not in installed.names:
        names = ", ".join(sorted(installed.names)) or "none"
        raise InputError(
            f"--enhancer {name}: not installed; installed: {names}; install a package that has an entry point of this "
            f"name in the group {_GROUP}"
        )
    return installed[name]


def enhanced(painted: UInt16Array, enhancer: Enhancer) -> UInt16Array:
    """The face `painted`, uint16 `(R, R, 3)` RGB (257 × the 8-bit level), as `enhancer` returns it, perhaps larger.

    Raises:
        InputError: it returned something else than a square RGB picture of at least that size, or NaN or infinity.
    """
    found: object = enhancer.enhance(np.asarray(painted / _WHITE, np.float32))
    least_px, problem = len(painted), f"{type(found).__name__}"
    if isinstance(found, np.ndarray):
        sides = found.shape[0] if found.ndim else 0
        problem = "" if found.dtype.kind == "f" and np.isfinite(found).all() else f"{found.dtype}, NaN or infinity"
        if found.shape != (sides, sides, 3) or sides < least_px:
            problem = f"shape {found.shape} for a face of ({least_px}, {least_px}, 3)"
    if problem:
        wanted = "a float32 array (n, n, 3) in [0, 1], n at least that of the face"
        raise InputError(f"enhancer {type(enhancer).__name__}: enhance returned {problem}; it must return {wanted}")
    return np.rint(np.clip(np.asarray(found), 0, 1) * _WHITE).astype(np.uint16)
