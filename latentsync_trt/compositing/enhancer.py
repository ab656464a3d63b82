"""Enhancers of other packages, which improve painted faces before these are pasted."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Enhancer, UInt16Array

_GROUP = "latentsync_trt.enhancers"
"""Entry points of this group name a class, or a function, that makes an `Enhancer` without
arguments.
"""

_FULL_LEVEL = np.float32(65535)


def load_enhancer(name: str) -> Enhancer:
    """Returns the enhancer with the entry point `name`; raises `InputError` if there is none, or it
    cannot be used.
    """
    try:
        make: Callable[[], Enhancer] = check_enhancer(name).load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"--enhancer {name}: cannot be imported: {error}; reinstall its package"
        ) from error
    enhancer = make()
    if not callable(getattr(enhancer, "enhance", None)):
        raise InputError(
            f"--enhancer {name}: {type(enhancer).__name__} has no method "
            "`enhance`; install another version of its package"
        )
    return enhancer


def check_enhancer(name: str) -> EntryPoint:
    """Returns the entry point of an installed enhancer, without importing it; raises `InputError`
    if there is none.
    """
    installed = entry_points(group=_GROUP)
    if name not in installed.names:
        names = ", ".join(sorted(installed.names)) or "none"
        raise InputError(
            f"--enhancer {name}: not installed; installed: {names}; "
            "install a package that has an entry point of this "
            f"name in the group {_GROUP}"
        )
    return installed[name]


def enhanced(painted: UInt16Array, enhancer: Enhancer) -> UInt16Array:
    """Returns the face `painted`, uint16 `(R, R, 3)` RGB (257 × the 8-bit level), as `enhancer`
    improves it, perhaps larger.

    Raises `InputError` if that is no square RGB picture of at least that size, or holds NaN or
    infinity.
    """
    levels = np.asarray(painted / _FULL_LEVEL, np.float32)
    result = np.asarray(enhancer.enhance(levels))
    is_square = result.shape == (*result.shape[:1] * 2, 3) and len(result) >= len(painted)
    kind = f"{result.dtype} {result.shape}"
    if is_square and result.dtype.kind == "f":
        if np.isfinite(result).all():
            return np.rint(np.clip(result, 0, 1) * _FULL_LEVEL).astype(np.uint16)
        kind = "NaN or infinity"
    raise InputError(
        f"enhancer {type(enhancer).__name__}: enhance returned {kind}; it must return "
        f"a float32 array (n, n, 3) in [0, 1], n at least {len(painted)}"
    )
