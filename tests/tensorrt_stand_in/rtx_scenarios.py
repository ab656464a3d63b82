"""What tests have done with NVIDIA's TensorRT-RTX plug-in, over stand-ins for CUDA's runtime and driver:
`python -m tests.tensorrt_stand_in.rtx_scenarios NAME JSON`."""

import collections
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import EngineBuildError
from latentsync_trt.runtime.compiler import CONTEXT_MODEL
from latentsync_trt.runtime.networks.denoiser import GraphDenoiser
from latentsync_trt.runtime.providers.diagnose import rtx_devices
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.libraries import load_problem, provider_library, rtx_version
from latentsync_trt.runtime.sessions.builders import RtxBuilder
from latentsync_trt.runtime.sessions.session import CPU, Session, SessionSettings
from latentsync_trt.types import Float32Array, WindowBatch

_NOTHING_TAKEN = {"nv_op_types_to_exclude": ",".join(sorted({schema.name for schema in onnx.defs.get_all_schemas()}))}
"""Options that leave every node to other providers."""

COEFFICIENTS = np.array([0.9, -0.1, 0.05, 1.1, -0.4], np.float32)


def compiled(bundle: str, graphs: Sequence[str]) -> dict[str, Any]:
    """Has the plug-in compile graphs; operators and inputs of the context models, and bytes of the engines."""
    # Names the GPU to compile for, for which the compiler would ask a real driver.
    given, gpu = {"nv_target_sm": "sm89"}, Gpu(0, "GPU", "8.9", 2**34)
    loaded, found = Bundle.load(Path(bundle), verify=False), {}
    for graph in graphs:
        entry = loaded.manifest.graphs[graph]
        builder = RtxBuilder(entry, {}, given, gpu, rtx_version(), Path("unused"), loaded.manifest.precision, False)
        with tempfile.TemporaryDirectory() as folder:
            builder.build(loaded.graph_path(graph), Path(folder))
            model = onnx.load(Path(folder) / CONTEXT_MODEL, load_external_data=False).graph
            found[graph] = {
                "operators": collections.Counter(node.op_type for node in model.node),
                "inputs": [value.name for value in model.input],
                "outputs": [value.name for value in model.output],
                "bytes": sum(path.stat().st_size for path in Path(folder).glob("*.engine")),
            }
    return found


def refused(bundle: str, options: Sequence[dict[str, str]]) -> list[str]:
    """Why the plug-in does not take each of some options; empty where it does."""
    answers = []
    for given in options:
        settings = SessionSettings(plugin_devices=_devices(), plugin_options={**given, **_NOTHING_TAKEN})
        answers.append("")
        try:
            Session(Path(bundle) / "vae_encoder.onnx", settings).close()
        except EngineBuildError as error:
            answers[-1] = str(error)
    return answers


def denoised(bundle: str) -> dict[str, Any]:
    """Denoises with state in the plug-in's memory; every node is left to the CPU provider, as nothing runs engines."""
    loaded = Bundle.load(Path(bundle), verify=False)
    plugin = SessionSettings(plugin_devices=_devices(), plugin_options=_NOTHING_TAKEN)
    there = _latents(loaded, plugin, "cuda")
    here = _latents(loaded, SessionSettings(providers=CPU), "cpu")
    return {
        "difference": float(np.abs(there - here).max()),
        "largest": float(np.abs(here).max()),
        "cuda_provider": load_problem(str(provider_library("cuda"))),
    }


def _latents(bundle: Bundle, settings: SessionSettings, device: str) -> Float32Array:
    sessions: dict[str, Session] = {}

    def session(graph: str) -> Session:
        if graph not in sessions:
            sessions[graph] = Session(bundle.graph_path(graph), settings)
        return sessions[graph]

    denoiser = GraphDenoiser(session, device, 0)
    random, side, frames = np.random.default_rng(4), bundle.manifest.latent_px, bundle.manifest.frames
    audio = (1, frames, 10 * bundle.manifest.audio_layers, bundle.manifest.audio_width)
    shapes = ((1, 4, frames, side, side), (1, 9, frames, side, side), audio)
    denoiser.begin(
        WindowBatch(*(random.standard_normal(shape, np.float32) for shape in shapes), 1.5, unguided_too=True)
    )
    # Each graph once: inputs of nodes on the CPU are copied there when they are bound, not when they are read.
    for timestep, cached, guided in ((800, False, True), (600, True, True), (400, False, False), (200, True, False)):
        denoiser.step(timestep, COEFFICIENTS, cached=cached, guided=guided)
    return denoiser.latents()


def _devices() -> tuple[Any, ...]:
    devices = tuple(rtx_devices(0))
    if not devices:
        raise RuntimeError("the plug-in offers no device")
    return devices


def main() -> None:
    """Runs one and prints what it returns."""
    name, arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[name](**json.loads(arguments))) + "\n")


if __name__ == "__main__":
    main()
