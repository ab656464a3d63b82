"""Scenarios that tests run in a process with the stand-in: `python -m tests.tensorrt_stand_in.scenarios NAME JSON`."""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.bundle.manifest import Bundle, step_graph
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.compiler import CompileOrder, run_compiler
from latentsync_trt.runtime.model import Networks
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.runtime.engines import builders
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.types import Float32Array, WindowBatch

COEFFICIENTS = np.array([0.9, -0.1, 0.05, 1.1, -0.4], np.float32)


def pictures(bundle: str, settings: list[dict[str, Any]], provider: str = "tensorrt") -> list[dict[str, Any]]:
    """Largest relative difference of a run on the provider from one on the CPU, for each of `settings`.

    `settings`: those of `_RUN`; "resolutions", one after another on the same networks; "repeat"; else `RuntimeOptions`.
    """
    loaded = Bundle.load(Path(bundle), verify=False)
    answers = []
    for setting in settings:
        repeat, resolutions = setting.pop("repeat", 1), setting.pop("resolutions", [None])
        run = {name: setting.pop(name) for name in _RUN if name in setting}
        if "windows" in run:  # engines are built for as many as a run denoises together
            setting["windows_per_batch"] = run["windows"]
        notices: list[str] = []
        with opened(loaded, select_provider(provider), notices, **setting) as networks:
            there = [[_painted(networks, px, **run) for px in resolutions] for _ in range(repeat)]
            low = networks.low_memory
        kept = {name: value for name, value in setting.items() if name == "dynamic"}
        with opened(loaded, Selection("cpu"), [], **kept) as networks:
            here = [_painted(networks, px, **run) for px in resolutions]
        differences = [_difference(*both) for one in there for both in zip(one, here, strict=True)]
        answers.append({"difference": max(differences), "notices": notices, "low": low})
    return answers


_RUN = ("guidance", "unguided_too", "windows", "frames", "cached", "faces")


@contextmanager
def opened(bundle: Bundle, selection: Selection, notices: list[str], **options: Any) -> Iterator[Networks]:
    """Networks, closed at the end."""
    networks = Networks(bundle, selection, RuntimeOptions(**options), on_notice=notices.append)
    try:
        yield networks
    finally:
        networks.close()


def _painted(
    networks: Networks,
    resolution: int | None = None,
    *,
    guidance: float = 1.5,
    unguided_too: bool = False,
    windows: int = 1,
    frames: int | None = None,
    cached: bool = True,
    faces: bool = True,
) -> list[Float32Array]:
    """Outputs for random inputs: latents after some steps, and with `faces` those of the other graphs."""
    manifest, random = networks.bundle.manifest, np.random.default_rng(5)
    side, frames = (resolution or manifest.resolution_px) // 8, frames or manifest.frames
    tokens = 10 * manifest.audio_layers
    batch = WindowBatch(
        random.standard_normal((windows, 4, frames, side, side), np.float32),
        random.standard_normal((windows, 9, frames, side, side), np.float32),
        random.standard_normal((windows, frames, tokens, manifest.audio_width), np.float32),
        guidance,
        unguided_too=unguided_too,
    )
    denoiser = networks.denoiser
    kinds = {guidance > 1.0, guidance > 1.0 and not unguided_too}
    steps = {step_graph(guided=kind, cached=reuse) for kind in kinds for reuse in {False, cached}}
    networks.prepare(("audio_encoder", "vae_encoder", *sorted(steps), "vae_decoder"))
    pictures = random.integers(0, 255, (frames, 8 * side, 8 * side, 3), np.uint8)
    mel = random.standard_normal((1, 80, 3000), np.float32)

    def paint() -> list[Float32Array]:
        for part in (batch, replace(batch, latents=-batch.latents)):  # the second finds the buffers of the first
            denoiser.begin(part)
            for number in range(4):
                guided = not (unguided_too and number >= 2)
                reuse = cached and number % 2 == 1
                denoiser.step(900 - 100 * number, COEFFICIENTS, cached=reuse, guided=guided)
        latents = denoiser.latents()
        if not faces:
            return [latents]
        masked, whole = networks.codec.encode_faces(pictures, np.ones((8 * side, 8 * side), np.float32))
        return [latents, masked, whole, np.stack(networks.codec.decode_faces(whole)).astype(np.float32)]

    painted = networks.run(paint)
    return [*painted, networks.encode_mel(mel)] if faces else painted


