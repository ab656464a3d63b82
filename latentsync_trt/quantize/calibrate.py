"""Calibration: record windows of clips, observe ranges, write the 8-bit bundle and measure it.

An 8-bit bundle has step graphs with QuantizeLinear/DequantizeLinear pairs; everything else is
copied.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from latentsync_trt.bundle import manifest as bundles
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import MODEL_FPS, RuntimeOptions
from latentsync_trt.errors import InferenceError, InputError, NoFaceError, did_you_mean
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.files import published_folder
from latentsync_trt.quantize.calibration_options import (
    EXTRA,
    RESIDUAL_LAYERS,
    TOOLS,
    CalibrateOptions,
    Clip,
)
from latentsync_trt.quantize.steps import (
    ActivationRange,
    ObservedGraph,
    Ranges,
    layer_names,
    multiply_adds,
    step_graphs,
    write_observed,
    write_steps,
)
from latentsync_trt.quantize.windows import (
    CACHE_INTERVAL,
    Loop,
    RecordedWindow,
    loops_of,
    record,
    recorded_for,
    split,
)
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.builders import cuda_options
from latentsync_trt.runtime.engines.session import CPU, Session, SessionSettings
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.choice import FP8_FROM
from latentsync_trt.runtime.providers.libraries import onnxruntime_version
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Denoiser, Float32Array, Progress, ProgressCallback

DISTANCE = "faces_psnr_db"
"""The manifest's name for the PSNR of faces after whole loops, compared with the parent."""

_LARGEST_DB = 200.0


class ObservingDenoiser(GraphDenoiser):
    """A denoiser over temporary step graphs by name, on CPU or CUDA without the engine cache; opens
    them on demand, guided or unguided ones at a time. `ranges`: of the inputs of their layers, over
    all steps so far.
    """

    def __init__(self, graphs: Mapping[str, ObservedGraph], selection: Selection) -> None:
        super().__init__(self._session, selection)
        self._graphs = graphs
        self.ranges: dict[str, ActivationRange] = {}
        cuda = (selection.provider.ort_name, cuda_options(selection.device_id))
        self._providers = CPU if selection.gpu is None else (cuda, *CPU)
        self._sessions: dict[str, Session] = {}
        self._guided = False

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        """Starts a window, with all steps guided or none."""
        guided = guidance > 1.0
        if guided != self._guided:
            self.close()
        self._guided = guided
        super().begin(latents, conditioning, audio, guidance)

    def observe(self, graph: str, timestep: int, outputs: Mapping[str, Any]) -> None:
        """Adds the statistics of a step to `ranges`; raises `InferenceError` if one is not
        finite.
        """
        for name, layers in self._graphs[graph].layers.items():
            amax, sample = (
                outputs[f"{name}_{what}"].numpy().astype(np.float32) for what in ("amax", "sample")
            )
            if not np.isfinite(amax).all():
                raise InferenceError(
                    f"{graph}: the input of {layers[0]} is not finite at timestep {timestep}; "
                    "calibrate the bundle in fp32, and check its weights"
                )
            found = ActivationRange.of_step(float(amax), sample)
            for layer in layers:
                self.ranges[layer] = (
                    self.ranges[layer].merged(found) if layer in self.ranges else found
                )

    def close(self) -> None:
        self.release()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            graph = self._graphs[name]
            # By default ONNX Runtime computes the added outputs last, and keeps every observed
            # tensor until then.
            settings = SessionSettings(
                providers=self._providers,
                weights_folder=graph.weights_folder,
                dimensions=graph.dimensions,
                by_priority=True,
                name=name,
            )
            self._sessions[name] = Session(graph.path, settings)
        return self._sessions[name]


