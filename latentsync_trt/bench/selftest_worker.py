"""The child process of one part of the self-test.

Each event is written at once, so that a crash of the provider loses no earlier results.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.bench.rows import gpu_facts, library_versions
from latentsync_trt.bench.run import first_window
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Emit, serve
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.measure.clips import choose_clip
from latentsync_trt.measure.pictures import generated_part
from latentsync_trt.runtime.cache import EngineCache, cache_folder
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import gpus
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.memory import give_back_gpu_memory
from latentsync_trt.runtime.sessions.trial import run_timed
from latentsync_trt.sync.inpaint import graphs_for, make_inpainter

PICTURES = "pictures.npy"
GPU_RUNS, CPU_RUNS = 20, 3
"""Runs per graph: on a GPU enough for clocks to rise and a CUDA graph to be replayed, which a CPU does not need."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one process does: opens and runs `graphs` one by one, then paints windows of the built-in clip.

    `options`: fields of `RuntimeOptions`. `windows`, `steps`: how many to paint, and denoising steps of each. `folder`:
    receives outputs and pictures; the built-in clip is written beside it, unless it exists.
    """

    provider: str
    bundle: str
    options: Mapping[str, Any]
    folder: str
    graphs: Sequence[str] = ()
    windows: int = 1
    steps: int = 1


def carry_out(fields: Mapping[str, Any], emit: Emit) -> None:
    """Executes the `Order` with these fields; events are fields of `selftest.Part`."""
    order = Order(**fields)
    options = RuntimeOptions(**order.options)
    emit(doing="reading the versions of libraries")
    gpu = next((each for each in gpus() if each.index == options.one_device), None)
    emit(environment={**library_versions(), **(gpu_facts(gpu) if gpu else {})})
    emit(doing=f"loading provider {order.provider}")
    try:
        selection = select_provider(order.provider, options.one_device)
        emit(provider=selection.name, notices=selection.notices())
        bundle = Bundle.load(Path(order.bundle), verify=False)
        Path(order.folder).mkdir()
        cache = EngineCache(cache_folder(options.engine_cache), lambda text: emit(log=[text]))
        engines, unusable = Engines(bundle, selection, options, cache, lambda text: emit(log=[text])), set[str]()
        for graph in order.graphs:
            row = _try_graph(engines, graph, order.folder, emit)
            if row.get("error"):
                unusable.add(graph)
            emit(graphs={graph: row})
            give_back_gpu_memory(selection)
        _paint(order, engines, unusable, emit)
    except LatentSyncError as error:
        emit(failures=[str(error)])
    emit(done=True)


def _try_graph(engines: Engines, graph: str, folder: str, emit: Emit) -> dict[str, Any]:
    """Builds the engine of a graph unless it is in the cache, opens and runs it; fields of `selftest.GraphRow`."""
    selection = engines.selection
    emit(doing=f"building and opening {graph}")
    try:
        opened = engines.open(graph)
    except LatentSyncError as error:
        return {"error": str(error)}
    row: dict[str, Any] = {"nodes": opened.session.nodes_by_provider(), "open_s": opened.open_s}
    if engines.compiled:
        row |= {"built": opened.built, "build_s": opened.build_s, "engine_bytes": opened.size_bytes}
    emit(doing=f"running {graph}")
    runs = GPU_RUNS if selection.gpu else CPU_RUNS
    try:
        outputs, _ = run_timed(opened.session, engines.ranges, selection.device, selection.device_id, runs=runs)
        np.savez(Path(folder, f"{graph}.npz"), *outputs)
        times = opened.times(graph, selection.name)
        row |= {"first_ms": times.first_ms, "mean_ms": times.mean_ms}
    except LatentSyncError as error:
        row["error"] = str(error)
    opened.session.close()
    return row


def _paint(order: Order, engines: Engines, unusable: set[str], emit: Emit) -> None:
    """Paints windows into `PICTURES`: the generated part of the faces, uint16 `(n, h, w, 3)`."""
    manifest = engines.bundle.manifest
    options = SyncOptions(preset="balanced", steps=order.steps)
    graphs = graphs_for(options)
    if not unusable.isdisjoint(graphs):  # a retry could take minutes and would fail again
        missing = ", ".join(graph for graph in graphs if graph in unusable)
        emit(failures=[f"not painted, as {missing} cannot be used"])
        return
    emit(doing="painting")
    own = Networks(engines.bundle, engines.selection, engines.options, on_notice=lambda text: emit(log=[text]))
    with closing(own) as networks:
        networks.prepare(graphs)
        clip, count = choose_clip(None, None, Path(order.folder).parent), order.windows * manifest.frames
        faces, audio = first_window(clip, count, networks, manifest.resolution_px)
        inpainter = make_inpainter(manifest, options, networks.codec, networks.denoiser)
        cuts = [slice(start, start + manifest.frames) for start in range(0, count, manifest.frames)]
        painted = [face for cut in cuts for face in inpainter.paint([(faces[cut], audio[cut])])[0]]
        providers = sorted({networks.selection.name, *(time.provider for time in networks.times())})
        notices = networks.take_notices()
    rows, columns = generated_part(manifest.resolution_px)
    np.save(Path(order.folder, PICTURES), np.stack([face[rows, columns] for face in painted]))
    emit(painted_on=providers, notices=notices)


if __name__ == "__main__":
    serve(carry_out)
