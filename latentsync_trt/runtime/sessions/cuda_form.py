"""The form of graphs that is made for ONNX Runtime's CUDA provider: when it may be required, and the trial run."""

import threading
from collections.abc import Mapping

import numpy as np

from latentsync_trt.bundle.manifest import DimensionRange, Manifest
from latentsync_trt.config import GraphFormChoice
from latentsync_trt.errors import EngineBuildError, InferenceError, InputError, OutOfMemory
from latentsync_trt.runtime.compiler.profiles import usual_shape
from latentsync_trt.runtime.sessions.session import Session

# One trial at a time, as a first run times kernels.
_trial = threading.Lock()


def check_form(manifest: Manifest, provider: str, choice: GraphFormChoice) -> None:
    """Raises `InputError` where the CUDA form is required and not available."""
    if choice != "cuda":
        return
    if provider != "cuda":
        raise InputError(f"--graph-form cuda: not with provider {provider}; it is made for cuda alone")
    if not any(entry.forms for entry in manifest.graphs.values()):
        raise InputError(
            f"--graph-form cuda: bundle {manifest.name} has no graphs in it; export it again, --static and without "
            "--portable-only"
        )


def try_run(session: Session, ranges: Mapping[str, DimensionRange]) -> bool:
    """Runs a session once on zeros: a provider may open the CUDA form and then not run it.

    Returns whether memory sufficed; where it did not, what cuDNN chose for lack of it stays with the session.

    Raises:
        EngineBuildError: the provider does not run the form. The session is closed then.
    """
    zeros = {tensor.name: np.zeros(usual_shape(tensor.shape, ranges), tensor.dtype) for tensor in session.inputs}
    try:
        with _trial:
            session.run(zeros)
    except OutOfMemory:
        return False
    except InferenceError as error:
        discard(session)
        raise EngineBuildError(f"{error}") from error
    return True


def discard(session: Session) -> None:
    """Closes a session without its trace."""
    trace = session.close()
    if trace is not None:
        trace.unlink(missing_ok=True)
