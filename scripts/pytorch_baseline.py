"""Times the networks of a bundle as PyTorch modules with random weights: the baseline of `measure_networks.py`.

    python scripts/pytorch_baseline.py BUNDLE --json FILE [--provider cuda] [--runs 20] [--eager]

Both eager and compiled, on the inputs of `scripts/measure_networks.py`: float16 on a GPU, float32 on the CPU,
whatever the bundle's precision. The rows have the format of that script.
"""

import argparse
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.bench.rows import Results, Row, bundle_facts, environment
from latentsync_trt.bench.run import Setting, settings_for
from latentsync_trt.bundle.manifest import HIDDEN, Bundle, GraphEntry
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import BundleError
from latentsync_trt.export.networks import ImageAttention, VaeDecoder, VaeEncoder
from latentsync_trt.export.unet import DenoiseStep, UNet, UNetConfig
from latentsync_trt.runtime.compiler import last_line
from latentsync_trt.runtime.engines.output_comparison import SEED, random_inputs
from latentsync_trt.runtime.engines.profiles import dimension_ranges

_DEVIATION = 0.02
"""Of random weights: activations stay within the range of half precision."""

_VAE_LAYER = re.compile(r"encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.conv1\.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda", help="Which device.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--eager", action="store_true", help="Leave out torch.compile, which takes minutes.")
    arguments = parser.parse_args()
    bundle = Bundle.load(arguments.bundle)
    (setting,) = settings_for(bundle, RuntimeOptions(), SyncOptions(), (arguments.provider,), print)
    setting = replace(setting, runs=arguments.runs, warm_up=3)
    facts = {**environment(sys.argv, [setting.selection]), "torch": torch.__version__}
    rows: list[Row] = []
    for row in measure_torch(setting, compiled=not arguments.eager):
        rows.append(row)
        print(f"{row.case}: {row.time.median_ms:.2f} ms", flush=True)
        Results(facts, bundle_facts(bundle.manifest), tuple(rows)).write(arguments.json)


def measure_torch(setting: Setting, *, compiled: bool) -> Iterator[Row]:
    """Rows for each network, eager and compiled; raises `BundleError` where this version exports other networks."""
    device = torch.device(setting.selection.device, setting.selection.device_id)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    for graph, module in _modules(setting.bundle, device, dtype).items():
        inputs = _inputs(setting, setting.bundle.manifest.graphs[graph], device, dtype)
        yield _measure(setting, f"{graph} eager", device, module, inputs)
        if not compiled:
            continue
        try:
            yield _measure(setting, f"{graph} compiled", device, torch.compile(module), inputs)
        except RuntimeError as error:  # no compiler on this machine, or one that does not take the network
            setting.say(f"torch.compile failed on {graph}: {last_line(error)}")
        torch.compiler.reset()


def _measure(
    setting: Setting, case: str, device: torch.device, module: Callable[..., object], inputs: Mapping[str, Tensor]
) -> Row:
    def run() -> None:
        module(*inputs.values())
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.inference_mode(), setting.memory() as memory:
        run()  # compiles
        times_ms, _ = setting.timed(run)
    precision = "fp16" if device.type == "cuda" else "fp32"
    notes = (f"torch {torch.__version__}, {precision}, random weights",)
    row = setting.row("graph", case, times_ms, notes, provider=device.type, memory=memory)
    return replace(row, scenario="pytorch")


def _inputs(setting: Setting, entry: GraphEntry, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """The inputs that scenario "graph" gives to the same graph; `hidden` in the modules' precision."""
    arrays = random_inputs(entry.inputs, dimension_ranges(setting.bundle.manifest, setting.runtime))
    inputs = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return {name: tensor.to(dtype) if name == HIDDEN else tensor for name, tensor in inputs.items()}


def _modules(bundle: Bundle, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Modules by the names of their graphs: the guided steps, and the image codec."""
    # diffusers warns of what `ImageAttention` has no use for, whenever a compiler looks at it.
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    with device:  # made there: 1.3 billion parameters take long to copy
        unet, vae = UNet(_unet_config(bundle)), _vae(bundle)
    vae.set_attn_processor(ImageAttention())
    generator = torch.Generator(device).manual_seed(SEED)
    for network in (unet, vae):
        # Not diffusers' own `to`, which warns of layers to keep in float32 where there are none.
        nn.Module.to(network, dtype=dtype).eval().requires_grad_(False)
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.normal_(0, _DEVIATION, generator=generator)
    return {
        "denoise_step": DenoiseStep(unet, guided=True),
        "denoise_step_cached": DenoiseStep(unet, guided=True, cached=True),
        "vae_encoder": VaeEncoder(vae),
        "vae_decoder": VaeDecoder(vae),
    }


def _unet_config(bundle: Bundle) -> UNetConfig:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | tuple) else value for name, value in bundle.manifest.unet.items()
    }
    try:
        return UNetConfig(**fields)
    except TypeError as error:
        raise BundleError(
            f"{bundle.folder}: its U-Net was exported by another version; export the model again"
        ) from error


def _vae(bundle: Bundle) -> AutoencoderKL:
    """The VAE whose shapes the encoder's weights have."""
    graph = onnx.load(bundle.graph_path("vae_encoder"), load_external_data=False).graph
    widths: dict[int, int] = {}
    layers = groups = 0
    for weight in graph.initializer:
        if found := _VAE_LAYER.fullmatch(weight.name):
            level, layer = int(found[1]), int(found[2])
            layers = max(layers, layer + 1)
            if layer == 0:
                widths[level] = int(weight.dims[0])
    for node in graph.node:
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "num_groups"), groups)
    if not widths or not groups:
        raise BundleError(f"{bundle.folder}: its image encoder is not diffusers' AutoencoderKL")
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        block_out_channels=tuple(widths[level] for level in sorted(widths)),
        layers_per_block=layers,
        norm_num_groups=groups,
        latent_channels=4,
    )


if __name__ == "__main__":
    main()
