"""Which of its two forms a graph is run in: the portable one, or the one that is made for CUDA's provider."""

from latentsync_trt.bundle.manifest import GraphForm, Manifest
from latentsync_trt.config import GraphFormChoice
from latentsync_trt.errors import InputError


def chosen_form(manifest: Manifest, graph: str, provider: str, choice: GraphFormChoice) -> GraphForm:
    """The form of `graph` that `provider` is to run, as far as the bundle has it."""
    wanted = choice != "portable" and provider == "cuda"
    return "cuda" if wanted and "cuda" in manifest.graphs[graph].forms else "portable"


def check_form(manifest: Manifest, provider: str, choice: GraphFormChoice) -> None:
    """Raises `InputError` where the CUDA form is demanded and cannot be had."""
    if choice != "cuda":
        return
    if provider != "cuda":
        raise InputError(f"--graph-form cuda: not with provider {provider}; it is made for cuda alone")
    if not any(entry.forms for entry in manifest.graphs.values()):
        raise InputError(
            f"--graph-form cuda: bundle {manifest.name} has no graphs in it; export it again, --static and without "
            "--portable-only"
        )
