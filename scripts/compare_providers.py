"""Runs a bundle's denoising loop and VAE on two providers with the same inputs and prints how far apart they are.

    python scripts/compare_providers.py BUNDLE [--provider cuda] [--reference cpu] [--reference-bundle FP32_BUNDLE]
        [--steps 20] [--repeats 5] [--json FILE]

The inputs are random. The reference can be another bundle of the same networks, usually in float32. The row that it
writes has versions, the GPU, distances in dB and relative, and median times.
"""

import argparse
import json
import platform
import statistics
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, Bundle, step_graph
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion import cache_plan, ddim_schedule, denoise, initial_noise
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.select import Selection, select_provider

SEED = 11
GUIDANCE = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--reference", default="cpu")
    parser.add_argument("--reference-bundle", type=Path)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of --provider; the reference runs once")
    parser.add_argument("--cuda-graph", action="store_true", help="replay CUDA graphs on --provider")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    bundle = Bundle.load(arguments.bundle)
    other = Bundle.load(arguments.reference_bundle) if arguments.reference_bundle else bundle
    with closing(opened(other, select_provider(arguments.reference), RuntimeOptions())) as model:
        reference = results_of(model, arguments.steps, 0)
    options = RuntimeOptions(cuda_graph=arguments.cuda_graph or None)
    selection = select_provider(arguments.provider)
    with closing(opened(bundle, selection, options)) as model:
        ours = results_of(model, arguments.steps, arguments.repeats)
    row = {
        "bundle": bundle.manifest.name,
        "resolution_px": bundle.manifest.resolution_px,
        "precision": bundle.manifest.precision,
        "provider": arguments.provider,
        "reference": f"{arguments.reference} {other.manifest.precision}",
        "cuda_graph": arguments.cuda_graph,
        "steps": arguments.steps,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "gpu": str(selection.gpu or "none"),
        "distances": {name: distance(reference[0][name], ours[0][name]) for name in reference[0]},
        "median_ms": ours[1],
    }
    print(json.dumps(row, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(row, indent=2) + "\n")


def opened(bundle: Bundle, selection: Selection, options: RuntimeOptions) -> Model:
    graphs = [*REQUIRED_GRAPHS, step_graph(guided=False, cached=False)]
    return open_model(bundle, replace(selection, is_named=True), options, graphs, print)


def results_of(model: Model, steps: int, repeats: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Outputs by name, and median milliseconds by what was timed."""
    manifest = model.bundle.manifest
    rng = np.random.default_rng(SEED)
    side, frames = manifest.latent_px, manifest.frames
    faces = rng.integers(0, 256, (frames, manifest.resolution_px, manifest.resolution_px, 3), np.uint8)
    kept = np.ones((manifest.resolution_px, manifest.resolution_px), np.float32)
    conditioning = rng.standard_normal((1, 9, frames, side, side)).astype(np.float32)
    audio = rng.standard_normal((1, frames, 10 * manifest.audio_layers, manifest.audio_width)).astype(np.float32)
    outputs, times = {}, {}
    calls: dict[str, Any] = {"encode": lambda: model.run("encode", lambda: model.vae.encode_faces(faces, kept)[1])}
    for name, interval, guidance in (("loop", 1, GUIDANCE), ("loop_cached_3", 3, GUIDANCE), ("loop_unguided", 1, 1.0)):
        schedule, plan = ddim_schedule(steps), cache_plan(steps, interval)
        known = initial_noise(SEED, side, side), conditioning, audio, guidance, schedule, plan
        calls[name] = partial(model.run, "denoise", partial(denoise, model.denoiser, *known))
    latents = conditioning[0, :4].transpose(1, 0, 2, 3).copy()
    calls["decode"] = lambda: decoded(model, latents) / np.float32(65535)
    for name, call in calls.items():
        outputs[name] = call()
        durations = []
        for _ in range(repeats):
            start = time.perf_counter()
            again = call()
            durations.append(1000 * (time.perf_counter() - start))
            if not np.allclose(again, outputs[name], rtol=0, atol=1e-2 * np.abs(again).max()):
                raise SystemExit(f"{name}: another run differs from the first")
        if durations:
            times[name] = statistics.median(durations)
    return outputs, times


def decoded(model: Model, latents: np.ndarray) -> np.ndarray:
    return np.stack(model.run("decode", partial(model.vae.decode_faces, latents)))


def distance(reference: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """Signal-to-noise ratio in dB and the largest difference relative to the largest value."""
    error = ours - reference
    power = float(np.mean(error**2))
    return {
        "snr_db": float("inf") if power == 0 else float(10 * np.log10(np.mean(reference**2) / power)),
        "relative": float(np.abs(error).max() / np.abs(reference).max()),
    }


if __name__ == "__main__":
    main()
