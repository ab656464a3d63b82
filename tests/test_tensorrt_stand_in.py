"""Provider tensorrt end to end: ONNX Runtime's real provider over a stand-in for TensorRT's and
CUDA's libraries.

What this proves, and what it does not: tests/tensorrt_stand_in/README.md.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import write_manifest
from latentsync_trt.runtime.compiler import CompileOrder, compile_order
from latentsync_trt.runtime.providers.remembered_tests import FOLDER
from tests.cache_worker import until
from tests.clips import decoded, write_clip
from tests.small import small_bundle
from tests.tensorrt_stand_in.stand_in import Ended, StandIn
from tests.toy import write_toy

pytestmark = pytest.mark.integration

SMALL = str(small_bundle())
SAME = 1e-5
"""Relative: the same float32 arithmetic on the same CPU, in graphs that were optimized
differently.
"""
ENDED_S = 300.0
MB = 2**20


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    video, audio = write_clip(tmp_path_factory.mktemp("clip"), 5)
    return str(video), str(audio)


def sync(stand_in: StandIn, clip: tuple[str, str], out: str, *arguments: str) -> Ended:
    given = (
        "--video",
        clip[0],
        "--audio",
        clip[1],
        "-o",
        str(stand_in.work / out),
        "--bundle",
        SMALL,
    )
    return stand_in.command("sync", *given, "--codec", "ffv1", "--steps", "3", *arguments)


def test_build_and_sync(stand_in: StandIn, lip_sync: LipSync, clip: tuple[str, str]) -> None:
    built = stand_in.command("build", "--bundle", SMALL, "--provider", "tensorrt")
    assert built.code == 0, built.err
    assert built.count(r"build nodes=") == 7
    assert built.count(r"build .* strong=1 ") == 7
    run = sync(stand_in, clip, "out.mkv", "--provider", "tensorrt")
    assert run.code == 0, run.err
    # A start from the cache loads engines, and nothing else.
    assert run.count(r"deserialize") == 5
    assert run.count(r"(parse|supports|build|builder|network)\b") == 0
    assert run.log.count("objects left=0") == 1
    assert run.count(r"missing") == 0
    check_captures(run)
    lip_sync.sync(*clip, stand_in.work / "cpu.mkv", SyncOptions(steps=3, codec="ffv1"))
    painted, expected = (
        np.stack(decoded(stand_in.work / name)).astype(int) for name in ("out.mkv", "cpu.mkv")
    )
    assert np.abs(painted - expected).max() <= 1  # a level


def check_captures(run: Ended) -> None:
    """Each CUDA graph is recorded after a plain run, and replayed."""
    steps = [
        line
        for line in run.log
        if line.startswith(("enqueue", "capture", "graph launch", "deserialize"))
    ]
    begins = [index for index, line in enumerate(steps) if line == "capture begin"]
    assert len(begins) == 2  # the full and the cached step
    for begin in begins:
        assert steps[begin - 1].startswith("enqueue")
        assert steps[begin + 1].startswith("enqueue")
        assert steps[begin + 2].startswith("capture end")
        assert steps[begin + 3] == "graph launch"
    assert steps.count("graph launch") > 2 * len(begins)
    assert run.count("cudaStreamSynchronize during capture") == 0


@pytest.mark.slow
def test_every_way_of_running_paints_what_the_cpu_paints(stand_in: StandIn) -> None:
    settings = [
        {"cached": False, "faces": False},
        {"guidance": 1.0, "faces": False},
        {"cuda_graph": False, "repeat": 2},
        {"low_memory": True},
    ]
    answers, ended = stand_in.scenario("pictures", bundle=SMALL, settings=settings)
    for setting, answer in zip(settings, answers, strict=True):
        assert answer["difference"] <= SAME, setting
    assert [answer["mode"] for answer in answers] == [*["pipelined"] * 3, "one network at a time"]
    assert ended.count("build nodes=") == 7
    assert ended.log[-2:][0] == "objects left=0"


def test_a_failed_build_gives_the_reason(stand_in: StandIn) -> None:
    faults = ["refuse=Conv", "parse_error", "build_fails", "oom_build", "builder_null"]
    answers, ended = stand_in.scenario("failures", bundle=SMALL, faults=faults)
    refused, unread, failed, memory, null = answers
    assert [answer["error"] for answer in answers] == [
        *["GraphRefused"] * 3,
        "OutOfMemory",
        "GraphRefused",
    ]
    assert "Conv (node " in refused["text"]
    assert "the model cannot be parsed" in unread["text"]
    assert "not find any implementation" in failed["text"]
    assert "Requested size was 4294967296 bytes" in memory["text"]
    assert "the compiler crashed (exit code 1)" in null["text"]
    assert ended.count("build nodes=") == 0
    assert {path.name for path in stand_in.cache.iterdir()} <= {".locks", FOLDER}


def test_an_engine_of_variable_shapes_runs_at_the_sizes_it_was_built_for(
    stand_in: StandIn, tmp_path: Path
) -> None:
    toy = write_toy(tmp_path / "toy")
    write_manifest(toy.folder, toy.manifest)
    answers, ended = stand_in.scenario(
        "run_failures", bundle=str(toy.folder), faults=[], graph="denoise_step"
    )
    assert answers == [{"error": "", "text": ""}]
    assert ended.count("build .* profiles=1 ") == 1


def test_attention_without_a_fused_kernel_is_built_in_parts(
    stand_in: StandIn, tmp_path: Path
) -> None:
    shapes = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (1, 1, 64, 512)) for name in "qkvy"
    ]
    graph = helper.make_graph(
        [helper.make_node("Attention", list("qkv"), ["y"])], "attention", shapes[:3], shapes[3:]
    )
    path = tmp_path / "attention.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path
    )
    answer, _ = stand_in.scenario("compiled", fault="unfused_attention", path=str(path))
    assert (answer["accepted"], answer["reason"]) == (True, "")


def test_options_reach_the_compiler_and_any_path_may_have_characters_that_the_code_page_lacks(
    stand_in: StandIn, tmp_path: Path
) -> None:
    """On Windows, TensorRT opens files by names in the code page."""
    bundle, cache, temporary = (
        tmp_path / f"{name} ö 漢" for name in ("bundle", "cache", "temporary")
    )
    shutil.copytree(SMALL, bundle)
    temporary.mkdir()
    machine = {"LATENTSYNC_TRT_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}
    own = ["trt_builder_optimization_level=1"]
    found, ended = stand_in.scenario(
        "built", fault="code_page", machine=machine, bundle=str(bundle), provider_option=own
    )
    assert Path(found["folder"]).parent == cache
    assert ended.count("build .* level=1 ") == 1
    assert ended.numbers(r"context bytes=(\d+)") == [found["memory_bytes"]]  # kept with the engine


def test_an_engine_that_does_not_open_says_why_and_memory_is_told_apart(stand_in: StandIn) -> None:
    faults = ["oom_context", "reject_engine"]
    answers, ended = stand_in.scenario("failures", bundle=SMALL, faults=faults, prepare=True)
    memory, rejected = answers
    assert memory["error"] == "OutOfMemory"
    assert "use --low-memory" in memory["text"]
    assert "making it again" not in memory["notices"]
    assert rejected["error"] == "EngineBuildError"
    assert "deserializeCudaEngine: Error Code 1: Serialization" in rejected["text"]
    assert "does not open" in rejected["notices"]
    # One for each, and one more of the engine that was rejected; a good one is not built again for
    # want of memory.
    assert ended.count("build nodes=") == 2


def test_a_failed_run_gives_the_reason_and_the_engine_stays_good(stand_in: StandIn) -> None:
    answers, _ = stand_in.scenario(
        "run_failures", bundle=SMALL, faults=["enqueue_fails", "oom_enqueue"]
    )
    failed, memory, after = answers
    assert failed["error"] == "InferenceError"
    assert "enqueueV3: Error Code 1: Cask " in failed["text"]
    assert memory["error"] == "OutOfMemory"
    assert "Cuda Runtime (out of memory)" in memory["text"]
    assert after["error"] == ""


@pytest.mark.slow
def test_two_versions_of_tensorrt_are_an_error(stand_in: StandIn) -> None:
    answer, ended = stand_in.scenario("other_version", bundle=SMALL)
    assert ended.count("parse|build") == 0  # known before minutes of building
    assert answer["error"] == "EngineBuildError"
    assert "tensorrt is 10.16.2.0" in answer["text"]
    assert "loads TensorRT 10.14.1.0" in answer["text"]


@pytest.mark.slow
def test_the_second_gpu_builds_and_runs(stand_in: StandIn) -> None:
    answer, ended = stand_in.scenario("second_gpu", machine={"STAND_IN_GPUS": "2"}, bundle=SMALL)
    assert answer["gpu"] == "Stand-in GPU 1"
    assert answer["used"][1] > MB > answer["used"][0]
    assert ended.count("builder visible=1$") == 1


@pytest.mark.slow
def test_a_small_gpu_starts_one_network_at_a_time_by_measure(stand_in: StandIn) -> None:
    small = {"STAND_IN_GPU_SHOWN": str(1 << 30)}
    ((answer,), ended) = stand_in.scenario("pictures", machine=small, bundle=SMALL, settings=[{}])
    assert answer["mode"] == "one network at a time"
    assert answer["difference"] <= SAME
    assert ended.count(r"cudaMalloc .* refused") == 0
    assert any("about 1.7 GB, 1.1 GB is free" in notice for notice in answer["notices"])


@pytest.mark.slow
def test_selftest_passes_and_fails(stand_in: StandIn) -> None:
    arguments = ("selftest", "--provider", "tensorrt", "--bundle", SMALL, "--json")
    well = stand_in.command(*arguments)
    assert well.code == 0, well.out + well.err
    report = json.loads(well.out)
    assert report["passed"] is True
    assert "graph launch" in well.log
    broken = stand_in.command(*arguments, faults="enqueue_fails")
    assert broken.code == 1
    assert "Cask convolution execution" in broken.out


@pytest.mark.skipif(
    os.name == "nt", reason="POSIX signals; a console's Ctrl-C cannot be sent to one process"
)
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_ctrl_c_and_kill_end_a_long_build_and_its_compiler(
    stand_in: StandIn, sent: int, code: int
) -> None:
    with stand_in.start(
        "build", "--bundle", SMALL, "--provider", "tensorrt", faults="slow_build=600"
    ) as process:
        until(lambda: "build sleeping" in stand_in.log())
        process.send_signal(sent)  # the compiler itself gets none
        assert process.wait(ENDED_S) == code
    (compiler,) = stand_in.processes("build sleeping")
    until(lambda: not runs(compiler))


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")
def test_nvidia_s_compiler_takes_every_setting_of_a_build(tmp_path: Path) -> None:
    """All of the worker, on a compiler that runs without a GPU and has the interface of TensorRT's
    module.
    """
    trt = pytest.importorskip(
        "tensorrt_rtx", reason="the compiler has wheels for Linux and Windows only"
    )
    order = CompileOrder(
        "tensorrt_rtx",
        str(small_bundle() / "vae_encoder.onnx"),
        {},
        target="SM89",
        optimization_level=3,
        folder=str(tmp_path),
        compute_capability="8.9",
    )
    answer = compile_order(trt, order)
    assert answer.accepted, answer
    assert (tmp_path / "model.engine").stat().st_size == answer.engine_bytes
    assert answer.device_memory_bytes is None  # an engine of RTX opens on a GPU only
