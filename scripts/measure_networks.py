"""Times the networks of a bundle by themselves: the instrument behind the rows of
`benchmarks/bench-….json`.

    python scripts/measure_networks.py --bundle NAME --scenario graph --scenario loop --preset fast
    --out FILE.json

graph    each graph of a bundle, on random inputs in device memory
loop     one window of faces through the VAE and all denoising steps, for each preset
pytorch  the same networks as PyTorch modules with random weights, eager and compiled, on the inputs
         of "graph": float16 on a GPU, float32 on the CPU, whatever the bundle's precision; only if
         named
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import rich_click as click

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bench.rows import BenchRow, bundle_facts, environment, write_rows
from latentsync_trt.bench.run import Setting, settings_for
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import HIDDEN, SIZE_STEPS, STEP_GRAPHS, Bundle, DimensionRange
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import print_line
from latentsync_trt.config import MODEL_FPS, PRESETS, PresetName, RuntimeOptions, SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.pictures import clip_likeness, frame_likeness, generated_area
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SpokenClip, choose_clip
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.option_fields import QUALITY, RESOLUTION_STEP_PX
from latentsync_trt.runtime.compiler import last_line
from latentsync_trt.runtime.engines.buffers import give_back_gpu_memory
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.output_comparison import SEED, BoundRun, random_inputs
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.shapes import dimension_ranges
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.inpainter import Inpainter, make_inpainter
from latentsync_trt.sync.model_slot import graphs_for
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

if TYPE_CHECKING:
    import torch

REFERENCE: PresetName = "quality"
"""The preset whose pictures the others are compared with."""

REPETITIONS = {"graph": (20, 3), "loop": (5, 1), "pytorch": (20, 3)}
"""Timed runs and warm-up runs."""

_DEVIATION = 0.02
"""Of random weights: activations stay within the range of half precision."""

_VAE_LAYER = re.compile(r"encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.conv1\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    bundle: str | None = flags.bundle_option()
    providers: tuple[str, ...] = flags.command_field(
        ("auto",), "", names=("--provider",), choices=PROVIDER_CHOICES, several=True
    )
    presets: tuple[PresetName, ...] = flags.command_field(
        tuple(PRESETS), "", names=("--preset",), several=True
    )
    scenario: tuple[str, ...] = flags.command_field(
        ("graph", "loop"), "", choices=tuple(REPETITIONS), several=True
    )
    runs: int | None = flags.command_field(None, "Timed runs.  [default: 5 of a loop, else 20]")
    warm_up: int | None = flags.command_field(
        None, "Runs before those.  [default: 1 of a loop, else 3]"
    )
    eager: bool = flags.command_field(False, "Leave out torch.compile, which takes minutes.")
    video: Path | None = flags.command_field(None, "")
    audio: Path | None = flags.command_field(None, "")
    out: Path = flags.command_field(None, "", required=True)
    sync: SyncOptions = flags.options_of(groups=(QUALITY,), leave_out=("preset",))
    runtime: RuntimeOptions = flags.options_of(leave_out=("build", "verify"))


@click.command(help=(__doc__ or "").partition("\n")[0])
@flags.takes(MeasureRequest)
def main(request: MeasureRequest) -> None:
    """Writes all rows so far after each one."""
    runs = request.runs
    warm_up = request.warm_up
    loaded = Bundle.load(find_bundle(request.bundle)[0])
    runtime = request.runtime
    sync = request.sync
    presets = {name: replace(sync, preset=name) for name in request.presets}
    settings = settings_for(loaded, runtime, sync, request.providers, print_line)
    facts = environment(
        sys.argv, [setting.selection.name for setting in settings], runtime.one_device
    )
    about = bundle_facts(loaded.manifest, settings[0].resolution_px)
    rows = list[BenchRow]()
    with temporary_folder() as folder:
        clip = choose_clip(request.video, request.audio, folder)
        measures = {
            "graph": _graphs,
            "loop": partial(_loops, presets=presets, clip=clip),
            "pytorch": partial(_pytorch, compiled=not request.eager),
        }
        for setting in settings:
            for name in request.scenario:
                usual = REPETITIONS[name]
                repeats = (
                    usual[0] if runs is None else runs,
                    usual[1] if warm_up is None else warm_up,
                )
                for row in measures[name](replace(setting, runs=repeats[0], warm_up=repeats[1])):
                    rows.append(row)
                    write_rows(request.out, facts, about, rows)
                    print(
                        f"{row.scenario} {row.case} {row.preset or ''}: "
                        f"{row.time['median_ms']:.2f} ms",
                        flush=True,
                    )


def _ranges(setting: Setting) -> dict[str, DimensionRange]:
    """Variable dimensions, whose heights and widths have their optimum at the setting's
    resolution.
    """
    sizes = {
        name: setting.resolution_px // RESOLUTION_STEP_PX * step
        for name, step in SIZE_STEPS.items()
    }
    ranges = dimension_ranges(setting.bundle.manifest, setting.runtime)
    return {
        name: replace(span, optimum=sizes.get(name, span.optimum)) for name, span in ranges.items()
    }


def _graphs(setting: Setting) -> Iterator[BenchRow]:
    selection = setting.selection
    notices = list[str]()
    cache = EngineCache(cache_folder(setting.runtime.engine_cache), notices.append)
    factory = SessionFactory(setting.bundle, selection, setting.runtime, cache)
    for graph in setting.bundle.manifest.graphs:
        setting.on_notice(f"{selection.name}: {graph}")
        with setting.memory() as memory:
            opened = factory.open(graph, cuda_graph=factory.cuda_graph and graph in STEP_GRAPHS)
            with closing(opened.session) as session:
                times_ms, _ = setting.timed(BoundRun(session, _ranges(setting), selection))
        # The memory of one graph must not be counted for the next.
        give_back_gpu_memory(selection)
        start_up_s = {"build": opened.costs.build_s, "open": opened.costs.open_s}
        yield setting.row("graph", graph, times_ms, notices, memory=memory, start_up_s=start_up_s)
        notices.clear()


def _loops(
    setting: Setting, presets: Mapping[str, SyncOptions], clip: SpokenClip
) -> Iterator[BenchRow]:
    """A row for each preset; the reference preset, if it is among them, comes first."""
    manifest = setting.bundle.manifest
    name = setting.selection.name
    reference = SyncOptions(preset=REFERENCE, resolution=next(iter(presets.values())).resolution)
    graphs = dict.fromkeys(
        graph for options in (reference, *presets.values()) for graph in graphs_for(options)
    )
    selection = replace(setting.selection, is_named=True)  # no other is measured
    with closing(
        open_model(setting.bundle, selection, setting.runtime, tuple(graphs), setting.on_notice)
    ) as model:

        def seconds() -> dict[str, float]:
            times = model.times()
            return {
                time.graph: (time.first_ms + (time.runs - 1) * time.mean_ms) / 1000
                for time in times
                if time.runs
            }

        window = first_window(clip, manifest.frames, model, setting.resolution_px)
        expected = None
        if reference not in presets.values():
            setting.on_notice(f"{name}: the window to compare with")
            expected = _generated(paint_window(make_inpainter(model, reference), *window))
        for preset in sorted(presets, key=lambda preset: presets[preset] != reference):
            setting.on_notice(f"{name}: a window of {clip.name} with preset {preset}")
            paint = partial(paint_window, make_inpainter(model, presets[preset]), *window)
            with setting.memory() as memory:
                for _ in range(setting.warm_up):
                    paint()
                before_s = seconds()
                times_ms, painted = replace(setting, warm_up=0).timed(paint)
            spent_s = {
                graph: total_s - before_s.get(graph, 0.0) for graph, total_s in seconds().items()
            }
            parts_s = {
                graph: total_s / len(times_ms) for graph, total_s in spent_s.items() if total_s > 0
            }
            parts_s["rest"] = fmean(times_ms) / 1000 - sum(parts_s.values())
            generated = _generated(painted)
            notes = [*model.notices]
            if expected is None:
                expected = generated
            else:
                likeness = clip_likeness([*map(frame_likeness, generated, expected)])
                notes.append(f"beside preset {REFERENCE}: {likeness}")
            measured = {"frames": manifest.frames, "memory": memory, "parts_s": parts_s}
            yield setting.row("loop", "one window", times_ms, notes, preset=preset, **measured)


def paint_window(inpainter: Inpainter, faces: UInt8Array, audio: Float32Array) -> list[UInt16Array]:
    """Returns the new faces of one window by itself, from arguments as those of
    `Inpainter.encode_faces` and `Inpainter.denoise`.
    """
    encoded = inpainter.run("encode", partial(inpainter.encode_faces, faces))
    latents = inpainter.run("denoise", partial(inpainter.denoise, encoded, audio))
    painted: list[UInt16Array] = inpainter.run("decode", partial(inpainter.decode_faces, latents))
    return painted


def first_window(
    clip: SpokenClip, frames: int, model: Model, resolution_px: int
) -> tuple[UInt8Array, Float32Array]:
    """The first `frames` faces of a clip, uint8 `(F, H, W, 3)`, and their speech, float32 `(F, S,
    D)`.

    Raises:
        NoFaceError: the clip shows fewer faces than that.
    """
    delays = delays_of(clip.video, clip.audio)
    aspect = probe(clip.video).sample_aspect_ratio
    read = read_frames(clip.video, Playback(Fraction(MODEL_FPS), delay_s=delays.picture_s))
    finder = FaceFinder(FaceTracker(MediaPipeDetector()), resolution_px, pixel_aspect=aspect)
    with closing(finder.cut_out(finder.find(frame for frame in read))) as jobs:
        aligned = (target.face for job in jobs for target in job.targets)
        faces = list(islice((face.image for face in aligned if face is not None), frames))
    if len(faces) < frames:
        raise NoFaceError(
            f"{clip.video}: {len(faces)} frames with a face, "
            f"a window takes {frames}; give a longer clip"
        )
    pieces = partial(read_audio_blocks, clip.audio, delay_s=delays.sound_s)
    filters = filters_of(model.bundle)
    with closing(SpeechStream(pieces, model.audio_encoder, filters)) as speech:
        return np.stack(faces), speech.windows(
            [Fraction(index, MODEL_FPS) for index in range(frames)]
        )


def _generated(painted: Sequence[UInt16Array]) -> UInt8Array:
    """The generated part of faces, uint16 `(H, W, 3)`, as 8-bit pictures."""
    rows, columns = generated_area(len(painted[0]))
    return np.rint(np.stack([face[rows, columns] for face in painted]) / 257).astype(np.uint8)


def _pytorch(setting: Setting, *, compiled: bool) -> Iterator[BenchRow]:
    """Rows for each network, eager and compiled."""
    import torch

    device = torch.device(setting.selection.device, setting.selection.device_id)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    notes = (
        f"torch {torch.__version__}, {'fp16' if device.type == 'cuda' else 'fp32'}, random weights",
    )
    for graph, module in _modules(setting.bundle, device, dtype).items():
        arrays = random_inputs(setting.bundle.manifest.graphs[graph].inputs, _ranges(setting))
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        inputs = [
            tensor.to(dtype) if name == HIDDEN else tensor for name, tensor in tensors.items()
        ]
        for kind in ("eager", "compiled") if compiled else ("eager",):
            called = module if kind == "eager" else torch.compile(module)

            def run(called: Any = called, inputs: Sequence[Any] = inputs) -> None:
                called(*inputs)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)

            try:
                with torch.inference_mode(), setting.memory() as memory:
                    run()  # compiles
                    times_ms, _ = setting.timed(run)
            except RuntimeError as error:
                if kind == "eager":
                    raise
                # There is no compiler on this machine, or one that does not take the network.
                setting.on_notice(f"torch.compile failed on {graph}: {last_line(error)}")
            else:
                yield setting.row(
                    "pytorch",
                    f"{graph} {kind}",
                    times_ms,
                    notes,
                    provider=device.type,
                    memory=memory,
                )
        torch.compiler.reset()


def _modules(
    bundle: Bundle, device: "torch.device", dtype: "torch.dtype"
) -> Mapping[str, "torch.nn.Module"]:
    """Modules by the names of their graphs: the guided steps, and the image codec."""
    import torch

    from latentsync_trt.export.denoise_step import DenoiseStep
    from latentsync_trt.export.networks import ImageAttention, VaeDecoder, VaeEncoder
    from latentsync_trt.export.unet import UNet, UNetConfig

    # diffusers warns of what `ImageAttention` has no use for, whenever a compiler looks at it.
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    config = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in bundle.manifest.unet.items()
    }
    with device:  # made there: 1.3 billion parameters take long to copy
        unet = UNet(UNetConfig(**config))
        vae = _vae(bundle)
    vae.set_attn_processor(ImageAttention())
    generator = torch.Generator(device).manual_seed(SEED)
    for network in (unet, vae):
        # Not diffusers' own `to`, which warns of layers to keep in float32 where there are none.
        torch.nn.Module.to(network, dtype=dtype).eval().requires_grad_(False)
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.normal_(0, _DEVIATION, generator=generator)
    return {
        "denoise_step": DenoiseStep(unet, guided=True),
        "denoise_step_cached": DenoiseStep(unet, guided=True, cached=True),
        "vae_encoder": VaeEncoder(vae),
        "vae_decoder": VaeDecoder(vae),
    }


def _vae(bundle: Bundle) -> Any:
    """The AutoencoderKL whose shapes the encoder's weights have."""
    import onnx
    from diffusers import AutoencoderKL

    graph = onnx.load(bundle.graph_path("vae_encoder"), load_external_data=False).graph
    named = ((_VAE_LAYER.fullmatch(weight.name), weight) for weight in graph.initializer)
    layers = {(int(name[1]), int(name[2])): int(weight.dims[0]) for name, weight in named if name}
    groups = {each.i for node in graph.node for each in node.attribute if each.name == "num_groups"}
    widths = tuple(width for (_, layer), width in sorted(layers.items()) if layer == 0)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        block_out_channels=widths,
        layers_per_block=len(layers) // len(widths),
        norm_num_groups=groups.pop(),
        latent_channels=4,
    )


if __name__ == "__main__":
    main()
