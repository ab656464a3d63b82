"""Measures `sync` from file to file, for each provider and preset."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
from latentsync_trt.bench.rows import Memory, Row, Spread
from latentsync_trt.bundle.manifest import Bundle, resolution_of
from latentsync_trt.config import MODEL_FPS, RuntimeOptions, SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.measure.clips import measure_clip
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import Clip
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.runtime.model import Model
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.sync.api import LipSync
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.types import Float32Array, UInt8Array
from latentsync_trt.unexpected import without_paths

T = TypeVar("T")

_POLL_S = 0.02
"""Interval of polling memory: shorter than a denoising step, long enough not to slow it down."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider.

    `resolution_px`: of the faces. `free_before_bytes`: device memory free before anything was opened, None on the CPU.
    `say`: called with a line about what is being measured. `runs`, `warm_up`: with and without a clock.
    """

    bundle: Bundle
    selection: Selection
    runtime: RuntimeOptions
    resolution_px: int
    free_before_bytes: int | None
    say: Callable[[str], None]
    runs: int = 3
    warm_up: int = 1

    def timed(self, run: Callable[[], T]) -> tuple[list[float], T]:
        """Milliseconds of each timed run, and what the last one returned; `run` must be synchronous."""
        times_ms = []
        for number in range(-self.warm_up, self.runs):
            start_s = perf_counter()
            result = run()
            if number >= 0:
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
    bundle: Bundle, runtime: RuntimeOptions, sync: SyncOptions, providers: Sequence[str], say: Callable[[str], None]
) -> list[Setting]:
    """One setting per provider, in the order given, without duplicates.

    Raises:
        InputError: an option cannot be used. ProviderUnavailable: a named provider does not load.
    """
    settings, resolution_px = dict[str, Setting](), resolution_of(bundle.manifest, sync, runtime)
    for name in providers:
        selection = select_provider(name, runtime.one_device)
        for text in selection.notices():
            say(text)
        free_bytes = None if selection.gpu is None else free_memory_bytes(selection.gpu.index)
        settings.setdefault(selection.name, Setting(bundle, selection, runtime, resolution_px, free_bytes, say))
    return [*settings.values()]


def run_bench(
    settings: Iterable[Setting],
    presets: Mapping[str, SyncOptions],
    clip: Clip,
    folder: Path,
    network: SyncNet | None,
) -> Generator[Row, None, None]:
    """Syncs `clip` with each of the `presets` in each setting, into `folder`; `network` measures LSE-C and LSE-D.

    Raises:
        InputError: a clip cannot be used. Else as `LipSync.sync`.
    """
    for setting in settings:
        for preset, options in presets.items():
            name = setting.selection.name
            setting.say(f"{name}: {clip.name} with preset {preset}")
            row = _measured(setting, replace(options, overwrite=True), clip, folder / f"{name}-{preset}.mp4", network)
            yield replace(row, preset=preset)


def _measured(setting: Setting, options: SyncOptions, clip: Clip, target: Path, network: SyncNet | None) -> Row:
    with setting.memory() as memory:
        start_s = perf_counter()
        with LipSync(setting.bundle, setting.selection, setting.runtime, on_notice=setting.say) as lip_sync:
            lip_sync.warm_up(options)
            start_up_s = {"build, open, first runs": perf_counter() - start_s}
            times_ms, report = setting.timed(partial(lip_sync.sync, clip.video, clip.audio, target, options))
    meter = None
    if network is not None:
        meter = SyncMeter(network, clip.audio, delays_of(clip.video, clip.audio).sound_s)
        measure_clip(target, clip.audio, meter=meter)
    return setting.row(
        "end-to-end",
        clip.name,
        times_ms,
        report.notices,
        frames=report.frames,
        memory=memory,
        start_up_s=start_up_s,
        syncnet=meter and meter.result(),
        parts_s={stage.stage: stage.busy_s for stage in report.stages},
        engines_ms={engine.graph: engine.mean_ms for engine in report.engines},
    )


def first_window(clip: Clip, frames: int, model: Model, resolution_px: int) -> tuple[UInt8Array, Float32Array]:
    """The first `frames` faces of a clip, uint8 `(F, H, W, 3)`, and their speech, float32 `(F, S, D)`.

    Raises:
        NoFaceError: the clip shows fewer faces than that.
    """
    delays, aspect = delays_of(clip.video, clip.audio), probe(clip.video).sample_aspect_ratio
    read = read_frames(clip.video, Playback(Fraction(MODEL_FPS), delay_s=delays.picture_s))
    with MediaPipeDetector() as detector:
        finder = FaceFinder(FaceTracker(detector), resolution_px, pixel_aspect=aspect)
        with closing(finder.cut_out(finder.find(frame for frame in read))) as jobs:
            found = (target.face for job in jobs for target in job.targets)
            faces = list(islice((face.image for face in found if face is not None), frames))
    if len(faces) < frames:
        raise NoFaceError(f"{clip.video}: {len(faces)} frames with a face, a window takes {frames}; give a longer clip")
    pieces, filters = partial(read_audio_blocks, clip.audio, delay_s=delays.sound_s), filters_of(model.bundle)
    with closing(SpeechStream(pieces, model.audio_encoder, filters)) as speech:
        return np.stack(faces), speech.windows([Fraction(index, MODEL_FPS) for index in range(frames)])
