"""A part of the self-test in a process of its own: the order as JSON on stdin, events as lines of JSON on stdout.

An event is written when it happens, so that a provider that crashes takes along only what it had not done yet.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.bench.machine import environment, gpu_facts, library_versions
from latentsync_trt.bench.material import FaceWindow, aligned_faces, generated_part, random_inputs
from latentsync_trt.bench.measure import MemoryWatch, measure
from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bundle.manifest import Bundle, Manifest
from latentsync_trt.config import MODEL_FPS, RuntimeOptions, SyncOptions
from latentsync_trt.diffusion.plan import plan_for
from latentsync_trt.errors import LatentSyncError, NoFaceError
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, camera_frames
from latentsync_trt.runtime.cache.engine_cache import EngineCache, cache_folder
from latentsync_trt.runtime.networks.networks import Networks, graphs_for
from latentsync_trt.runtime.providers.gpu import free_memory_bytes, gpus
from latentsync_trt.runtime.providers.libraries import UNKNOWN, rtx_version
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.runtime.sessions.device_run import BoundRun
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.types import Float32Array, UInt16Array

Emit = Callable[..., None]
"""Takes the name of an event and its fields."""

# On a GPU so many runs that clocks have risen and a CUDA graph is replayed; a CPU needs neither.
_GPU_WARM_UP, _GPU_RUNS = 5, 20
_CPU_WARM_UP, _CPU_RUNS = 1, 3


@dataclass(frozen=True, slots=True)
class Order:
    """What one process does: opens `graphs` one by one, then paints.

    `options`: fields of `RuntimeOptions`. `timed`: each graph is run, too. `presets`: with each of them, `windows`
    windows of the built-in clip are painted in so many `steps`, into files in the folder `pictures`.
    """

    provider: str
    bundle: str
    options: Mapping[str, Any]
    graphs: tuple[str, ...] = ()
    timed: bool = False
    presets: tuple[str, ...] = ()
    windows: int = 0
    steps: int = 1
    pictures: str = ""

    @classmethod
    def from_json(cls, text: str) -> "Order":
        """The order that `json.dumps(asdict(order))` wrote."""
        raw = json.loads(text)
        return cls(**{**raw, "graphs": tuple(raw["graphs"]), "presets": tuple(raw["presets"])})

    def picture_file(self, preset: str) -> Path:
        """Where the faces of a preset go, uint16 `(n, h, w, 3)`."""
        return Path(self.pictures) / f"{preset}.npy"


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One graph on the provider.

    `error`: why it does not run, empty if it does. `nodes`: how many nodes each ONNX Runtime provider was assigned.
    `built`: whether its engine was built for this; `build_s`: what that took, now or earlier. `engine_bytes`: of its
    files in the cache. `run_ms`: median of runs on inputs on the device, None if it was not timed.
    """

    graph: str
    error: str = ""
    nodes: Mapping[str, int] | None = None
    built: bool = False
    build_s: float = 0.0
    open_s: float = 0.0
    engine_bytes: int = 0
    run_ms: float | None = None


def main() -> None:
    """Does what stdin orders. Libraries that write to stdout write to stderr meanwhile."""
    order = Order.from_json(sys.stdin.read())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as events:
        os.dup2(2, 1)

        def emit(event: str, **fields: Any) -> None:
            events.write(json.dumps({"event": event, **fields}) + "\n")
            events.flush()

        carry_out(order, emit)


def carry_out(order: Order, emit: Emit) -> None:
    """Does what is ordered.

    Events: `machine`, `selected`, `doing` and `notice` for whoever waits, `graph`, `painted`, `failed`, `memory`, and
    `done` at the end.
    """
    options = RuntimeOptions(**order.options)
    emit("doing", text="reading the versions of libraries")
    emit("machine", environment=machine(options.device))
    emit("doing", text=f"loading provider {order.provider}")
    free_bytes = free_memory_bytes(options.device)
    try:
        bundle = Bundle.load(Path(order.bundle), verify=False)
        selection = select_provider(order.provider, options.device)
    except LatentSyncError as error:
        emit("failed", text=str(error))
    else:
        emit("selected", provider=selection.name, notices=selection.notices())
        _Part(order, bundle, selection, options, None if selection.gpu is None else free_bytes, emit).carry_out()
    emit("done")


def machine(device: int) -> dict[str, str]:
    """Names and versions for a bug report; what is not there is left out."""
    gpu = next((gpu for gpu in gpus() if gpu.index == device), None)
    of_gpu = {
        **library_versions(),
        "tensorrt_rtx_plugin": rtx_version(),
        **(gpu_facts(gpu) if gpu is not None else {}),
    }
    found = {**environment((), ()), "os": platform.platform(), **of_gpu}
    return {name: value for name, value in found.items() if value and value != UNKNOWN}


