"""Calibration: record windows of clips, observe ranges, write the 8-bit bundle and measure it."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latentsync_trt.bundle import manifest as bundles
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import MODEL_FPS, RuntimeOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.quantize.calibration_options import CalibrateOptions, CalibrationClip
from latentsync_trt.quantize.eight_bit_bundle import (
    Provenance,
    check_out,
    kept_layers,
    quantize_bundle,
)
from latentsync_trt.quantize.layers import step_graphs
from latentsync_trt.quantize.observed import ObservedGraph, ObservingDenoiser, write_observed
from latentsync_trt.quantize.ranges import ActivationRanges
from latentsync_trt.quantize.windows import (
    CACHE_INTERVAL,
    Loop,
    RecordedWindow,
    loops_of,
    record,
    recorded_for,
    split,
)
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.choice import FP8_FROM
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Denoiser, Float32Array, Progress, ProgressCallback

_LARGEST_DB = 200.0
"""The PSNR of faces that are equal, or nearly."""


@dataclass(frozen=True)
class Calibration:
    """One calibration of a bundle on clips."""

    bundle: Bundle
    """Not in 8 bits."""
    clips: Sequence[CalibrationClip]
    """At least one."""
    options: CalibrateOptions
    selection: Selection
    """CPU or CUDA."""
    on_progress: ProgressCallback
    on_notice: Callable[[str], None]
    """Called with sentences about the clips and the GPU."""

    def run(self, out: Path) -> Path:
        """Writes the 8-bit bundle to `out`, completely or not at all; returns `out`.

        Raises:
            NoFaceError: no clip shows a face. MediaError, InputError: a clip cannot be read.
            InputError: as `kept_layers`, or `out` contains something else. OutputError: `out`
                cannot be written.
            InferenceError, OutOfMemory: a graph failed.
        """
        check_out(self.bundle, out)
        kept_layers(self.bundle, self.options)
        self._check_gpu()
        options = self.options
        samples, held_out = split(self._record(), options.windows)
        measured_on = held_out
        if options.measure and not held_out:
            measured_on = samples[:1]
            self.on_notice(
                "no window is left to measure on, so the "
                "result is measured on one it was calibrated on"
            )
        ranges = self._observe(samples)
        self.on_progress(Progress("write", 0, None))
        names: dict[str, None] = {}
        for clip in self.clips:
            names |= {clip.video.name: None, clip.audio.name: None}
        settings = {
            "steps": options.steps,
            "guidance": options.guidance,
            "cache_interval": CACHE_INTERVAL,
            "windows": len(samples),
            "windows_measured": len(measured_on) if options.measure else 0,
        }

        def measure(folder: Path) -> float:
            return self._psnr_db(folder, measured_on)

        return quantize_bundle(
            self.bundle,
            ranges,
            options,
            out,
            Provenance(tuple(names), settings),
            measure if options.measure else None,
        )

    def _check_gpu(self) -> None:
        gpu = self.selection.gpu
        if self.options.precision == "fp8" and gpu is not None and gpu.capability < FP8_FROM:
            needed = ".".join(map(str, FP8_FROM))
            self.on_notice(
                f"{gpu} has no FP8, which needs compute capability "
                f"{needed}: TensorRT will not run the result here"
            )

    def _model(self, *graphs: str) -> Model:
        return open_model(self.bundle, self.selection, RuntimeOptions(), graphs)

    def _record(self) -> list[RecordedWindow]:
        asked = self.options.windows
        windows: list[RecordedWindow] = []
        detector = MediaPipeDetector()
        wanted = -(-recorded_for(asked) // len(self.clips))
        with closing(self._model(bundles.AUDIO_ENCODER, bundles.VAE_ENCODER)) as model:
            for clip in self.clips:
                on_frame = self._report(f"record {clip.video.name}")
                windows += record(clip, wanted, model, detector, on_frame)
        if not windows:
            raise NoFaceError(
                f"{', '.join(str(clip.video) for clip in self.clips)}: "
                "no face in any frame; `latentsync-trt faces` "
                "says how faces must be"
            )
        if len(windows) < asked:
            wanted_s = asked * self.bundle.manifest.frames / MODEL_FPS
            self.on_notice(
                f"--windows {asked}: the clips have only {len(windows)}, so ranges may be too "
                f"narrow; give clips that show a face for {wanted_s:.0f} s in all"
            )
        return windows

    def _observe(self, windows: Sequence[RecordedWindow]) -> ActivationRanges:
        graphs = step_graphs(self.bundle)
        steps = self.options.steps
        has_unguided = bundles.step_graph(guided=False, cached=False) in graphs
        loops = loops_of(windows, self.options, unguided=has_unguided)
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            observed = {name: write_observed(self.bundle, name, folder) for name in graphs}
            with closing(ObservingDenoiser(observed, self.selection)) as denoiser:
                for number, (window, loop) in enumerate(loops):
                    on_step = self._report("observe", number * steps, len(loops) * steps)
                    loop.run(denoiser, window, on_step)
                return denoiser.ranges

    def _psnr_db(self, folder: Path, windows: Sequence[RecordedWindow]) -> float:
        """Returns the PSNR of the faces of windows after whole loops with the step graphs in
        `folder`, against the bundle's own.
        """
        self.on_progress(Progress("measure", 0, None))
        loop = Loop(self.options.guidance, self.options.steps)
        names = step_graphs(self.bundle)
        graphs = {name: ObservedGraph(folder / f"{name}.onnx", folder) for name in names}
        errors = []
        with (
            closing(self._model(*names, bundles.VAE_DECODER)) as model,
            closing(ObservingDenoiser(graphs, self.selection)) as eight_bit,
        ):
            for window in windows:
                exact = _faces(model, loop, model.denoiser, window)
                rounded = _faces(model, loop, eight_bit, window)
                errors.append(np.square(rounded - exact, dtype=np.float64).mean())
        noise = np.mean(errors)
        if noise > 0:
            return min(_LARGEST_DB, -10 * float(np.log10(noise)))
        return _LARGEST_DB

    def _report(
        self, stage: str, before: int = 0, total: int | None = None
    ) -> Callable[[int, int], None]:
        """Returns a progress callback for a stage, or for the part of it that begins at `before` of
        `total`.
        """

        def report(done: int, of: int) -> None:
            self.on_progress(Progress(stage, before + done, total or of))

        return report


def _faces(model: Model, loop: Loop, denoiser: Denoiser, window: RecordedWindow) -> Float32Array:
    """Returns the faces of a window, float32 `(F, H, W, 3)` from 0 to 1."""
    latents = model.run("denoise", lambda: loop.run(denoiser, window))
    by_frame = np.ascontiguousarray(latents.swapaxes(0, 1))
    faces = model.run("decode", lambda: model.vae.decode_faces(by_frame))
    return np.asarray(np.stack(faces) / 65535, np.float32)
