"""Runs a bench: every scenario on every provider.

graph       each graph of a bundle by itself, on random inputs in device memory
loop        one window of faces, or a batch, through the VAE and all denoising steps, for each preset
end-to-end  a clip from file to file by `sync`, for each preset
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import psutil

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bench.rows import BenchOptions, Memory, Quality, Results, Row, Spread, bundle_facts, environment
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import MODEL_FPS, PresetName, RuntimeOptions, SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.clips import Clip, choose_clip, measure_clip
from latentsync_trt.measure.pictures import generated_part, likeness
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet, open_syncnet
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.runtime.sessions.profiles import at_resolution, dimension_ranges
from latentsync_trt.runtime.sessions.trial import BoundRun
from latentsync_trt.sync.api import LipSync
from latentsync_trt.sync.faces import FaceFinder, FrameJob
from latentsync_trt.sync.inpaint import make_inpainter, resolution_of
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Float32Array, Frame, UInt8Array, UInt16Array
from latentsync_trt.unexpected import without_paths

T = TypeVar("T")

REFERENCE: PresetName = "quality"
"""The preset whose pictures the others are compared with."""

_POLL_S = 0.02
"""Interval of polling memory: shorter than a denoising step, long enough not to slow it down."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider.

    `presets`: of `sync`, with the options of this bench. `resolution_px`: of the faces.
    `free_before_bytes`: device memory free before anything was opened, None on the CPU. `say`:
    called with a line about what is being measured.
    """

    bundle: Bundle
    selection: Selection
    runtime: RuntimeOptions
    options: BenchOptions
    presets: dict[str, SyncOptions]
    resolution_px: int
    free_before_bytes: int | None
    say: Callable[[str], None]

    def networks(self) -> Networks:
        """The bundle's networks, not open. Raises `InputError` if bundle or provider lack what `runtime` asks."""
        return Networks(self.bundle, self.selection, self.runtime, on_notice=self.say)

    def timed(self, scenario: str, run: Callable[[], T], begin: Callable[[], object] = int) -> tuple[list[float], T]:
        """Milliseconds of each timed run of a scenario, and what the last one returned; `run` must be synchronous.

        `begin` is called after the runs that are not timed.
        """
        runs, warm_up = self.options.repetitions(scenario)
        for _ in range(warm_up):
            run()
        begin()
        times_ms = []
        for _ in range(runs):
            start_s = perf_counter()
            result = run()
            times_ms.append(1000 * (perf_counter() - start_s))
        return times_ms, result

    def row(self, scenario: str, case: str, times_ms: Sequence[float], notes: Iterable[str], **fields: Any) -> Row:
        lower, median, upper = np.percentile(times_ms, [5, 50, 95]).tolist()
        known = {"provider": self.selection.name, "preset": None, "notes": tuple(map(without_paths, notes)), **fields}
        _, warm_up = self.options.repetitions(scenario)
        return Row(scenario, case, time=Spread(median, lower, upper, len(times_ms)), warm_up=warm_up, **known)

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


def run_bench(
    bundle: Bundle,
    options: BenchOptions,
    runtime: RuntimeOptions,
    sync: SyncOptions,
    *,
    say: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = (),
) -> Generator[Results, None, None]:
    """Measures what `options` ask for; yields all rows so far after each one, so that a later failure loses none.

    Args:
        sync: options that override every preset, as `--cache-interval` does; its own preset is ignored.
        say: called with a line about what is being measured. command: the command line, for the environment.

    Raises:
        InputError: a clip or an option cannot be used. ProviderUnavailable: a named provider does
        not load. Else as `LipSync.sync`.
    """
    network, runtime = open_syncnet(runtime.syncnet), replace(runtime, syncnet=None)
    settings = settings_for(bundle, runtime, sync, options, say)
    facts = replace(bundle_facts(bundle.manifest), resolution_px=settings[0].resolution_px)
    results = Results(environment(command, [setting.selection for setting in settings]), facts, ())
    video, audio = (None if path is None else Path(path) for path in (options.video, options.audio))
    with temporary_folder(on_notice=say) as folder:
        clip = choose_clip(video, audio, folder) if {"loop", "end-to-end"} & set(options.scenario) else None
        for setting in settings:
            measured = {"graph": _graphs(setting)}
            if clip is not None:
                measured |= {"loop": _loops(setting, clip), "end-to-end": _clips(setting, clip, folder, network)}
            for row in chain(*(rows for scenario, rows in measured.items() if scenario in options.scenario)):
                results = replace(results, rows=(*results.rows, row))
                yield results


def settings_for(
    bundle: Bundle, runtime: RuntimeOptions, sync: SyncOptions, options: BenchOptions, say: Callable[[str], None]
) -> list[Setting]:
    """One setting per provider, in the order given, without duplicates; errors as `run_bench`."""
    presets = {name: replace(sync, preset=name) for name in options.preset}  # type: ignore[arg-type]  # it checks that
    resolution_px, settings = resolution_of(bundle.manifest, sync, runtime), dict[str, Setting]()
    for name in options.provider:
        chosen = select_provider(name, runtime.one_device)
        for text in chosen.notices():
            say(text)
        free_bytes = None if chosen.gpu is None else free_memory_bytes(chosen.gpu.index)
        made = Setting(bundle, chosen, runtime, options, presets, resolution_px, free_bytes, say)
        settings.setdefault(chosen.name, made)
    return list(settings.values())


