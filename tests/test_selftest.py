"""`latentsync-trt selftest`: what it reports of a provider that works, and of those that do not."""

import getpass
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latentsync_trt import LipSync
from latentsync_trt.bench import selftest
from latentsync_trt.bench.selftest import PICTURES, GraphRow, Part, Report, run_part, self_test
from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.unexpected import redacted
from tests.compiling import compiling_provider
from tests.small import small_bundle

pytestmark = pytest.mark.integration

WHOLE = Bundle.load(small_bundle(), verify=False)
MANIFEST = replace(WHOLE.manifest, graphs={name: WHOLE.manifest.graphs[name] for name in REQUIRED_GRAPHS})
BUNDLE = replace(WHOLE, manifest=MANIFEST)
"""Without its unguided graphs, to save time."""
TENSORRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


@pytest.fixture(scope="module", autouse=True)
def one_short_window() -> Iterator[None]:
    """Instead of two windows of more steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "STEPS", 2)
        patch.setattr(selftest, "WINDOWS", 1)
        yield


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["selftest", "--bundle", str(small_bundle()), *arguments])


# A provider that works


@pytest.fixture(scope="module")
def report(one_short_window: None) -> Report:
    """Of the CPU, from processes of its own."""
    return self_test(BUNDLE, "cpu", RuntimeOptions(), lambda _: None, REQUIRED_GRAPHS)


def test_the_cpu_passes(report: Report) -> None:
    assert report.passed
    assert report.stages == {"first start": (), "second start": ()}
    assert (report.provider, report.requested) == ("cpu", "cpu")
    assert [row.graph for row in report.graphs] == list(REQUIRED_GRAPHS)
    for row in report.graphs:
        assert list(row.nodes) == [CPU]
        assert row.nodes[CPU] > 100
        assert (row.built, row.build_s, row.engine_bytes) == (False, None, None)  # the CPU needs no engines
        assert (row.open_s or 0) > 0
        assert all((value or 0) > 0 for value in (row.first_ms, row.mean_ms))
    assert (report.reference, report.pictures) == ("", "")


def test_json_has_versions_and_rows_and_no_paths_and_names(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "self_test", lambda *_: report)  # which is not measured again
    result = command("--provider", "cpu", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["kind"], found["passed"]) == ("latentsync-trt selftest", True)
    assert found["environment"].keys() >= {"latentsync_trt", "onnxruntime", "python", "os", "cpu", "measured_at"}
    assert found["bundle"]["precision"] == "fp32"
    assert [row["graph"] for row in found["graphs"]] == list(REQUIRED_GRAPHS)
    for place in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), small_bundle().parent, Path(sys.prefix)):
        assert f"{place}{os.sep}" not in result.stdout
    assert f'"{getpass.getuser()}"' not in result.stdout
    assert all("/" not in value for value in found["environment"].values())


# One that is not there, or dies


CRASHING = """
import os, signal, sys
from latentsync_trt.bench import selftest
from latentsync_trt.runtime.engines.session_factory import SessionFactory

open_engine = SessionFactory.open

