"""Step graphs that are tried once, in a folder of their own: opened on CPU or CUDA without the engine cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latentsync_trt.runtime.networks.denoiser import GraphDenoiser
from latentsync_trt.runtime.networks.observer import plain_providers
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions.session import Session, SessionSettings


@contextmanager
def trial_steps(folder: Path, selection: Selection) -> Iterator[GraphDenoiser]:
    """A denoiser over the step graphs in `folder`, which are opened when first needed and closed at the end.

    Raises:
        EngineBuildError: a graph cannot be opened. OutOfMemory: there is too little memory.
    """
    sessions: dict[str, Session] = {}

    def session(graph: str) -> Session:
        if graph not in sessions:
            settings = SessionSettings(providers=plain_providers(selection), name=graph)
            sessions[graph] = Session(folder / f"{graph}.onnx", settings)
        return sessions[graph]

    denoiser = GraphDenoiser(session, selection.device, selection.device_id)
    try:
        yield denoiser
    finally:
        denoiser.release()
        for opened in sessions.values():
            opened.close()
