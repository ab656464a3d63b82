"""Scenarios that tests run in a process with the stand-in: `python -m
tests.tensorrt_stand_in.scenarios NAME JSON`.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.bundle.manifest import Bundle, step_graph
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.compiler import CompileOrder, run_compiler
from latentsync_trt.runtime.engines import builders
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Float32Array

COEFFICIENTS = np.array([0.9, -0.1, 0.05, 1.1, -0.4], np.float32)


def pictures(
    bundle: str, settings: list[dict[str, Any]], provider: str = "tensorrt"
) -> list[dict[str, Any]]:
    """Largest relative difference of a run on the provider from one on the CPU, for each of
    `settings`.

    `settings`: those of `Run`; "resolutions", one after another on the same model; "repeat"; else
    `RuntimeOptions`.
    """
    loaded = Bundle.load(Path(bundle), verify=False)
    answers = []
    for setting in settings:
        repeat = setting.pop("repeat", 1)
        resolutions = setting.pop("resolutions", [None])
        run = Run(
            **{each.name: setting.pop(each.name) for each in fields(Run) if each.name in setting}
        )
        with closing(
            open_model(loaded, select_provider(provider), RuntimeOptions(**setting), run.graphs())
        ) as model:
            there = [[run.painted(model, px) for px in resolutions] for _ in range(repeat)]
        kept = RuntimeOptions(
            **{name: value for name, value in setting.items() if name == "dynamic"}
        )
        with closing(open_model(loaded, Selection("cpu"), kept, run.graphs())) as on_cpu:
            here = [run.painted(on_cpu, px) for px in resolutions]
        differences = [_difference(*both) for one in there for both in zip(one, here, strict=True)]
        mode = model.memory_plan.mode
        answers.append({"difference": max(differences), "notices": model.notices, "mode": mode})
    return answers


@dataclass(frozen=True)
class Run:
    """What is painted: latents after some steps, and with `faces` the outputs of the other
    graphs.
    """

    guidance: float = 1.5
    frames: int | None = None
    cached: bool = True
    faces: bool = True

    def graphs(self) -> list[str]:
        steps = {
            step_graph(guided=self.guidance > 1.0, cached=reuse) for reuse in {False, self.cached}
        }
        return [
            *(("audio_encoder", "vae_encoder", "vae_decoder") if self.faces else ()),
            *sorted(steps),
        ]

    def painted(self, model: Model, resolution: int | None = None) -> list[Float32Array]:
        """Outputs for random inputs."""
        manifest = model.bundle.manifest
        random = np.random.default_rng(5)
        side = (resolution or manifest.resolution_px) // 8
        frames = self.frames or manifest.frames
        tokens = 10 * manifest.audio_layers
        window = [
            random.standard_normal((4, frames, side, side), np.float32),
            random.standard_normal((9, frames, side, side), np.float32),
            random.standard_normal((frames, tokens, manifest.audio_width), np.float32),
        ]
        pictures = random.integers(0, 255, (frames, 8 * side, 8 * side, 3), np.uint8)
        mel = random.standard_normal((1, 80, 3000), np.float32)
        latents = model.run("denoise", partial(self._denoised, model, *window))
        if not self.faces:
            return [latents]
        mask = np.ones((8 * side, 8 * side), np.float32)
        masked, whole = model.run("encode", lambda: model.vae.encode_faces(pictures, mask))
        decoded = model.run("decode", lambda: model.vae.decode_faces(whole))
        return [
            latents,
            masked,
            whole,
            np.stack(decoded).astype(np.float32),
            model.audio_encoder(mel),
        ]

    def _denoised(self, model: Model, latents: Float32Array, *others: Float32Array) -> Float32Array:
        for part in (latents, -latents):  # the second finds the buffers of the first
            model.denoiser.begin(part, *others, self.guidance)
            for number in range(4):
                reuse = self.cached and number % 2 == 1
                model.denoiser.step(900 - 100 * number, COEFFICIENTS, cached=reuse)
        return model.denoiser.latents()


def _difference(one: list[Float32Array], other: list[Float32Array]) -> float:
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(one, other, strict=True)
    )


def failures(
    bundle: str, faults: list[str], graph: str = "vae_encoder", prepare: bool = False
) -> list[dict[str, str]]:
    """The error of opening a graph under each of `faults`; `prepare`: its engine was built
    before.
    """
    answers = []
    for fault in faults:
        notices: list[str] = []
        engines = _engines(bundle, notices)
        if prepare:
            engines.build(graph)
        os.environ["STAND_IN_FAULTS"] = fault
        ending = _ending(lambda: engines.open(graph).session.close())  # noqa: B023
        answers.append({**ending, "notices": "\n".join(notices)})
        os.environ["STAND_IN_FAULTS"] = ""
    return answers


def built(
    bundle: str, graph: str = "vae_encoder", provider_option: Sequence[str] = ()
) -> dict[str, Any]:
    """Builds an engine, opens it, and returns what is known of it."""
    engines = _engines(bundle, [], provider_option=tuple(provider_option))
    engines.open(graph).session.close()
    entry = engines.cache.find(engines.key(graph))
    assert entry is not None
    return {"memory_bytes": entry.device_memory_bytes, "folder": str(entry.folder)}


def compiled(path: str) -> dict[str, Any]:
    """The answer of the compiler for a graph."""
    return asdict(run_compiler(CompileOrder("tensorrt", path, {})))


def run_failures(
    bundle: str, faults: list[str], graph: str = "vae_encoder"
) -> list[dict[str, str]]:
    """The error of running an open engine under each of `faults`, and of a run after them."""
    engines = _engines(bundle, [])
    session = engines.open(graph).session
    zeros = {
        tensor.name: np.zeros([int(size) for size in tensor.shape], tensor.dtype)
        for tensor in session.inputs
    }
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


def _engines(bundle: str, notices: list[str], device: int = 0, **options: Any) -> SessionFactory:
    cache = EngineCache(cache_folder(), notices.append)
    selection = select_provider("tensorrt", device)
    runtime = RuntimeOptions(device=device, **options)
    return SessionFactory(Bundle.load(Path(bundle), verify=False), selection, runtime, cache)


def other_version(bundle: str) -> dict[str, str]:
    """Builds where Python's tensorrt is of another version than the library that ONNX Runtime
    loads.
    """
    usual = builders.visible_only

    def visible(gpu: Any) -> dict[str, str]:
        return {**usual(gpu), "STAND_IN_VERSION": "101602"}

    builders.visible_only = visible
    return _ending(lambda: _engines(bundle, []).build("vae_encoder"))


def second_gpu(bundle: str) -> dict[str, Any]:
    """Opens an engine on the second of two GPUs."""
    engines = _engines(bundle, [], device=1)
    session = engines.open("denoise_step").session
    used = ctypes.CDLL("libcudart.so.13").stand_in_used_bytes
    used.restype = ctypes.c_size_t
    return {
        "gpu": engines.key("denoise_step").gpu,
        "used": [used(0), used(1)],
        "open": session.provider,
    }


def main() -> None:
    """Runs one and prints what it returns."""
    name, arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[name](**json.loads(arguments))) + "\n")


if __name__ == "__main__":
    main()
