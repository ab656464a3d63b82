"""Estimates of GPU memory, and the plan that follows from what is free: decided once for a
model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from latentsync_trt.bundle.manifest import FULL_STEP, VAE_DECODER, GraphVariant, Manifest
from latentsync_trt.runtime.engines.builders import usual_shape
from latentsync_trt.runtime.engines.cache import Notice
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.devices import free_memory_bytes
from latentsync_trt.runtime.providers.table import CUDA, Provider

_HALVES = 2
"""Conditional and unconditional, of a guided step."""

_FEATURES_AT_ONCE = 32
"""Feature maps of the U-Net's first level that a full step holds at its peak. Measured: 29, as one
more window of 16 frames at 256 px took 0.61 GB with the published U-Net in float16 on the CUDA
provider.
"""

_FIXED_BYTES = 1_550_000_000
"""Besides weights and features, on the CUDA provider: libraries, pictures, cuDNN's workspace. With
one window, it gives the measured peaks: 7.1 GB at 512 px and 5.0 GB at 256 px (benchmarks/).
"""

_FEATURES: dict[GraphVariant, float] = {"cuda": 1.05, "portable": 2.2}
"""Windows whose features a run holds, by variant of the graphs on the CUDA provider (portable: 10.2
GB at 512 px). TensorRT was not measured: until its engines are built and say what they take, it
counts as the CUDA variant.
"""

_LOADED = 0.9
"""Of the weights of a bundle with both variants: stacked projections are stored whole and in parts;
each reads one.
"""

_MARGIN = 1.1
"""Without it, a run at 512 px ran out of memory with 7.2 GB free, exactly the estimate."""

_RECORDED = 1.35
"""Windows whose features the CUDA graphs of guided steps hold besides. Measured: 3.5 GB at 512 px,
0.9 GB at 256 px; at 512 px only 1.2 GB where stages run side by side, as their peaks do not
coincide.
"""

_VALUES_PER_PIXEL = 10 * 256
"""Of the VAE's features for each picture that it decodes at once: ten feature maps of its widest
full-size level, which encoder and decoder hold while a step runs. Measured: 12.3 GB in all at 512
px instead of 7.1 (benchmarks/).
"""

_VALUE_BYTES = {"fp32": 4, "fp16": 2}


Mode = Literal["pipelined", "in turn", "one network at a time"]
"""Whether a window is encoded and another decoded while one is denoised, or stages run one after
another, with all networks on the device, or with one.
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a model uses the memory of its device. `cuda_graph`: steps are recorded and replayed."""

    mode: Mode
    cuda_graph: bool = False


def plan_of(factory: SessionFactory, graphs: Sequence[str], on_notice: Notice) -> MemoryPlan:
    """The plan for a model; on the CPU, stages run in turn, as each uses all cores."""
    options = factory.options
    manifest = factory.bundle.manifest
    selection = factory.selection
    if options.low_memory or selection.gpu is None:
        return MemoryPlan("one network at a time" if options.low_memory else "in turn")
    free_bytes = free_memory_bytes(selection.gpu.index)
    needed = partial(
        needed_bytes,
        manifest,
        provider=selection.provider,
        variant=factory.variant(FULL_STEP),
        engine_bytes=factory.memory_bytes(graphs) if factory.compiled else None,
    )
    if_room = factory.cuda_graph and options.cuda_graph is None and selection.provider is CUDA
    cuda_graph = None if if_room else factory.cuda_graph
    plan = plan_memory(needed, free_bytes, cuda_graph=cuda_graph)
    if plan.mode == "one network at a time" and free_bytes is not None:
        on_notice(
            "memory of the device is short (this bundle takes "
            f"about {needed() / 1e9:.1f} GB, {free_bytes / 1e9:.1f} "
            "GB is free): one network at a time is kept on it, which is slower"
        )
    return plan


def plan_memory(
    needed: Callable[..., int], free_bytes: int | None, *, cuda_graph: bool | None
) -> MemoryPlan:
    """The plan for a GPU with so much free memory; None = unknown, which is taken as enough for all
    networks. `needed`: `needed_bytes`, with `pipelined` and `recorded` left open. `cuda_graph`:
    None records where there is room.
    """
    if free_bytes is None:
        return MemoryPlan("pipelined", cuda_graph is True)
    if needed() > free_bytes:
        return MemoryPlan("one network at a time", cuda_graph is True)
    pipelined = needed(pipelined=True) <= free_bytes
    room = needed(pipelined=pipelined, recorded=True) <= free_bytes
    return MemoryPlan(
        "pipelined" if pipelined else "in turn", room if cuda_graph is None else cuda_graph
    )


def window_bytes(manifest: Manifest) -> int:
    """Estimated device memory of one more window in a full guided step."""
    features = manifest.frames * manifest.latent_px**2 * manifest.unet["widths"][0]
    return int(_FEATURES_AT_ONCE * _HALVES * features * _VALUE_BYTES[manifest.arithmetic])


def needed_bytes(
    manifest: Manifest,
    *,
    provider: Provider,
    variant: GraphVariant,
    pipelined: bool = False,
    recorded: bool = False,
    engine_bytes: int | None = None,
) -> int:
    """Free memory that a GPU needs for a run with all networks open and one window at a time.

    `variant`, `recorded`: of the graphs on the CUDA provider. `pipelined`: a window is encoded and
    one decoded while another is denoised. `engine_bytes`: what the run's engines take; each holds
    its own memory, whoever runs.
    """
    if engine_bytes is not None:
        return int(_MARGIN * (engine_bytes + _FIXED_BYTES))
    features = _FEATURES[variant if provider is CUDA else CUDA.graph_variant] + (
        _RECORDED if recorded else 0.0
    )
    weights = {entry.weights for entry in manifest.graphs.values()}
    if CUDA.graph_variant in manifest.graphs[FULL_STEP].forms:
        loaded = _LOADED
    else:
        loaded = 1.0
    needed = loaded * sum(manifest.files[name].bytes for name in weights)
    needed += _FIXED_BYTES + features * window_bytes(manifest)
    if pipelined:
        pictures = usual_shape(manifest.graphs[VAE_DECODER].inputs[0].shape, manifest.ranges)[0]
        needed += (
            pictures
            * manifest.resolution_px**2
            * _VALUES_PER_PIXEL
            * _VALUE_BYTES[manifest.arithmetic]
        )
    return int(_MARGIN * needed)
