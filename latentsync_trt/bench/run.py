"""Measures `sync` from file to file, for each provider and preset."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import psutil

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bench.rows import Memory, Results, Row, Spread, bundle_facts, environment
from latentsync_trt.bundle.manifest import Bundle, resolution_of
from latentsync_trt.config import MODEL_FPS, RuntimeOptions, SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.clips import measure_clip
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import Clip, choose_clip
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.runtime.model import Model
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.sync.api import LipSync
from latentsync_trt.sync.faces import FaceFinder, FrameJob
from latentsync_trt.types import Float32Array, Frame, UInt8Array
from latentsync_trt.unexpected import without_paths

T = TypeVar("T")

_POLL_S = 0.02
"""Interval of polling memory: shorter than a denoising step, long enough not to slow it down."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider.

    `presets`: of `sync`, with the options of this bench. `resolution_px`: of the faces.
    `free_before_bytes`: device memory free before anything was opened, None on the CPU. `say`:
    called with a line about what is being measured. `runs`, `warm_up`: with and without a clock.
    """

    bundle: Bundle
    selection: Selection
    runtime: RuntimeOptions
    presets: dict[str, SyncOptions]
    resolution_px: int
    free_before_bytes: int | None
    say: Callable[[str], None]
    runs: int = 3
    warm_up: int = 1

    def lip_sync(self) -> LipSync:
        """The bundle, not open. Raises `InputError` if bundle or provider lack what `runtime` asks."""
        return LipSync(self.bundle, self.selection, self.runtime, on_notice=self.say)

    def timed(self, run: Callable[[], T], begin: Callable[[], object] = int) -> tuple[list[float], T]:
        """Milliseconds of each timed run, and what the last one returned; `run` must be synchronous.

        `begin` is called after the runs that are not timed.
        """
        for _ in range(self.warm_up):
            run()
        begin()
        times_ms = []
        for _ in range(self.runs):
            start_s = perf_counter()
            result = run()
            times_ms.append(1000 * (perf_counter() - start_s))
        return times_ms, result

    def row(self, scenario: str, case: str, times_ms: Sequence[float], notes: Iterable[str], **fields: Any) -> Row:
        lower, median, upper = np.percentile(times_ms, [5, 50, 95]).tolist()
        known = {"provider": self.selection.name, "preset": None, "notes": tuple(map(without_paths, notes)), **fields}
        return Row(scenario, case, time=Spread(median, lower, upper, len(times_ms)), warm_up=self.warm_up, **known)

    @contextmanager
    def memory(self) -> Iterator[Memory]:
        """Polls memory while the block runs; yields the highest use so far, which is final after the block."""
        process, stopped, found, gpu = psutil.Process(), threading.Event(), Memory(), self.selection.gpu

        def poll() -> None:
            last = False
            while not last:
                last = stopped.wait(_POLL_S)
                found.host_bytes = max(found.host_bytes, process.memory_info().rss)
                free_bytes = None if gpu is None else free_memory_bytes(gpu.index)
                if free_bytes is not None and self.free_before_bytes is not None:
                    found.device_bytes = max(found.device_bytes or 0, self.free_before_bytes - free_bytes)

        thread = threading.Thread(target=poll, name="memory", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            stopped.set()
            thread.join()


def settings_for(
    bundle: Bundle,
    runtime: RuntimeOptions,
    sync: SyncOptions,
    providers: Sequence[str],
    presets: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> list[Setting]:
    """One setting per provider, in the order given, without duplicates; `sync` overrides every preset.

    Raises:
        InputError: an option cannot be used. ProviderUnavailable: a named provider does not load.
    """
    chosen = {name: replace(sync, preset=name) for name in presets}  # type: ignore[arg-type]  # it checks that
    settings = dict[str, Setting]()
    for name in providers:
        selection = select_provider(name, runtime.one_device)
        for text in selection.notices():
            say(text)
        free_bytes = None if selection.gpu is None else free_memory_bytes(selection.gpu.index)
        resolution_px = resolution_of(bundle.manifest, sync, runtime)
        settings.setdefault(selection.name, Setting(bundle, selection, runtime, chosen, resolution_px, free_bytes, say))
    return list(settings.values())


def run_bench(
    settings: Sequence[Setting], network: SyncNet | None, video: Path | None, audio: Path | None, command: Sequence[str]
) -> Generator[Results, None, None]:
    """Measures all `settings`; yields all rows so far after each one, so that a later failure loses none.

    Args:
        network: measures LSE-C and LSE-D. command: the command line, for the environment.

    Raises:
        InputError: a clip cannot be used. Else as `LipSync.sync`.
    """
    first = settings[0]
    facts = replace(bundle_facts(first.bundle.manifest), resolution_px=first.resolution_px)
    results = Results(environment(command, [setting.selection for setting in settings]), facts, ())
    with temporary_folder() as folder:
        clip = choose_clip(video, audio, folder)
        for setting in settings:
            for preset in setting.presets:
                results = replace(results, rows=(*results.rows, _measured(setting, preset, clip, folder, network)))
                yield results


def _measured(setting: Setting, preset: str, clip: Clip, folder: Path, network: SyncNet | None) -> Row:
    setting.say(f"{setting.selection.name}: {clip.name} with preset {preset}")
    target, options = (
        folder / f"{setting.selection.name}-{preset}.mp4",
        replace(setting.presets[preset], overwrite=True),
    )
    with setting.memory() as memory:
        start_s = perf_counter()
        with setting.lip_sync() as lip_sync:
            lip_sync.warm_up(options)
            start_up_s = {"build, open, first runs": perf_counter() - start_s}
            times_ms, report = setting.timed(partial(lip_sync.sync, clip.video, clip.audio, target, options))
    measured: dict[str, Any] = {"frames": report.frames, "memory": memory, "start_up_s": start_up_s}
    if network is not None:
        meter = SyncMeter(network, clip.audio, delays_of(clip.video, clip.audio).sound_s)
        measure_clip(target, clip.audio, meter=meter)
        measured["syncnet"] = meter.result()
    measured["parts_s"] = {stage.stage: stage.busy_s for stage in report.stages}
    measured["engines_ms"] = {engine.graph: engine.mean_ms for engine in report.engines}
    return setting.row("end-to-end", clip.name, times_ms, report.notices, preset=preset, **measured)


def first_window(clip: Clip, frames: int, model: Model, resolution_px: int) -> tuple[UInt8Array, Float32Array]:
    """The first `frames` faces of a clip, uint8 `(F, H, W, 3)`, and their speech, float32 `(F, S, D)`.

    Raises:
        NoFaceError: the clip shows fewer faces than that.
    """
    delays = delays_of(clip.video, clip.audio)
    read = read_frames(clip.video, Playback(Fraction(MODEL_FPS), delay_s=delays.picture_s))
    with closing(aligned_faces(clip.video, read, resolution_px)) as jobs:
        found = (target.face for job in jobs for target in job.targets)
        faces = list(islice((face.image for face in found if face is not None), frames))
    if len(faces) < frames:
        raise NoFaceError(f"{clip.video}: {len(faces)} frames with a face, a window takes {frames}; give a longer clip")
    pieces, filters = partial(read_audio_blocks, clip.audio, delay_s=delays.sound_s), filters_of(model.bundle)
    with closing(SpeechStream(pieces, model.audio_encoder, filters)) as speech:
        return np.stack(faces), speech.windows([Fraction(index, MODEL_FPS) for index in range(frames)])


def aligned_faces(video: Path, frames: Iterable[Frame], resolution_px: int) -> Generator[FrameJob, None, None]:
    """Frames of a video with their faces, as `sync` cuts them out, at the network's resolution."""
    with MediaPipeDetector() as detector:
        finder = FaceFinder(FaceTracker(detector), resolution_px, pixel_aspect=probe(video).sample_aspect_ratio)
        yield from finder.cut_out(finder.find(frame for frame in frames))
