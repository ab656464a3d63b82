"""Which of its two forms a graph is run in: the portable one, or the one that is made for CUDA's provider."""

from latentsync_trt.bundle import UNGUIDED_GRAPHS, GraphForm, Manifest
from latentsync_trt.config import GraphFormChoice
from latentsync_trt.errors import InputError

_UNASKED = ("denoise_step", "denoise_step_cached", *UNGUIDED_GRAPHS)
"""Graphs whose CUDA form was measured to be faster. That of the VAE has not run on a GPU as it is now."""


def chosen_form(manifest: Manifest, graph: str, provider: str, choice: GraphFormChoice) -> GraphForm:
    """The form of `graph` that `provider` is to run, as far as the bundle has it."""
    wanted = choice == "cuda" or (choice == "auto" and graph in _UNASKED)
    return "cuda" if wanted and provider == "cuda" and "cuda" in manifest.graphs[graph].forms else "portable"


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
