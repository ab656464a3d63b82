"""NVIDIA's real TensorRT-RTX plug-in without a GPU: it registers, offers its device, allocates, copies and compiles.
Opening an engine needs a real driver. See tests/tensorrt_stand_in/README.md."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.runtime.sessions.builders import RTX_KERNEL_CACHE, rtx_options
from tests.small import small_bundle
from tests.tensorrt_stand_in.build import REPOSITORY, CannotBuild, built
from tests.tensorrt_stand_in.run import rtx_environment

pytestmark = pytest.mark.integration

GRAPHS = ("vae_encoder", "denoise_step_cached")
LIMIT_S = 600


def scenario(name: str, **arguments: Any) -> Any:
    try:
        folder = built(rtx=True)
    except CannotBuild as error:
        pytest.skip(f"the stand-in for CUDA {error}")
    command = [sys.executable, "-m", "tests.tensorrt_stand_in.rtx_scenarios", name, json.dumps(arguments)]
    environment = rtx_environment(folder)
    done = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_denoiser_keeps_its_state_in_the_plug_in_s_memory() -> None:
    answer = scenario("denoised", bundle=str(small_bundle()))
    # ONNX Runtime's own CUDA provider does not load, as if only the extra `rtx` were installed.
    assert "cannot open shared object file" in answer["cuda_provider"]
    assert answer["difference"] == 0
    assert answer["largest"] > 0.1


def test_the_plug_in_compiles_a_graph_as_one_engine() -> None:
    found = scenario("compiled", bundle=str(small_bundle()), graphs=GRAPHS)
    manifest = Bundle.load(small_bundle(), verify=False).manifest
    for graph in GRAPHS:
        assert found[graph]["operators"] == {"EPContext": 1}
        assert found[graph]["inputs"] == [tensor.name for tensor in manifest.graphs[graph].inputs]
        assert found[graph]["outputs"] == [tensor.name for tensor in manifest.graphs[graph].outputs]
        assert found[graph]["bytes"] > 100_000


def test_the_plug_in_takes_every_option_that_it_is_given(tmp_path: Path) -> None:
    shapes = {"image": ((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}
    given = [
        rtx_options(),
        rtx_options(shapes=shapes),
        {**rtx_options(), "nv_max_workspace_size": "500000000"},
        {**rtx_options(shapes=shapes), RTX_KERNEL_CACHE: str(tmp_path / "kernels")},
    ]
    assert scenario("refused", bundle=str(small_bundle()), options=given) == [""] * len(given)
    wrong = [{"enable_cuda_graph": "2"}, {"nv_max_workspace_size": "1e6"}, {"nv_no_such_option": "1"}]
    assert all(scenario("refused", bundle=str(small_bundle()), options=wrong))
