"""Estimates of GPU memory: whether all networks fit at once, and how many windows per batch. Pure."""

from collections.abc import Mapping

from latentsync_trt.bundle.manifest import FULL_STEP, VAE_DECODER, DimensionRange, GraphForm, Manifest
from latentsync_trt.runtime.providers.table import CUDA, Provider
from latentsync_trt.runtime.sessions.profiles import usual_shape

_HALVES = 2
"""Conditional and unconditional, of a guided step."""

_FEATURES_AT_ONCE = 32
"""Feature maps of the U-Net's first level that a full step holds at its peak. Measured: 29, as one more window of 16
frames at 256 px took 0.61 GB with the published U-Net in float16 on the CUDA provider (benchmarks/)."""

_USABLE_SHARE = 0.7
"""Of the memory that is free once all networks are open: the image codec needs some, and so may other programs."""

_FIXED_BYTES = 1_550_000_000
"""Besides weights and features, on the CUDA provider: libraries, pictures, cuDNN's workspace. With one window, it gives
the measured peaks: 7.1 GB at 512 px and 5.0 GB at 256 px (benchmarks/)."""

_FEATURES: dict[GraphForm, float] = {"cuda": 1.05, "portable": 2.2}
"""Windows whose features a run holds, by form of the graphs on the CUDA provider (portable: 10.2 GB at 512 px).
TensorRT was not measured: until its engines are built and say what they take, the value of the CUDA form is assumed."""

_LOADED = 0.9
"""Of the weights of a bundle with both forms: stacked projections are stored whole and in parts, one form reads one."""

_MARGIN = 1.1
"""Without it, a run at 512 px ran out of memory with 7.2 GB free, exactly the estimate."""

_RECORDED = 1.35
"""Windows whose features the CUDA graphs of guided steps hold besides. Measured: 3.5 GB at 512 px, 0.9 GB at 256 px; at
512 px only 1.2 GB where stages run side by side, as their peaks do not coincide."""

_VALUES_PER_PIXEL = 10 * 256
"""Of the VAE's features for each picture that it decodes at once: ten feature maps of its widest full-size level, which
encoder and decoder hold while a step runs. Measured: 12.3 GB in all at 512 px instead of 7.1 (benchmarks/)."""

_VALUE_BYTES = {"fp32": 4, "fp16": 2}


def windows_that_fit(manifest: Manifest, ranges: Mapping[str, DimensionRange], free_bytes: int | None) -> int:
    """Windows per batch of the denoiser, at least 1.

    Args:
        ranges: of the engines' variable dimensions. free_bytes: of the device, with all networks open; None if unknown.
    """
    windows = ranges.get("windows")
    if windows is None or free_bytes is None:
        return 1
    return max(1, windows.minimum, min(windows.maximum, int(_USABLE_SHARE * free_bytes) // window_bytes(manifest)))


def window_bytes(manifest: Manifest) -> int:
    """Estimated device memory of one more window in a full guided step."""
    features = manifest.frames * manifest.latent_px**2 * manifest.unet["widths"][0]
    return int(_FEATURES_AT_ONCE * _HALVES * features * _VALUE_BYTES[manifest.arithmetic])


def needed_bytes(
    manifest: Manifest,
    *,
    provider: Provider,
    form: GraphForm,
    side_by_side: bool = False,
    recorded: bool = False,
    engine_bytes: int | None = None,
) -> int:
    """Free memory that a GPU needs for a run with all networks open and one window at a time.

    Args:
        engine_bytes: what the run's engines take, by their provider; each holds its own memory, whoever runs.
        provider: on the GPU. form: of the graphs on the CUDA provider. recorded: as CUDA graphs there.
        side_by_side: a window is encoded and one decoded while another is denoised.
    """
    if engine_bytes is not None:
        return int(_MARGIN * (engine_bytes + _FIXED_BYTES))
    features = _FEATURES[form if provider is CUDA else CUDA.form] + (_RECORDED if recorded else 0.0)
    weights = {entry.weights for entry in manifest.graphs.values()}
    loaded = _LOADED if CUDA.form in manifest.graphs[FULL_STEP].forms else 1.0
    needed = loaded * sum(manifest.files[name].bytes for name in weights)
    needed += _FIXED_BYTES + features * window_bytes(manifest)
    if side_by_side:
        pictures = usual_shape(manifest.graphs[VAE_DECODER].inputs[0].shape, manifest.ranges)[0]
        needed += pictures * manifest.resolution_px**2 * _VALUES_PER_PIXEL * _VALUE_BYTES[manifest.arithmetic]
    return int(_MARGIN * needed)
