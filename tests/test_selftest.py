"""`latentsync-trt selftest`: what it reports of a provider that works, and of those that do not."""

import getpass
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bench.rows import Memory
from latentsync_trt.bench.selftest import run, worker
from latentsync_trt.bench.selftest.privacy import Privacy
from latentsync_trt.bench.selftest.report import LEAST_DB, REPLAY_NOTICE, GraphResult, Outcome, Report
from latentsync_trt.bench.selftest.run import run_part, self_test
from latentsync_trt.bench.selftest.worker import Order, carry_out
from latentsync_trt.bundle.manifest import PRECISIONS, REQUIRED_GRAPHS, Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InferenceError
from latentsync_trt.runtime.compiler.child import Ended
from latentsync_trt.runtime.networks import denoiser
from latentsync_trt.runtime.providers.select import why_unavailable
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.types import WindowBatch
from tests.small import small_bundle

WHOLE = Bundle.load(small_bundle(), verify=False)
MANIFEST = replace(WHOLE.manifest, graphs={name: WHOLE.manifest.graphs[name] for name in REQUIRED_GRAPHS})
BUNDLE = replace(WHOLE, manifest=MANIFEST)
"""Without its unguided graphs, to save time."""
TENSORRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module", autouse=True)
def one_short_window() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "STEPS", 2)
        patch.setattr(run, "WINDOWS", 1)
        yield


def selftest(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["selftest", "--bundle", str(small_bundle()), *arguments])


# A provider that works


@pytest.fixture(scope="module")
def report(one_short_window: None) -> Report:
    """Of the CPU, from processes of its own."""
    return self_test(BUNDLE, "cpu", RuntimeOptions(), "cpu", lambda _: None)


@pytest.fixture
def shown(report: Report, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, which does not measure again."""
    monkeypatch.setattr(run, "self_test", lambda *_: report)
    return selftest


def test_the_cpu_passes(report: Report) -> None:
    assert report.reasons == ()
    assert (report.provider, report.requested) == ("cpu", "cpu")
    assert [graph.graph for graph in report.graphs] == list(REQUIRED_GRAPHS)
    for graph in report.graphs:
        assert graph.nodes == {CPU: graph.nodes_on("cpu")}
        assert graph.nodes_on("cpu") > 100
        assert (graph.build_s, graph.engine_bytes) == (None, None)  # the CPU needs no engines
        assert 0 < (graph.open_s or 0) < 60
        assert 1 < (graph.run_ms or 0) < 60_000
        assert graph.cuda_ms is None
        assert not graph.built_again
    assert [found.case for found in report.pictures] == ["plain", "cached", "plain, second start"]
    assert all(found.near for found in report.pictures)
    assert report.memory is not None
    assert report.memory.host_bytes > 100e6


def test_one_table_and_a_verdict(shown: Callable[..., Result]) -> None:
    result = shown("--provider", "cpu")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["graph", "nodes", "build", "s", "open", "s", "engine", "MB", "run", "ms", "cuda", "ms"]
    for line, graph in zip(lines[3:], REQUIRED_GRAPHS, strict=False):
        name, nodes, build_s, open_s, engine_mb, run_ms, cuda_ms = line.split()
        assert name == graph
        taken, _, total = nodes.partition("/")
        assert taken == total
        assert min(float(open_s), float(run_ms)) >= 0
        assert (build_s, engine_mb, cuda_ms) == ("–", "–", "–")
    heading = "pictures: generated part of the faces, 2 steps, compared with provider cpu; at least 60 dB expected"
    start = lines.index(heading)
    for line, case in zip(lines[start + 1 :], ("plain", "cached", "plain, second start"), strict=False):
        assert line.startswith(f"  {case}: equal, 1 window painted in ")
    assert any(line.startswith("peak memory: host 0.") for line in lines)
    assert lines[-1] == "PASS: cpu, bundle demo, fp32, 128 px"


def test_json_has_versions_and_rows(shown: Callable[..., Result]) -> None:
    result = shown("--provider", "cpu", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["kind"], found["passed"], found["reasons"]) == ("latentsync-trt selftest", True, [])
    assert found["environment"].keys() >= {"latentsync_trt", "onnxruntime", "python", "os", "cpu", "measured_at"}
    assert found["bundle"]["precision"] == "fp32"
    assert [row["graph"] for row in found["graphs"]] == list(REQUIRED_GRAPHS)
    assert found["graphs"][0]["run_ms"] > 0
    assert [row["case"] for row in found["pictures"]] == ["plain", "cached", "plain, second start"]


def test_json_contains_no_paths_and_names(shown: Callable[..., Result]) -> None:
    text = shown("--provider", "cpu", "--json").stdout
    for place in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), small_bundle().parent, Path(sys.prefix)):
        assert f"{place}{os.sep}" not in text
    assert f'"{getpass.getuser()}"' not in text
    assert all("/" not in value for value in json.loads(text)["environment"].values())


def test_auto_reports_on_the_provider_it_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(order: Order, say: Callable[[str], None]) -> Outcome:
        found = canned(order, provider="cuda" if order.provider == "auto" else order.provider)
        return replace(found, passed_over=["passed over tensorrt: no TensorRT"] if order.provider == "auto" else [])

    monkeypatch.setattr(run, "run_part", answer)
    result = selftest("--provider", "auto")
    assert result.exit_code == 0
    assert "note: passed over tensorrt: no TensorRT\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("PASS: cuda, ")


# One that is not there, or dies


@pytest.mark.skipif(why_unavailable("tensorrt") is None, reason="here TensorRT runs")
def test_tensorrt_where_it_does_not_run(report: Report) -> None:
    result = selftest("--provider", "tensorrt", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["passed"] is False
    (reason,) = found["reasons"]
    assert reason.startswith("tensorrt: ")
    assert "install" in reason
    assert found["graphs"] == []
    assert found["environment"]["onnxruntime"] == report.environment["onnxruntime"]


CRASHING = """
import os, signal, sys
from latentsync_trt.bench.selftest import worker
from latentsync_trt.runtime.compiler.child import serve
from latentsync_trt.runtime.sessions.engines import Engines

open_engine = Engines.open

def crash(engines, graph):
    if graph == "vae_encoder":
        print("engine.cpp:77: device lost", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return open_engine(engines, graph)

Engines.open = crash
serve(worker.carry_out)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to die of")
def test_a_provider_that_crashes_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(run, "_WORKER", "crashing")
    result = selftest("--provider", "cpu", "--reference", "none")
    assert result.exit_code == 1
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["audio_encoder"][0] == "132/132"
    assert rows["vae_encoder"] == ["–"] * 6
    how = f"the process died with signal {signal.SIGSEGV:d} (SIGSEGV) while building and opening vae_encoder"
    assert f"  - {how}: engine.cpp:77: device lost\n" in result.stdout
    assert "FAIL: cpu, bundle demo" in result.stdout


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-9, "signal 9 (SIGKILL)"), (-250, "signal 250"), (0xC0000005, "code 0xC0000005"), (1, "exit code 1")],
)
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL has no name there")
def test_how_a_process_ended(code: int, expected: str) -> None:
    assert str(Ended(code, "")) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to one process")
