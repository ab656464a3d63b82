"""Estimates of GPU memory, and the plan that follows from what is free: decided once for a
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from latentsync_trt.bundle.manifest import FULL_STEP, VAE_DECODER, GraphVariant, Manifest
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.shapes import usual_shape
from latentsync_trt.runtime.providers.devices import free_memory_bytes
from latentsync_trt.runtime.providers.table import CUDA, Provider
from latentsync_trt.types import NoticeCallback

_HALVES = 2
"""Conditional and unconditional half of a guided step."""

_FEATURES_AT_ONCE = 32
"""Feature maps of the U-Net's first level that a full step holds at its peak. Measured: 29, as one
more window of 16 frames at 256 px took 0.61 GB with the published U-Net in float16 on the CUDA
provider.
"""

_FIXED_BYTES = 1_550_000_000
"""What the CUDA provider takes besides weights and features: libraries, pictures, cuDNN's
workspace. With one window, it gives the measured peaks: 7.1 GB at 512 px and 5.0 GB at 256 px
(benchmarks/).
"""

_FEATURE_WINDOWS_AT_PEAK: dict[GraphVariant, float] = {"cuda": 1.05, "portable": 2.2}
"""Windows whose features a run holds, by variant of the graphs on the CUDA provider (portable: 10.2
GB at 512 px). TensorRT was not measured: until its engines are built and say what they take, it
counts as the CUDA variant.
"""

_LOADED_SHARE = 0.9
"""Share of the weights of a bundle with both variants that is loaded: stacked projections are
stored whole and in parts; each variant reads one.
"""

_SAFETY_FACTOR = 1.1
"""Without it, a run at 512 px ran out of memory with 7.2 GB free, exactly the estimate."""

_RECORDED_WINDOWS = 1.35
"""Windows whose features the CUDA graphs of guided steps hold in addition. Measured: 3.5 GB at 512
px, 0.9 GB at 256 px; at 512 px only 1.2 GB where stages run side by side, as their peaks do not
coincide.
"""

_VAE_VALUES_PER_PIXEL = 10 * 256
"""Features that the VAE holds for each pixel of the pictures that it decodes at once: ten feature
maps of its widest full-size level, which encoder and decoder hold while a step runs. Measured: 12.3
GB in all at 512 px instead of 7.1 (benchmarks/).
"""

_VALUE_BYTES = {"fp32": 4, "fp16": 2}


Mode = Literal["pipelined", "in turn", "one network at a time"]
"""Whether a window is encoded and another decoded while one is denoised, or stages run one after
another, with all networks on the device, or with one.
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a model uses the memory of its device."""

    mode: Mode
    cuda_graph: bool = False
    """Whether steps are recorded and replayed."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What the networks of a bundle take of a GPU's memory."""

    manifest: Manifest
    provider: Provider
    variant: GraphVariant
    """The variant of the graphs that the CUDA provider would run."""
    engine_bytes: int | None = None
    """What the run's engines take, if that is known; each holds its own memory, whichever runs."""

    def needed_bytes(self, *, pipelined: bool = False, recorded: bool = False) -> int:
        """Returns the free memory that a GPU needs for a run with all networks open and one window
        at a time.

        `pipelined`: a window is encoded and one decoded while another is denoised. `recorded`: the
        CUDA provider records steps as CUDA graphs.
        """
        if self.engine_bytes is not None:
            return int(_SAFETY_FACTOR * (self.engine_bytes + _FIXED_BYTES))
        manifest = self.manifest
        variant = CUDA.graph_variant
        if self.provider is CUDA:
            variant = self.variant
        windows = _FEATURE_WINDOWS_AT_PEAK[variant]
        if recorded:
            windows += _RECORDED_WINDOWS
        files = {entry.weights for entry in manifest.graphs.values()}
        weights_bytes: float = sum(manifest.files[name].bytes for name in files)
        if CUDA.graph_variant in manifest.graphs[FULL_STEP].forms:
            weights_bytes *= _LOADED_SHARE
        needed_bytes = weights_bytes + _FIXED_BYTES + windows * window_bytes(manifest)
        if pipelined:
            needed_bytes += _vae_bytes(manifest)
        return int(_SAFETY_FACTOR * needed_bytes)


def memory_plan(
    factory: SessionFactory, graphs: Sequence[str], on_notice: NoticeCallback
) -> MemoryPlan:
    """Returns the plan for a model; on the CPU, stages run in turn, as each uses all cores."""
    options = factory.options
    selection = factory.selection
    if options.low_memory:
        return MemoryPlan("one network at a time")
    if selection.gpu is None:
        return MemoryPlan("in turn")
    free_bytes = free_memory_bytes(selection.gpu.index)
    estimate = MemoryEstimate(
        factory.bundle.manifest,
        selection.provider,
        factory.variant(FULL_STEP),
        factory.memory_bytes(graphs) if factory.compiled else None,
    )
    cuda_graph: bool | None = factory.cuda_graph
    if factory.cuda_graph and options.cuda_graph is None and selection.provider is CUDA:
        cuda_graph = None
    plan = plan_memory(estimate, free_bytes, cuda_graph=cuda_graph)
    if plan.mode == "one network at a time" and free_bytes is not None:
        on_notice(
            "memory of the device is short (this bundle takes "
            f"about {estimate.needed_bytes() / 1e9:.1f} GB, {free_bytes / 1e9:.1f} "
            "GB is free): one network at a time is kept on it, which is slower"
        )
    return plan


def plan_memory(
    estimate: MemoryEstimate, free_bytes: int | None, *, cuda_graph: bool | None
) -> MemoryPlan:
    """Returns the plan for a GPU with so much free memory; None = unknown, which is taken as enough
    for all networks. `cuda_graph`: whether to record steps; None = where there is room.
    """
    if free_bytes is None:
        return MemoryPlan("pipelined", cuda_graph is True)
    if estimate.needed_bytes() > free_bytes:
        return MemoryPlan("one network at a time", cuda_graph is True)
    pipelined = estimate.needed_bytes(pipelined=True) <= free_bytes
    if cuda_graph is None:
        cuda_graph = estimate.needed_bytes(pipelined=pipelined, recorded=True) <= free_bytes
    return MemoryPlan("pipelined" if pipelined else "in turn", cuda_graph)


def window_bytes(manifest: Manifest) -> int:
    """Returns the device memory of one more window in a full guided step, by estimate."""
    features = manifest.frames * manifest.latent_px**2 * manifest.unet["widths"][0]
    value_bytes = _VALUE_BYTES[manifest.arithmetic]
    return int(_FEATURES_AT_ONCE * _HALVES * features * value_bytes)


def _vae_bytes(manifest: Manifest) -> int:
    """Returns the device memory of the VAE's features while a step runs, by estimate."""
    latents = manifest.graphs[VAE_DECODER].inputs[0]
    pictures = usual_shape(latents.shape, manifest.ranges)[0]
    values = pictures * manifest.resolution_px**2 * _VAE_VALUES_PER_PIXEL
    return values * _VALUE_BYTES[manifest.arithmetic]