def _difference(one: list[Float32Array], other: list[Float32Array]) -> float:
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(one, other, strict=True))


def failures(bundle: str, faults: list[str], graph: str = "vae_encoder", prepare: bool = False) -> list[dict[str, str]]:
    """The error of opening a graph under each of `faults`; `prepare`: its engine was built before."""
    answers = []
    for fault in faults:
        notices: list[str] = []
        engines = _engines(bundle, notices)
        if prepare:
            engines.build(graph)
        os.environ["STAND_IN_FAULTS"] = fault
        answers.append({**_ending(lambda: engines.open(graph).session.close()), "notices": "\n".join(notices)})  # noqa: B023
        os.environ["STAND_IN_FAULTS"] = ""
    return answers


def built(bundle: str, graph: str = "vae_encoder", provider_option: Sequence[str] = ()) -> dict[str, Any]:
    """Builds an engine, opens it, and returns what is known of it."""
    engines = _engines(bundle, [], provider_option=tuple(provider_option))
    engines.open(graph).session.close()
    entry = engines.cache.find(engines.key(graph))
    assert entry is not None
    return {"memory_bytes": entry.device_memory_bytes, "folder": str(entry.folder)}


def compiled(path: str) -> dict[str, Any]:
    """The answer of the compiler for a graph."""
    return asdict(run_compiler(CompileOrder("tensorrt", path, {})))


def run_failures(bundle: str, faults: list[str], graph: str = "vae_encoder") -> list[dict[str, str]]:
    """The error of running an open engine under each of `faults`, and of a run after them."""
    engines = _engines(bundle, [])
    session = engines.open(graph).session
    zeros = {tensor.name: np.zeros([int(size) for size in tensor.shape], tensor.dtype) for tensor in session.inputs}
    answers = []
    for fault in [*faults, ""]:
        os.environ["STAND_IN_FAULTS"] = fault
        answers.append(_ending(lambda: session.run(zeros)))
    return answers


def _ending(action: Callable[[], Any]) -> dict[str, str]:
    try:
        action()
    except LatentSyncError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": "", "text": ""}


def _engines(bundle: str, notices: list[str], device: int = 0, **options: Any) -> Engines:
    cache = EngineCache(cache_folder(), notices.append)
    selection = select_provider("tensorrt", device)
    runtime = RuntimeOptions(device=device, **options)
    return SessionFactory(Bundle.load(Path(bundle), verify=False), selection, runtime, cache, notices.append)


def other_version(bundle: str) -> dict[str, str]:
    """Builds where Python's tensorrt is of another version than the library that ONNX Runtime loads."""
    usual = builders.visible_only

    def visible(gpu: Any) -> dict[str, str]:
        return {**usual(gpu), "STAND_IN_VERSION": "101602"}

    builders.visible_only = visible
    return _ending(lambda: _engines(bundle, []).build("vae_encoder"))


def second_gpu(bundle: str) -> dict[str, Any]:
    """Opens an engine on the second of two GPUs."""
    engines = _engines(bundle, [], device=1)
    session = engines.open("vae_encoder").session
    used = ctypes.CDLL("libcudart.so.13").stand_in_used_bytes
    used.restype = ctypes.c_size_t
    return {"gpu": engines.key("vae_encoder").gpu, "used": [used(0), used(1)], "open": session.provider}


def main() -> None:
    """Runs one and prints what it returns."""
    name, arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[name](**json.loads(arguments))) + "\n")


if __name__ == "__main__":
    main()