def _graphs(setting: Setting) -> Iterator[Row]:
    manifest, selection = setting.bundle.manifest, setting.selection
    ranges = at_resolution(dimension_ranges(manifest, setting.runtime), setting.resolution_px)
    with closing(setting.networks()) as networks:
        for graph in manifest.graphs:
            setting.say(f"{selection.name}: {graph}")
            with setting.memory() as memory:
                session = networks.session(graph)
                run = BoundRun(session, ranges, selection)
                times_ms, _ = setting.timed("graph", run)
            engine = next(entry for entry in networks.times() if entry.graph == graph)
            start_up_s = {"build": engine.build_s, "open": engine.open_s}
            notes = networks.take_notices()
            yield setting.row("graph", graph, times_ms, notes, memory=memory, start_up_s=start_up_s)
            # The memory of one graph must not be counted for the next.
            del run, session
            networks.close()


def _loops(setting: Setting, clip: Clip) -> Iterator[Row]:
    """A row for each preset; the reference preset, if it is among them, comes first."""
    manifest, presets, name = setting.bundle.manifest, setting.presets, setting.selection.name
    reference = SyncOptions(preset=REFERENCE, resolution=next(iter(presets.values())).resolution)
    with closing(setting.networks()) as networks:
        parts, before_s = (networks.codec, networks.denoiser), dict[str, float]()

        def seconds() -> dict[str, float]:
            times = networks.times()
            return {time.graph: (time.first_ms + (time.runs - 1) * time.mean_ms) / 1000 for time in times}

        window = first_window(clip, manifest.frames, networks, setting.resolution_px)
        windows, expected = [window] * (setting.runtime.windows_per_batch or 1), None
        if reference not in presets.values():
            setting.say(f"{name}: the window to compare with")
            expected = _generated(make_inpainter(manifest, reference, *parts).paint([window])[0])
        for preset in sorted(presets, key=lambda preset: presets[preset] != reference):
            setting.say(f"{name}: a window of {clip.name} with preset {preset}")
            inpainter = make_inpainter(manifest, presets[preset], *parts, windows_per_batch=lambda: len(windows))
            with setting.memory() as memory:
                paint = partial(inpainter.paint, windows)
                times_ms, painted = setting.timed("loop", paint, lambda: before_s.update(seconds()))
            spent_s = {graph: total_s - before_s.get(graph, 0.0) for graph, total_s in seconds().items()}
            parts_s = {graph: total_s / len(times_ms) for graph, total_s in spent_s.items() if total_s > 0}
            parts_s["rest"] = fmean(times_ms) / 1000 - sum(parts_s.values())
            found, quality = _generated(painted[0]), None
            if expected is None:
                expected = found
            else:
                compared = f"{manifest.name}, preset {REFERENCE}, on {name}"
                quality = Quality(**asdict(likeness(found, expected)), reference=compared)
            case = "one window" if len(windows) == 1 else f"{len(windows)} windows"
            frames, notes = len(windows) * manifest.frames, networks.take_notices()
            measured = {"frames": frames, "memory": memory, "parts_s": parts_s, "quality": quality}
            yield setting.row("loop", case, times_ms, notes, preset=preset, **measured)


def first_window(clip: Clip, frames: int, networks: Networks, resolution_px: int) -> tuple[UInt8Array, Float32Array]:
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
    pieces, filters = partial(read_audio_blocks, clip.audio, delay_s=delays.sound_s), filters_of(networks.bundle)
    with closing(SpeechStream(pieces, networks.encode_mel, filters)) as speech:
        return np.stack(faces), speech.windows([Fraction(index, MODEL_FPS) for index in range(frames)])


def aligned_faces(video: Path, frames: Iterable[Frame], resolution_px: int) -> Generator[FrameJob, None, None]:
    """Frames of a video with their faces, as `sync` cuts them out, at the network's resolution."""
    with MediaPipeDetector() as detector:
        finder = FaceFinder(detector, resolution_px, StageClock(), pixel_aspect=probe(video).sample_aspect_ratio)
        yield from finder.cut_out(finder.find(frame for frame in frames))


def _generated(painted: Sequence[UInt16Array]) -> UInt8Array:
    """The generated part of faces, uint16 `(H, W, 3)`, as 8-bit pictures."""
    rows, columns = generated_part(len(painted[0]))
    return np.rint(np.stack([face[rows, columns] for face in painted]) / 257).astype(np.uint8)


def _clips(setting: Setting, clip: Clip, folder: Path, network: SyncNet | None) -> Iterator[Row]:
    for preset, options in setting.presets.items():
        setting.say(f"{setting.selection.name}: {clip.name} with preset {preset}")
        target = folder / f"{setting.selection.name}-{preset}.mp4"
        with setting.memory() as memory:
            start_s = perf_counter()
            with LipSync(setting.networks()) as lip_sync:
                lip_sync.warm_up(options)
                start_up_s = {"build, open, first runs": perf_counter() - start_s}
                sync = partial(lip_sync.sync, clip.video, clip.audio, target, options)
                times_ms, report = setting.timed("end-to-end", sync)
        measured: dict[str, Any] = {"frames": report.frames, "memory": memory, "start_up_s": start_up_s}
        if network is not None:
            meter = SyncMeter(network, clip.audio, delays_of(clip.video, clip.audio).sound_s)
            measure_clip(target, clip.audio, meter=meter)
            measured["syncnet"] = meter.result()
        parts_s = {stage.stage: stage.busy_s for stage in report.stages}
        yield setting.row("end-to-end", clip.name, times_ms, report.notices, preset=preset, parts_s=parts_s, **measured)