class _Part:
    """An order on one provider."""

    def __init__(
        self,
        order: Order,
        bundle: Bundle,
        selection: Selection,
        options: RuntimeOptions,
        free_before_bytes: int | None,
        emit: Emit,
    ) -> None:
        self._order, self._selection, self._emit = order, selection, emit
        self._unusable: set[str] = set()
        self._setting = Setting(
            bundle,
            selection,
            options,
            SyncOptions(steps=order.steps),
            BenchOptions(),
            free_before_bytes,
            self._say,
        )

    def carry_out(self) -> None:
        with self._setting.watch() as watch:
            if self._order.graphs:
                self._open_graphs(watch)
            for preset in self._order.presets:
                self._paint(preset)
                self._tell_memory(watch)

    def _open_graphs(self, watch: MemoryWatch) -> None:
        setting = self._setting
        try:
            cache = EngineCache(cache_folder(setting.runtime.engine_cache), self._say)
            engines = Engines(setting.bundle, self._selection, setting.runtime, cache, self._say)
        except LatentSyncError as error:
            self._emit("failed", text=str(error))
            return
        for graph in self._order.graphs:
            run = self._open(engines, graph)
            if run.error:
                self._unusable.add(graph)
            self._emit("graph", **asdict(run))
            setting.give_back()
            self._tell_memory(watch)

    def _open(self, engines: Engines, graph: str) -> GraphRun:
        """Builds the engine of a graph unless it is in the cache, opens it, and runs it if that was ordered."""
        self._emit("doing", text=f"{'opening' if self._order.timed else 'building and opening'} {graph}")
        try:
            opened = engines.open(graph)
        except LatentSyncError as error:
            return GraphRun(graph, error=str(error))
        run = GraphRun(
            graph,
            nodes=opened.session.nodes_by_provider(),
            built=opened.built,
            build_s=opened.build_s,
            open_s=opened.open_s,
            engine_bytes=opened.size_bytes,
            **self._timed(opened.session, engines) if self._order.timed else {},
        )
        opened.session.close()
        return run

    def _timed(self, session: Session, engines: Engines) -> dict[str, Any]:
        self._emit("doing", text=f"running {session.name}")
        warm_up, runs = (_CPU_WARM_UP, _CPU_RUNS) if self._selection.gpu is None else (_GPU_WARM_UP, _GPU_RUNS)
        try:
            inputs = random_inputs(session.inputs, engines.ranges)
            run = BoundRun(session, inputs, self._selection.device, self._selection.device_id)
            return {"run_ms": median(measure(run, runs=runs, warm_up=warm_up))}
        except LatentSyncError as error:
            return {"error": str(error)}

    def _paint(self, preset: str) -> None:
        options = self._setting.sync_options(preset)
        full_steps_only = all(step.full for step in plan_for(options))
        graphs = graphs_for(guidance=options.guidance, full_steps_only=full_steps_only)
        unusable = [graph for graph in graphs if graph in self._unusable]
        if unusable:  # trying again could take minutes, and change nothing
            self._emit("failed", text=f"preset {preset}: not painted, as {', '.join(unusable)} cannot be used")
            return
        self._emit("doing", text=f"painting with preset {preset}")
        try:
            with self._setting.networks() as networks:
                networks.prepare(graphs)
                painted, paint_s = self._painted(networks, preset)
                providers = sorted({networks.selection.name, *(time.provider for time in networks.times())})
                notices = networks.take_notices()
        except LatentSyncError as error:
            self._emit("failed", text=f"preset {preset}: {error}")
            return
        np.save(self._order.picture_file(preset), painted)
        self._emit("painted", preset=preset, paint_s=paint_s, providers=providers, notices=notices)

    def _painted(self, networks: Networks, preset: str) -> tuple[UInt16Array, float]:
        """The generated part of the faces of all windows, `(n, h, w, 3)`, and seconds of painting them."""
        manifest = self._setting.bundle.manifest
        windows = clip_windows(self._order.windows, manifest, networks.encode_mel)
        inpainter = self._setting.inpainter(self._setting.sync_options(preset), networks, networks.denoiser())
        start_s = perf_counter()
        faces = [face for window in windows for face in inpainter.paint([(window.faces, window.audio)])[0]]
        paint_s = perf_counter() - start_s
        rows, columns = generated_part(manifest.resolution_px)
        return np.stack([face[rows, columns] for face in faces]), paint_s

    def _tell_memory(self, watch: MemoryWatch) -> None:
        self._emit("memory", **asdict(watch.peak))

    def _say(self, text: str) -> None:
        self._emit("notice", text=text)


def clip_windows(count: int, manifest: Manifest, hear: Callable[[Float32Array], Float32Array]) -> list[FaceWindow]:
    """The first windows of the built-in clip; `hear` as in `SpeechStream`.

    Raises:
        NoFaceError: the detector misses a face, which on a machine that works it does in no frame.
    """
    total = count * manifest.frames
    found = aligned_faces(camera_frames(Fraction(total, MODEL_FPS)), manifest.resolution_px)
    faces = [face.image for face in found if face is not None]
    if len(faces) < total:
        raise NoFaceError(f"the built-in clip: a face in {len(faces)} of {total} frames; install latentsync-trt again")
    speech = SpeechStream(lambda: read_audio_blocks(SPEECH), hear)
    audio = speech.windows(range(total))
    cuts = [slice(start, start + manifest.frames) for start in range(0, total, manifest.frames)]
    return [FaceWindow(np.stack(faces[cut]), audio[cut]) for cut in cuts]


if __name__ == "__main__":
    main()
