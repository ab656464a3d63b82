"""The graph form for ONNX Runtime's CUDA provider: whether it is available, and its trial run."""

from collections.abc import Mapping

import numpy as np

from latentsync_trt.bundle.manifest import DimensionRange, Manifest
from latentsync_trt.config import GraphFormChoice
from latentsync_trt.errors import EngineBuildError, InferenceError, InputError, OutOfMemory
from latentsync_trt.runtime.compiler.profiles import usual_shape
from latentsync_trt.runtime.sessions.session import Session


def check_form(manifest: Manifest, provider: str, choice: GraphFormChoice) -> None:
    """Raises `InputError` if `choice` requires the CUDA form and it is not available."""
    if choice != "cuda":
        return
    if provider != "cuda":
        raise InputError(f"--graph-form cuda: not with provider {provider}; it is made for cuda alone")
    if not any("cuda" in entry.forms for entry in manifest.graphs.values()):
        raise InputError(
            f"--graph-form cuda: bundle {manifest.name} has no graphs in it; export it again, --static and without "
            "--portable-only"
        )


def try_run(session: Session, ranges: Mapping[str, DimensionRange]) -> bool:
    """Runs a session once on zeros, as a provider may open the CUDA form but fail to run it.

    Returns whether memory sufficed; if not, open the session again, as it keeps the plans that cuDNN chose then.

    Raises:
        EngineBuildError: the provider cannot run the form; the session is closed.
    """
    zeros = {tensor.name: np.zeros(usual_shape(tensor.shape, ranges), tensor.dtype) for tensor in session.inputs}
    try:
        session.run(zeros)
    except OutOfMemory:
        return False
    except InferenceError as error:
        discard(session)
        raise EngineBuildError(f"{error}") from error
    return True


def discard(session: Session) -> None:
    """Closes a session and deletes its trace."""
    trace = session.close()
    if trace is not None:
        trace.unlink(missing_ok=True)