def test_ctrl_c_ends_the_process_that_runs_the_provider() -> None:
    command = [sys.executable, "-m", "latentsync_trt", "selftest", "--provider", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("first start: ")
        (child,) = psutil.Process(running.pid).children()
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
    assert running.returncode == 1
    assert stderr.splitlines()[-1].startswith("error: interrupted")
    assert not child.is_running()


# One that computes something else


@pytest.mark.slow
def test_pictures_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference has different weights."""
    for path in small_bundle().iterdir():
        content = path.read_bytes()
        if path.name == "vae.weights":
            content = (np.frombuffer(content, np.float32) * np.float32(1.05)).tobytes()
        (tmp_path / path.name).write_bytes(content)

    def in_this_process(order: Order, say: Callable[[str], None]) -> Outcome:
        outcome = Outcome()
        bundle = str(tmp_path) if "reference" in str(order.options["engine_cache"]) else order.bundle
        carry_out(
            asdict(replace(order, bundle=bundle, timed=False)),
            lambda **fields: outcome.add(json.loads(json.dumps(fields))),
        )
        return outcome

    monkeypatch.setattr(run, "run_part", in_this_process)
    broken = self_test(BUNDLE, "cpu", RuntimeOptions(), "cpu", lambda _: None)
    assert [found.near for found in broken.pictures] == [False, False, False]
    for case in ("plain", "cached", "plain, second start"):
        (reason,) = (text for text in broken.reasons if text.startswith(f"pictures, {case}: "))
        assert "dB to those of cpu, at least 60 are expected" in reason


# One process


def outcome_of(order: Order) -> Outcome:
    outcome = Outcome()
    carry_out(asdict(order), lambda **fields: outcome.add(fields))
    assert outcome.done
    return outcome


def test_what_cannot_be_opened_is_not_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_engine, opened = Engines.open, list[str]()

    def refuse(engines: Engines, graph: str, **fields: Any) -> Any:
        opened.append(graph)
        if graph == "vae_decoder":
            raise EngineBuildError("vae_decoder: no kernel")
        return open_engine(engines, graph, **fields)

    monkeypatch.setattr(Engines, "open", refuse)
    options = {"engine_cache": str(tmp_path / "cache")}
    graphs = ("vae_decoder", "vae_encoder")
    outcome = outcome_of(
        Order("cpu", str(small_bundle()), options, graphs, presets=("quality",), windows=1, pictures=str(tmp_path))
    )
    assert {graph: result.error for graph, result in outcome.graphs.items()} == {
        "vae_decoder": "vae_decoder: no kernel",
        "vae_encoder": "",
    }
    assert outcome.failures == ["preset quality: not painted, as vae_decoder cannot be used"]
    assert opened == list(graphs)


def test_a_graph_that_opens_and_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise InferenceError("vae_encoder on cpu: NaN")

    monkeypatch.setattr(worker, "BoundRun", refuse)
    options = {"engine_cache": str(tmp_path / "cache")}
    (result,) = outcome_of(Order("cpu", str(small_bundle()), options, ("vae_encoder",), timed=True)).graphs.values()
    assert (result.error, result.run_ms) == ("vae_encoder on cpu: NaN", None)
    assert result.nodes_on("cpu") > 100


# The verdict


def graph_result(graph: str, **fields: Any) -> GraphResult:
    return GraphResult(
        graph, **{"nodes": {CPU: 9}, "built": True, "build_s": 2.0, "open_s": 0.5, "engine_bytes": 10**6} | fields
    )


def canned(order: Order, provider: str, level: int = 30_000, **graph_fields: Any) -> Outcome:
    """Outcome of a process that carries out its order, and paints gray faces."""
    for preset in order.presets:
        count = order.windows * BUNDLE.manifest.frames
        np.save(order.picture_file(preset), np.full((count, 8, 8, 3), level, np.uint16))
    timed = {"built": False, "run_ms": 7.0} if order.timed else {}
    return Outcome(
        environment={"gpu": "NVIDIA Test"},
        provider=provider,
        graphs={graph: graph_result(graph, **timed | graph_fields) for graph in order.graphs},
        paint_s=dict.fromkeys(order.presets, 1.0),
        painted_on={preset: [provider] for preset in order.presets},
        memory=Memory(10**9, 2 * 10**9),
        done=True,
    )


def judged(monkeypatch: pytest.MonkeyPatch, change: Callable[[Order, Outcome], None], level: int = 30_000) -> Result:
    """The command on a TensorRT that works except for what `change` does to the outcome of each order."""

    def answer(order: Order, say: Callable[[str], None]) -> Outcome:
        tested = order.provider == "tensorrt"
        outcome = canned(order, order.provider, level if tested else 30_000, nodes={TENSORRT if tested else CUDA: 1})
        change(order, outcome)
        return outcome

    monkeypatch.setattr(run, "run_part", answer)
    return selftest("--provider", "tensorrt")


def reasons(result: Result) -> list[str]:
    assert result.exit_code == 1
    assert "FAIL: tensorrt, bundle demo, fp32, 128 px\n" in result.stdout
    return [line.removeprefix("  - ") for line in result.stdout.splitlines() if line.startswith("  - ")]


def test_times_beside_those_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(order: Order, outcome: Outcome) -> None:
        if order.provider == "cuda":
            outcome.graphs = {name: replace(found, run_ms=31.5) for name, found in outcome.graphs.items()}

    result = judged(monkeypatch, slower)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith(" denoise_step "))
    assert row.split() == ["denoise_step", "1", "engine", "2.00", "0.50", "1.0", "7.0", "31.5"]
    assert "peak memory: device 2.00 GB, host 1.00 GB\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("PASS: tensorrt, ")


def test_a_graph_that_does_not_build_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[tuple[str, ...]] = []

    def refuse(order: Order, outcome: Outcome) -> None:
        ordered.append(order.graphs)
        if not order.timed and order.graphs:
            outcome.graphs["vae_decoder"] = GraphResult("vae_decoder", error="/home/x/vae_decoder.onnx: no kernel")

    result = judged(monkeypatch, refuse)
    assert reasons(result) == ["vae_decoder.onnx: no kernel"]
    first, again, *_ = ordered
    assert set(first) - set(again) == {"vae_decoder"}
    assert "denoise_step                  1 engine" in result.stdout


def test_a_second_start_that_builds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_again(order: Order, outcome: Outcome) -> None:
        if order.timed and order.provider == "tensorrt":
            outcome.graphs["vae_encoder"] = graph_result("vae_encoder", nodes={TENSORRT: 1}, built=True)
            outcome.all_notices = ["vae_decoder: other", "/srv/cache: vae_encoder is damaged"]

    start = "vae_encoder: the second start did not find its engine in the cache, and built it again"
    assert reasons(judged(monkeypatch, build_again)) == [f"{start}; cache: vae_encoder is damaged"]


def test_nodes_on_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(order: Order, outcome: Outcome) -> None:
        if order.provider == "tensorrt":
            outcome.graphs["denoise_step"] = graph_result(
                "denoise_step", nodes={TENSORRT: 19, CUDA: 1}, built=not order.timed
            )

    found = reasons(judged(monkeypatch, split))
    assert found == [f"denoise_step: tensorrt was not assigned all of its nodes (1 on {CUDA}, 19 on {TENSORRT})"]


@pytest.mark.parametrize(("offset", "passes"), [(10, True), (100, False)])
def test_a_distance_counts_from_the_limit_on(monkeypatch: pytest.MonkeyPatch, offset: int, passes: bool) -> None:
    """An offset of 65.5 of 65535 levels is 60 dB."""
    result = judged(monkeypatch, lambda order, outcome: None, level=30_000 + offset)
    assert (result.exit_code == 0) is passes
    if not passes:
        assert reasons(result)[0] == "pictures, plain: 56.3 dB to those of cpu, at least 60 are expected"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda outcome: outcome.painted_on.update(quality=["cuda"]), "painted on cuda"),
        (lambda outcome: outcome.notices.append(f"{REPLAY_NOTICE} something else"), "CUDA graphs: something else"),
        (lambda outcome: outcome.failures.append("preset balanced: no memory"), "preset balanced: no memory"),
        (lambda outcome: outcome.graphs.update(vae_encoder=GraphResult("vae_encoder", "NaN")), "vae_encoder: NaN"),
    ],
)
@pytest.mark.parametrize("timed", [False, True])
def test_what_else_fails(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Outcome], None], expected: str, timed: bool
) -> None:
    def at_one_start(order: Order, outcome: Outcome) -> None:
        if order.provider == "tensorrt" and order.timed is timed:
            change(outcome)

    (reason,) = reasons(judged(monkeypatch, at_one_start))
    assert expected in reason


def test_a_reference_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(order: Order, outcome: Outcome) -> None:
        if order.provider == "cpu":
            outcome.paint_s, outcome.failures = {}, ["the process died with signal 9"]

    result = judged(monkeypatch, none)
    assert reasons(result) == ["no pictures of cpu to compare with: the process died with signal 9"]
    assert "pictures: not compared\n" in result.stdout


def test_the_notice_of_replays_that_differ_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = SimpleNamespace(
        cuda_graph=True,
        selection=SimpleNamespace(name="tensorrt", device="cuda", device_id=0),
        check=lambda **_: None,
        without_cuda_graph=lambda: engines,
    )
    pool: Any = SimpleNamespace(engines=engines, session=None, switch=lambda _: None)
    monkeypatch.setattr(denoiser, "GraphDenoiser", lambda *_, **__: SimpleNamespace(begin=lambda batch: None))
    monkeypatch.setattr(denoiser, "replays_faithfully", lambda *_: False)
    notices: list[str] = []
    zeros = np.zeros((1, 1, 1), np.float32)
    denoiser.PooledDenoiser(pool, notices.append).begin(WindowBatch(zeros, zeros, zeros, 1.5))
    assert notices[0].startswith(REPLAY_NOTICE)


# What reaches a bug report


def test_every_precision_has_a_limit() -> None:
    assert set(LEAST_DB) == set(PRECISIONS)


def test_paths_and_names_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "zdenka")
    monkeypatch.setenv("HOME", str(tmp_path / "Zden Ka"))
    given = tmp_path / "Zden Ka" / "my models" / "1.6-512"
    clean = Privacy([given]).clean
    assert clean(f"{given}/unet.onnx: damaged") == "unet.onnx: damaged"
    assert clean(f"{given}: damaged") == "1.6-512: damaged"
    assert clean(f"cache {tmp_path / 'Zden Ka' / 'engines'}: full") == "cache engines: full"
    assert clean("/srv/zdenka/models/x.engine, owner zdenka (Zdenka)") == "x.engine, owner … (…)"
    assert clean(r"C:\Users\zdenka\x.engine is\nlocked") == r"x.engine is\nlocked"
    assert clean("two\n lines") == "two lines"


def test_an_unusable_bundle_is_an_error_without_paths(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["selftest", "--bundle", str(tmp_path / "none"), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"].startswith("none: no bundle there")
    assert str(tmp_path) not in result.stdout


def test_a_process_that_reports_nothing_is_reported_by_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "silent.py").write_text("print('no event'); raise RuntimeError('no context')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(run, "_WORKER", "silent")
    outcome = run_part(Order("cpu", "", {}), lambda _: None)
    assert outcome.failures == ["the process died with exit code 1 while starting: RuntimeError: no context"]
