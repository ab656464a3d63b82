"""The child process of a part of the self-test.

An event is written when it happens, so that a provider that crashes loses only what it had not done yet.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
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
from latentsync_trt.bench.measure import measure
from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.selftest.report import GraphResult
from latentsync_trt.bench.setting import Setting
from latentsync_trt.bundle.manifest import Bundle, Manifest
from latentsync_trt.config import MODEL_FPS, RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError, NoFaceError
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, camera_frames
from latentsync_trt.runtime.cache.store import EngineCache, cache_folder
from latentsync_trt.runtime.compiler.child import Emit, serve
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import free_memory_bytes, gpus
from latentsync_trt.runtime.providers.libraries import UNKNOWN, rtx_version
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.runtime.sessions.device_run import BoundRun
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.sync.inpaint import graphs_for
from latentsync_trt.types import Float32Array, UInt16Array

# On a GPU enough runs for clocks to rise and a CUDA graph to be replayed; a CPU needs neither.
_GPU_WARM_UP, _GPU_RUNS = 5, 20
_CPU_WARM_UP, _CPU_RUNS = 1, 3


@dataclass(frozen=True, slots=True)
class Order:
    """What one process does: opens `graphs` one by one, then paints.

    `options`: fields of `RuntimeOptions`. `timed`: also run each graph. `presets`: with each of them, paint `windows`
    windows of the built-in clip in `steps` steps, into files in the folder `pictures`.
    """

    provider: str
    bundle: str
    options: Mapping[str, Any]
    graphs: Sequence[str] = ()
    timed: bool = False
    presets: Sequence[str] = ()
    windows: int = 0
    steps: int = 1
    pictures: str = ""

    def picture_file(self, preset: str) -> Path:
        """File of the faces of a preset, uint16 `(n, h, w, 3)`."""
        return Path(self.pictures) / f"{preset}.npy"


def carry_out(fields: Mapping[str, Any], emit: Emit) -> None:
    """Carries out the `Order` of these fields; events are fields of `report.Outcome`."""
    order = Order(**fields)
    options = RuntimeOptions(**order.options)
    emit(doing="reading the versions of libraries")
    emit(environment=machine(options.device))
    emit(doing=f"loading provider {order.provider}")
    free_bytes = free_memory_bytes(options.device)
    try:
        bundle = Bundle.load(Path(order.bundle), verify=False)
        selection = select_provider(order.provider, options.device)
    except LatentSyncError as error:
        emit(failures=[str(error)])
    else:
        emit(provider=selection.name, passed_over=selection.notices())
        setting = Setting(
            bundle=bundle,
            selection=selection,
            runtime=options,
            sync=SyncOptions(steps=order.steps),
            options=BenchOptions(),
            free_before_bytes=free_bytes if selection.gpu else None,
            say=lambda text: emit(all_notices=[text]),
        )
        _Part(order, setting, emit).carry_out()
    emit(done=True)


def machine(device: int) -> dict[str, str]:
    """Names and versions for a bug report, without unknown ones."""
    found: dict[str, str | None] = {
        **environment((), ()),
        "os": platform.platform(),
        **library_versions(),
        "tensorrt_rtx_plugin": rtx_version(),
    }
    for gpu in gpus():
        if gpu.index == device:
            found |= gpu_facts(gpu)
    return {name: value for name, value in found.items() if value and value != UNKNOWN}


class _Part:
    """An order on one provider."""

    def __init__(self, order: Order, setting: Setting, emit: Emit) -> None:
        self._order, self._setting, self._emit = order, setting, emit
        self._unusable: set[str] = set()

    def carry_out(self) -> None:
        with self._setting.watch() as watch:
            try:
                self._open_graphs()
            except LatentSyncError as error:
                self._emit(failures=[str(error)])
            for preset in self._order.presets:
                try:
                    self._paint(preset)
                except LatentSyncError as error:
                    self._emit(failures=[f"preset {preset}: {error}"])
            self._emit(memory=asdict(watch.peak))

    def _open_graphs(self) -> None:
        if not self._order.graphs:
            return
        setting = self._setting
        cache = EngineCache(cache_folder(setting.runtime.engine_cache), setting.say)
        engines = Engines(setting.bundle, setting.selection, setting.runtime, cache, setting.say)
        for graph in self._order.graphs:
            result = self._open(engines, graph)
            if result.error:
                self._unusable.add(graph)
            self._emit(graphs={graph: asdict(result)})
            setting.give_back()

    def _open(self, engines: Engines, graph: str) -> GraphResult:
        """Builds the engine of a graph unless it is in the cache, opens it, and runs it if ordered."""
        self._emit(doing=f"{'opening' if self._order.timed else 'building and opening'} {graph}")
        try:
            opened = engines.open(graph)
        except LatentSyncError as error:
            return GraphResult(graph, error=str(error))
        result = GraphResult(
            graph,
            nodes=opened.session.nodes_by_provider(),
            built=opened.built,
            build_s=opened.build_s if engines.compiled else None,
            open_s=opened.open_s,
            engine_bytes=opened.size_bytes if engines.compiled else None,
            **self._timed(opened.session, engines) if self._order.timed else {},
        )
        opened.session.close()
        return result

    def _timed(self, session: Session, engines: Engines) -> dict[str, Any]:
        self._emit(doing=f"running {session.name}")
        selection = self._setting.selection
        warm_up, runs = (_GPU_WARM_UP, _GPU_RUNS) if selection.gpu else (_CPU_WARM_UP, _CPU_RUNS)
        try:
            inputs = random_inputs(session.inputs, engines.ranges)
            run = BoundRun(session, inputs, selection.device, selection.device_id)
            return {"run_ms": median(measure(run, runs=runs, warm_up=warm_up))}
        except LatentSyncError as error:
            return {"error": str(error)}

    def _paint(self, preset: str) -> None:
        options = self._setting.sync_options(preset)
        graphs = graphs_for(options)
        unusable = [graph for graph in graphs if graph in self._unusable]
        if unusable:  # trying again could take minutes, and would not help
            self._emit(failures=[f"preset {preset}: not painted, as {', '.join(unusable)} cannot be used"])
            return
        self._emit(doing=f"painting with preset {preset}")
        with self._setting.networks() as networks:
            networks.prepare(graphs)
            painted, paint_s = self._painted(networks, options)
            providers = sorted({networks.selection.name, *(time.provider for time in networks.times())})
            notices = networks.take_notices()
        np.save(self._order.picture_file(preset), painted)
        self._emit(paint_s={preset: paint_s}, painted_on={preset: providers}, notices=notices)

    def _painted(self, networks: Networks, options: SyncOptions) -> tuple[UInt16Array, float]:
        """The generated part of the faces of all windows, `(n, h, w, 3)`, and the seconds that painting them took."""
        manifest = self._setting.bundle.manifest
        windows = clip_windows(self._order.windows, manifest, networks.encode_mel)
        inpainter = self._setting.inpainter(options, networks.codec, networks.denoiser)
        start_s = perf_counter()
        faces = [face for window in windows for face in inpainter.paint([(window.faces, window.audio)])[0]]
        paint_s = perf_counter() - start_s
        rows, columns = generated_part(manifest.resolution_px)
        return np.stack([face[rows, columns] for face in faces]), paint_s


def clip_windows(
    count: int, manifest: Manifest, encode_mel: Callable[[Float32Array], Float32Array]
) -> list[FaceWindow]:
    """The first windows of the built-in clip; `encode_mel` as in `SpeechStream`.

    Raises:
        NoFaceError: the detector misses a face, which means a broken installation.
    """
    total = count * manifest.frames
    found = aligned_faces(camera_frames(Fraction(total, MODEL_FPS)), manifest.resolution_px)
    faces = [face.image for face in found if face is not None]
    if len(faces) < total:
        raise NoFaceError(f"the built-in clip: a face in {len(faces)} of {total} frames; install latentsync-trt again")
    audio = SpeechStream(lambda: read_audio_blocks(SPEECH), encode_mel).windows(range(total))
    cuts = [slice(start, start + manifest.frames) for start in range(0, total, manifest.frames)]
    return [FaceWindow(np.stack(faces[cut]), audio[cut]) for cut in cuts]


if __name__ == "__main__":
    serve(carry_out)
