"""The graph form for ONNX Runtime's CUDA provider: whether it is available, and whether its values are right."""

from collections.abc import Callable

from latentsync_trt.bundle.manifest import Manifest
from latentsync_trt.config import GraphFormChoice
from latentsync_trt.errors import EngineBuildError, InferenceError, InputError
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.runtime.sessions.session import Array, Session
from latentsync_trt.runtime.sessions.trial import FORM_LIMIT, Ranges, difference, random_inputs


def check_form(manifest: Manifest, provider: str, choice: GraphFormChoice) -> None:
    """Raises `InputError` if `choice` requires the CUDA form and it is not available."""
    if choice != CUDA.form:
        return
    if provider != CUDA.name:
        raise InputError(f"--graph-form cuda: not with provider {provider}; it is made for cuda alone")
    if not any(CUDA.form in entry.forms for entry in manifest.graphs.values()):
        raise InputError(
            f"--graph-form cuda: bundle {manifest.name} has no graphs in it; export it again, --static and without "
            "--portable-only"
        )


def compare_forms(cuda: Callable[[], Session], portable: Callable[[], Session], ranges: Ranges) -> None:
    """Runs both forms of a graph on the same random numbers, one after the other.

    Raises:
        EngineBuildError: the provider cannot run the CUDA form, or its values are not those of the portable one.
        OutOfMemory: there is too little memory.
    """
    ours, theirs = (_outputs(opened, ranges) for opened in (cuda, portable))
    apart = difference(ours, theirs)
    if apart > FORM_LIMIT:
        raise EngineBuildError(
            f"its values differ from those of the portable form by {apart:.1e} of the largest, at most {FORM_LIMIT} is "
            "allowed; please report this GPU with `latentsync-trt selftest --json`"
        )


def _outputs(opened: Callable[[], Session], ranges: Ranges) -> tuple[Array, ...]:
    session = opened()
    try:
        return session.run(random_inputs(session.inputs, ranges))
    except InferenceError as error:
        raise EngineBuildError(f"{error}") from error
    finally:
        session.close()
