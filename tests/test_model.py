"""How a bundle is opened: on which provider, and what runs before it is used."""

import gc
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.bundle.manifest import step_graph
from latentsync_trt.errors import EngineBuildError, LatentSyncError, OutOfMemory, OutputError
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.sync.model_slot import graphs_for
from tests.cache_worker import PATIENCE_S
from tests.compiling import COMPILING, CopyBuilder
from tests.device import DemoModels, Device, denoised

pytestmark = pytest.mark.integration

TWO = ("vae_encoder", "denoise_step")
REFUSED = EngineBuildError("denoise_step: TensorRT built no engine: no kernel for Attention")
FULL = OutputError("/cache: the disk is full")


@pytest.mark.parametrize(
    ("method", "error"), [("build", REFUSED), ("open", REFUSED), ("build", FULL)]
)
def test_auto_goes_on_with_the_next_provider_and_a_named_one_fails(
    make: DemoModels, builder: CopyBuilder, device: Device, method: str, error: LatentSyncError
) -> None:
    builder.errors[method] = error
    with pytest.raises(type(error), match=str(error)):
        make(replace(COMPILING, is_named=True), TWO)
    assert device.networks() == set()  # what was open has been closed
    model = make(COMPILING, TWO)
    assert model.selection.name == "cpu"
    assert any(
        "tensorrt is not used" in notice and notice.endswith(f": {error}")
        for notice in model.notices
    )
    assert {time.provider for time in model.times()} == {"cpu"}


def test_too_little_memory_does_not_change_the_provider(
    make: DemoModels, builder: CopyBuilder
) -> None:
    builder.errors["open"] = OutOfMemory("denoise_step: out of memory; use --low-memory")
    with pytest.raises(OutOfMemory, match="use --low-memory"):
        make(COMPILING, TWO)


def test_on_a_gpu_each_graph_runs_once_before_it_is_used(
    make: DemoModels, builder: CopyBuilder
) -> None:
    model = make(COMPILING, [*graphs_for(SyncOptions()), *graphs_for(SyncOptions(guidance=1))])
    steps = {
        step_graph(guided=guided, cached=cached)
        for guided in (True, False)
        for cached in (True, False)
    }
    # The VAE encodes masked faces and whole ones.
    expected = dict.fromkeys({"audio_encoder", "vae_decoder", *steps}, 1) | {"vae_encoder": 2}
    assert {time.graph: time.runs for time in model.times()} == expected


def test_what_is_closed_is_freed(make: DemoModels, device: Device) -> None:
    model = make()
    denoised(model)
    assert len(device.networks()) == 3
    model.close()
    gc.collect()
    assert device.networks() == set()
    model.close()


# The threads of its stages.


def test_a_stage_always_runs_in_its_own_thread(make: DemoModels) -> None:
    """ONNX Runtime keeps handles and recorded CUDA graphs for each thread."""
    model = make(graphs=TWO)
    first, second = (
        [model.run(stage, threading.get_ident) for stage in get_args(Stage)] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) == 3


def test_stages_run_side_by_side_where_memory_allows_else_in_turn(
    make: DemoModels, builder: CopyBuilder
) -> None:
    on_cpu = make(graphs=TWO)
    on_gpu = make(COMPILING, TWO)
    both = threading.Barrier(2)
    running = list[Stage]()
    most = list[int]()

    def alone(stage: Stage) -> None:
        running.append(stage)
        most.append(len(running))
        time.sleep(0.001)
        running.remove(stage)

    with ThreadPoolExecutor(3) as threads:
        meet = [
            threads.submit(on_gpu.run, stage, partial(both.wait, PATIENCE_S))
            for stage in ("encode", "decode")
        ]
        assert sorted(each.result() for each in meet) == [0, 1]
        stages = [*get_args(Stage)] * 5
        deque(threads.map(lambda stage: on_cpu.run(stage, partial(alone, stage)), stages), maxlen=0)
    assert most == [1] * 15