@dataclass(frozen=True)
class Calibration:
    """One calibration of `bundle`, which is not in 8 bits, on `clips`, at least one.

    `selection`: CPU or CUDA. `on_warning`: called with sentences about the clips and the GPU.
    """

    bundle: Bundle
    clips: Sequence[Clip]
    options: CalibrateOptions
    selection: Selection
    on_progress: ProgressCallback
    on_warning: Callable[[str], None]

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
        options = self.options
        gpu = self.selection.gpu
        if options.precision == "fp8" and gpu is not None and gpu.capability < FP8_FROM:
            needed = ".".join(map(str, FP8_FROM))
            self.on_warning(
                f"{gpu} has no FP8, which needs compute capability "
                f"{needed}: TensorRT will not run the result here"
            )
        samples, held_out = split(self._record(), options.windows)
        if options.measure and not held_out:
            self.on_warning(
                "no window is left to measure on, so the "
                "result is measured on one it was calibrated on"
            )
        measured_on = (held_out or samples[:1]) if options.measure else ()
        ranges = self._observe(samples)
        self.on_progress(Progress("write", 0, None))
        clips = tuple(
            dict.fromkeys(path.name for clip in self.clips for path in (clip.video, clip.audio))
        )
        settings = {
            "steps": options.steps,
            "guidance": options.guidance,
            "cache_interval": CACHE_INTERVAL,
        }
        settings |= {"windows": len(samples), "windows_measured": len(measured_on)}
        measure = (lambda folder: self._psnr_db(folder, measured_on)) if measured_on else None
        return quantize_bundle(
            self.bundle, ranges, options, out, clips=clips, settings=settings, measure=measure
        )

    def _model(self, *graphs: str) -> Model:
        return open_model(self.bundle, self.selection, RuntimeOptions(), graphs)

    def _record(self) -> tuple[RecordedWindow, ...]:
        asked = self.options.windows
        windows = list[RecordedWindow]()
        detector = MediaPipeDetector()
        wanted = -(-recorded_for(asked) // len(self.clips))
        with closing(self._model(bundles.AUDIO_ENCODER, bundles.VAE_ENCODER)) as model:
            for clip in self.clips:
                windows += record(
                    clip, wanted, model, detector, self._report(f"record {clip.video.name}")
                )
        if not windows:
            raise NoFaceError(
                f"{', '.join(str(clip.video) for clip in self.clips)}: "
                "no face in any frame; `latentsync-trt faces` "
                "says how faces must be"
            )
        if len(windows) < asked:
            wanted_s = asked * self.bundle.manifest.frames / MODEL_FPS
            self.on_warning(
                f"{len(windows)} windows of the {asked} that "
                "--windows asks for, so ranges may be too narrow; give "
                f"clips that show a face for {wanted_s:.0f} s in all"
            )
        return tuple(windows)

    def _observe(self, windows: Sequence[RecordedWindow]) -> Ranges:
        graphs = step_graphs(self.bundle)
        steps = self.options.steps
        loops = loops_of(
            windows, self.options, unguided=bundles.step_graph(guided=False, cached=False) in graphs
        )
        with TemporaryDirectory() as folder:
            observed_graphs = {
                name: write_observed(self.bundle, name, Path(folder)) for name in graphs
            }
            with closing(ObservingDenoiser(observed_graphs, self.selection)) as denoiser:
                for number, (window, loop) in enumerate(loops):
                    loop.run(
                        denoiser,
                        window,
                        self._report("observe", number * steps, len(loops) * steps),
                    )
                return denoiser.ranges

    def _psnr_db(self, folder: Path, windows: Sequence[RecordedWindow]) -> float:
        """PSNR of the faces of windows after whole loops with the step graphs in `folder`, against
        the bundle's own.
        """
        self.on_progress(Progress("measure", 0, None))
        loop = Loop(self.options.guidance, self.options.steps)
        graphs = {
            name: ObservedGraph(folder / f"{name}.onnx", folder)
            for name in step_graphs(self.bundle)
        }
        with (
            closing(self._model(*graphs, bundles.VAE_DECODER)) as model,
            closing(ObservingDenoiser(graphs, self.selection)) as eight_bit,
        ):

            def faces(denoiser: Denoiser, window: RecordedWindow) -> Float32Array:
                latents = model.run("denoise", lambda: loop.run(denoiser, window))
                pictures = np.ascontiguousarray(latents.transpose(1, 0, 2, 3))
                decoded = model.run("decode", lambda: model.vae.decode_faces(pictures))
                return np.asarray(np.stack(decoded) / 65535, np.float32)

            errors = [
                faces(eight_bit, window) - faces(model.denoiser, window) for window in windows
            ]
        noise = np.mean([np.square(error, dtype=np.float64).mean() for error in errors])
        if noise > 0:
            return min(_LARGEST_DB, -10 * float(np.log10(noise)))
        return _LARGEST_DB

    def _report(
        self, stage: str, before: int = 0, total: int | None = None
    ) -> Callable[[int, int], None]:
        """A progress callback for a stage, or for the part of it that begins at `before` of
        `total`.
        """
        return lambda done, of: self.on_progress(Progress(stage, before + done, total or of))


def open_parent(folder: Path) -> Bundle:
    """The bundle to quantize; raises `BundleError` if it is incomplete, `InputError` if it is in 8
    bits already.
    """
    parent = Bundle.load(folder)
    quantized = parent.manifest.quantization
    if parent.manifest.precision in bundles.EIGHT_BIT_PRECISIONS:
        if quantized:
            hint = f"; calibrate {quantized.parent}, which it was made from"
        else:
            hint = ""
        raise InputError(f"{folder}: is in {parent.manifest.precision} already{hint}")
    return parent


def check_out(parent: Bundle, out: Path) -> None:
    """Raises `InputError` if `out` must not be overwritten with a bundle made from `parent`."""
    if out.resolve() == parent.folder.resolve():
        raise InputError(f"{out}: is the bundle to calibrate; choose another folder for --output")
    bundles.check_target(out)


def kept_layers(parent: Bundle, options: CalibrateOptions) -> tuple[str, ...]:
    """The layers that keep their precision, sorted; raises `InputError` if these are all, or a name
    fits none.
    """
    names = layer_names(parent)
    bundle = parent.manifest.name
    for name in options.keep:
        if name not in RESIDUAL_LAYERS and not any(
            replace(options, keep=(name,)).keeps(layer) for layer in names
        ):
            parts = sorted(
                {part for layer in names for part in layer.split(".") if not part.isdigit()}
            )
            cure = did_you_mean(name, parts) or f"; its layers have the parts {', '.join(parts)}"
            raise InputError(f"--keep {name}: fits no layer of {bundle}{cure}")
    kept = tuple(sorted(layer for layer in names if options.keeps(layer)))
    if len(kept) == len(names):
        raise InputError(f"--keep: keeps all {len(kept)} layers of {bundle}; keep fewer")
    return kept


def quantize_bundle(
    parent: Bundle,
    ranges: Ranges,
    options: CalibrateOptions,
    out: Path,
    *,
    clips: tuple[str, ...] = (),
    settings: Mapping[str, Any] | None = None,
    measure: Callable[[Path], float] | None = None,
) -> Path:
    """Writes an 8-bit version of `parent` to `out`, completely or not at all; returns `out`.

    Args:
        clips, settings: of the calibration, as in the manifest's `Quantization`.
        measure: gives the PSNR in dB of faces by the new step graphs in a folder.

    Raises:
        InputError: as `kept_layers`, or `out` contains something else. OutputError: `out` cannot be
            written.
    """
    check_out(parent, out)
    manifest = parent.manifest
    kept = kept_layers(parent, options)
    costs = multiply_adds(parent, bundles.FULL_STEP)
    tools = bundles.tool_versions(TOOLS, extra=EXTRA)
    with published_folder(out) as staged:
        steps = write_steps(parent, ranges, options, kept, staged)
        forms = {file for name in steps for file in manifest.graphs[name].forms.values()}
        for file in manifest.files.keys() - forms - {path.name for path in staged.iterdir()}:
            shutil.copyfile(parent.folder / file, staged / file)
        quantization = bundles.Quantization(
            parent=manifest.name,
            parent_sha256=bundles.manifest_sha256(parent.folder),
            parent_precision=manifest.precision,
            clips=clips,
            settings={
                **(settings or {}),
                "precision": options.precision,
                "percentile": options.percentile,
            },
            kept=kept,
            share=1
            - sum(cost for name, cost in costs.items() if name in kept) / sum(costs.values()),
            distance={DISTANCE: measure(staged)} if measure else {},
        )
        made = replace(
            manifest,
            name=out.name,
            precision=options.precision,
            graphs={**manifest.graphs, **steps},
            files=bundles.files_of(staged),
            tools={**manifest.tools, **tools, "onnxruntime": onnxruntime_version()},
            # The step graphs are not those that were compared with PyTorch.
            verification={
                graph: value for graph, value in manifest.verification.items() if graph not in steps
            },
            quantization=quantization,
        )
        bundles.write_manifest(staged, made)
    return out