def crash(engines, graph):
    if graph == "vae_encoder":
        print("engine.cpp:77: device lost", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return open_engine(engines, graph)

def carry_out(orders, emit):
    SessionFactory.open = crash
    selftest.carry_out(orders, emit)
"""


@posix
def test_a_provider_that_crashes_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(selftest, "carry_out", importlib.import_module("crashing").carry_out)
    result = command("--provider", "cpu")
    assert result.exit_code == 1
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["audio_encoder"][0] == "132/132"
    assert rows["vae_encoder"] == ["–"] * 7
    how = f"the process died with signal {signal.SIGSEGV:d} (SIGSEGV) while building and opening vae_encoder"
    assert f"first start: FAIL\n  - {how}: engine.cpp:77: device lost\n" in result.stdout
    assert "FAIL: cpu, bundle demo" in result.stdout


@pytest.mark.slow
def test_a_reference_with_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in small_bundle().iterdir():
        content = path.read_bytes()
        if path.name == "vae.weights":
            content = (np.frombuffer(content, np.float32) * np.float32(1.05)).tobytes()
        (tmp_path / path.name).write_bytes(content)

    def replaced(part: Part, say: Callable[[str], None]) -> Part:
        return run_part(replace(part, bundle=tmp_path) if part.folder.name == "reference" else part, say)

    monkeypatch.setattr(selftest, "run_part", replaced)
    monkeypatch.setattr(selftest, "reference_of", lambda *_: "cpu")
    found = self_test(BUNDLE, "cpu", RuntimeOptions(), lambda _: None, REQUIRED_GRAPHS)
    failed = [text.partition(":")[0] for text in found.stages["reference"]]
    assert failed == ["vae_encoder", "vae_decoder", "pictures"]
    assert "its values differ from those of cpu by " in found.stages["reference"][0]
    differences = {row.graph: row.difference or 0 for row in found.graphs}
    assert differences["audio_encoder"] == 0
    assert min(differences["vae_encoder"], differences["vae_decoder"]) > 0.01


# The verdict

Change = Callable[[Part], object]


def judged(
    monkeypatch: pytest.MonkeyPatch,
    change: Change = lambda part: None,
    *,
    start: str = "first start",
    level: int = 0,
    output: float = 1.0,
    provider: str = "tensorrt",
) -> Result:
    """The command on a machine with TensorRT, which works, and paints gray, except for what `change` does to the
    outcome of `start`.

    `level`, `output`: what it adds to the levels of pictures, and by what it multiplies outputs.
    """

    def answer(part: Part, say: Callable[[str], None]) -> Part:
        folder = part.folder
        folder.mkdir()
        tested = folder.name != "reference"
        part.provider = "tensorrt" if part.requested == "auto" else part.requested
        count = part.windows * MANIFEST.frames
        np.save(folder / PICTURES, np.full((count, 8, 8, 3), 30_000 + tested * level, np.uint16))
        row: dict[str, Any] = {"nodes": {TENSORRT if tested else CPU: 1}, "built": folder.name == "first start"}
        row |= {"build_s": 2.0, "open_s": 0.5, "engine_bytes": 10**6, "first_ms": 31.5, "mean_ms": 7.0}
        for graph in part.tested:
            np.savez(folder / f"{graph}.npz", np.float16(2), np.array([1.0, -4.0]) * (output if tested else 1))
            part.graphs[graph] = GraphRow(graph, **row)
        part.doing = ""
        part.notices = ["skipped tensorrt: not installed"] if part.requested == "auto" else []
        if folder.name == start:
            change(part)
        return part

    compiling_provider(monkeypatch)
    monkeypatch.setattr(selftest, "run_part", answer)
    return command("--provider", provider)


def reasons(result: Result) -> list[str]:
    """The failures, and those only."""
    assert result.exit_code == 1
    assert "FAIL: tensorrt, bundle demo, fp32, 128 px\n" in result.stdout
    return [line.removeprefix("  - ") for line in result.stdout.splitlines() if line.startswith("  - ")]


def test_a_second_start_that_builds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_again(part: Part) -> None:
        part.graphs["vae_encoder"].built = True
        part.log = ["vae_decoder: other", "/srv/cache: vae_encoder is damaged"]

    start = "vae_encoder: its engine was not found in the cache, and was built again"
    found = reasons(judged(monkeypatch, build_again, start="second start"))
    assert found == [f"{start}; cache: vae_encoder is damaged"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda part: setattr(part.graphs["denoise_step"], "nodes", {TENSORRT: 19, CUDA: 1}),
            f"denoise_step: tensorrt was not assigned all of its nodes (1 on {CUDA}, 19 on {TENSORRT})",
        ),
        (lambda part: setattr(part.graphs["vae_encoder"], "error", "NaN"), "vae_encoder: NaN"),
    ],
)
def test_what_else_fails(monkeypatch: pytest.MonkeyPatch, change: Change, expected: str) -> None:
    assert reasons(judged(monkeypatch, change, start="second start")) == [expected]


def slower(part: Part) -> None:
    """Its steps."""
    part.graphs["denoise_step"].mean_ms = 7.5


@pytest.mark.parametrize(
    ("change", "start", "code", "taken"),
    [
        (lambda part: None, "first start", 0, "tensorrt"),
        (slower, "reference", 0, "tensorrt"),
        (slower, "second start", 0, "cpu"),
        (lambda part: part.failures.append("it died"), "second start", 1, "cpu"),
    ],
    ids=["passes", "is faster", "is slower", "fails"],
)
def test_auto_takes_what_passes_and_is_not_slower(
    monkeypatch: pytest.MonkeyPatch, change: Change, start: str, code: int, taken: str
) -> None:
    result = judged(monkeypatch, change, start=start)
    assert result.exit_code == code
    assert ("steps take longer than with cpu, so --provider auto does not take it" in result.stdout) is (
        taken == "cpu" and code == 0
    )
    with LipSync.from_bundle(small_bundle()) as lip_sync:
        assert lip_sync.provider == taken


def test_what_is_taken_as_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    published = replace(MANIFEST, name="1.6-512-fp16")
    assert [selftest.reference_of(MANIFEST, name) for name in ("tensorrt", "cuda", "cpu")] == ["cpu", "cpu", ""]
    monkeypatch.setattr(selftest, "diagnose_provider", lambda _: None)  # CUDA runs
    assert [selftest.reference_of(published, name) for name in ("tensorrt", "cuda", "cpu")] == ["cuda", "cuda", ""]
    monkeypatch.setattr(selftest, "diagnose_provider", lambda _: "no driver")
    assert selftest.reference_of(published, "tensorrt") == ""


@pytest.mark.parametrize(("provider", "variant"), [("tensorrt", "auto"), ("cuda", "portable")])
def test_tensorrt_is_compared_with_what_cuda_runs_and_that_with_the_portable_graphs(
    monkeypatch: pytest.MonkeyPatch, provider: str, variant: str
) -> None:
    asked: dict[str, str] = {}

    def answer(part: Part, say: Callable[[str], None]) -> Part:
        asked[part.folder.name] = part.options.graph_variant
        part.provider, part.graphs = part.requested, {graph: GraphRow(graph) for graph in part.tested}
        return part

    monkeypatch.setattr(selftest, "run_part", answer)
    monkeypatch.setattr(selftest, "diagnose_provider", lambda _: None)  # CUDA runs
    published = replace(BUNDLE, manifest=replace(MANIFEST, name="1.6-512-fp16"))
    found = self_test(published, provider, RuntimeOptions(), lambda _: None, REQUIRED_GRAPHS)
    assert (found.reference, asked["first start"], asked["reference"]) == ("cuda", "auto", variant)


def test_the_limit_of_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset of 65.5 of 65535 levels is 60 dB."""
    assert judged(monkeypatch, level=10).exit_code == 0
    expected = "56.3 dB beside cpu (at least 60 dB)"
    assert reasons(judged(monkeypatch, level=100)) == [f"pictures: {expected}"]


# What reaches a bug report


def test_paths_and_names_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "zdenka")
    monkeypatch.setenv("HOME", str(tmp_path / "Zden Ka"))
    given = tmp_path / "Zden Ka" / "my models" / "1.6-512"
    for text, expected in {
        f"{given}/unet.onnx: damaged": "1.6-512/unet.onnx: damaged",
        "/srv/zdenka/models/x.engine, owner zdenka (Zdenka)": "x.engine, owner … (…)",
        r"C:\Users\zdenka\x.engine is\nlocked": r"x.engine is\nlocked",
    }.items():
        assert redacted(text, [given]) == expected
