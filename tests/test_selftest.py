"""`latentsync-trt selftest`: what it reports of a provider that works, and of those that do not."""

import getpass
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt.bench import reference_comparison
from latentsync_trt.bench.rows import environment
from latentsync_trt.bench.sample_faces import PICTURES
from latentsync_trt.bench.selftest import SelftestReport, TrialRunner, self_test
from latentsync_trt.bench.trial import GraphRow, TrialResult, TrialSpec, run_trial
from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.types import NoticeCallback
from latentsync_trt.unexpected import redacted
from tests.small import small_bundle

pytestmark = pytest.mark.integration

WHOLE = Bundle.load(small_bundle(), verify=False)
MANIFEST = replace(
    WHOLE.manifest, graphs={name: WHOLE.manifest.graphs[name] for name in REQUIRED_GRAPHS}
)
BUNDLE = replace(WHOLE, manifest=MANIFEST)
"""Without its unguided graphs, to save time."""
TENSORRT = "TensorrtExecutionProvider"
CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def in_few_steps(spec: TrialSpec, on_notice: NoticeCallback) -> TrialResult:
    if spec.name == "second start":  # which repeats the first, where no engines are built
        return TrialResult(spec.provider)
    return run_trial(replace(spec, steps=2), on_notice)


def report_of(
    run: TrialRunner, provider: str = "tensorrt", bundle: Bundle = BUNDLE
) -> SelftestReport:
    """The report where `run` stands for the child processes."""
    return self_test(bundle, provider, RuntimeOptions(), lambda _: None, REQUIRED_GRAPHS, run)


def test_the_cpu_passes_and_json_has_versions_and_rows_and_no_paths_and_names() -> None:
    report = report_of(in_few_steps, "cpu")
    assert (report.result, report.provider, report.requested) == ("passed", "cpu", "cpu")
    assert report.stages == {"first start": (), "second start": ()}
    assert (report.reference, report.pictures) == ("", "")
    for row in report.graphs:
        assert list(row.nodes) == [CPU]
        assert row.nodes[CPU] > 100
        # the CPU needs no engines
        assert (row.built, row.build_s, row.engine_bytes) == (False, None, None)
        assert all((value or 0) > 0 for value in (row.open_s, row.first_ms, row.mean_ms))
    found = json.loads(report.to_json())
    assert (found["kind"], found["passed"]) == ("latentsync-trt selftest", True)
    assert found["environment"].keys() >= {
        "latentsync_trt",
        "onnxruntime",
        "python",
        "system",
        "cpu",
        "measured_at",
    }
    assert found["bundle"]["precision"] == "fp32"
    assert [row["graph"] for row in found["graphs"]] == list(REQUIRED_GRAPHS)
    for place in (
        Path.home(),
        Path.cwd(),
        Path(tempfile.gettempdir()),
        small_bundle().parent,
        Path(sys.prefix),
    ):
        assert f"{place}{os.sep}" not in report.to_json()
    assert f'"{getpass.getuser()}"' not in report.to_json()
    assert all("/" not in value for value in found["environment"].values())


CRASHING = """
import os, signal, sys
from latentsync_trt.runtime.engines.session_factory import SessionFactory

open_engine = SessionFactory.open

def crash(engines, graph):
    if graph == "vae_encoder":
        print("engine.cpp:77: device lost", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return open_engine(engines, graph)

SessionFactory.open = crash
"""
"""Python imports `sitecustomize` first, in the child."""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_provider_that_crashes_leaves_a_report(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CRASHING)
    runner = CliRunner(env={"PYTHONPATH": str(tmp_path)})
    result = runner.invoke(main, ["selftest", "--bundle", str(small_bundle()), "--provider", "cpu"])
    assert result.exit_code == 1
    rows = {
        line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()
    }
    assert rows["audio_encoder"][0] == "132/132"
    assert rows["vae_encoder"] == ["–"] * 7
    how = (
        f"the process died with signal {signal.SIGSEGV:d} "
        "(SIGSEGV) while building and opening vae_encoder"
    )
    assert f"first start: FAIL\n  - {how}: engine.cpp:77: device lost\n" in result.stdout
    assert "FAIL: cpu, bundle demo" in result.stdout


Change = Callable[[Path, TrialResult], object]


def judged(
    change: Change = lambda folder, result: None, start: str = "first start", level: int = 0
) -> SelftestReport:
    """The report of a TensorRT that works, and paints gray, except for what `change` does to the
    outcome of `start`, and for the `level` that it adds to pictures.
    """

    def answer(spec: TrialSpec, on_notice: NoticeCallback) -> TrialResult:
        spec.folder.mkdir()
        is_reference = spec.name == "reference"
        gray = 30_000 if is_reference else 30_000 + level
        np.save(spec.folder / PICTURES, np.full((2, 8, 8, 3), gray, np.uint16))
        nodes = {CPU if is_reference else TENSORRT: 1}
        built = spec.name == "first start"
        result = TrialResult(spec.provider)
        for graph in spec.graphs:
            np.savez(spec.folder / f"{graph}.npz", np.float16(2), np.array([1.0, -4.0]))
            result.graphs[graph] = GraphRow(graph, nodes=nodes, built=built, mean_ms=7.0)
        if spec.name == start:
            change(spec.folder, result)
        return result

    return report_of(answer)


def changed(graph: str, **values: Any) -> Change:
    """Sets values of a graph's row."""

    def change(_: Path, result: TrialResult) -> None:
        result.graphs[graph] = replace(result.graphs[graph], **values)

    return change


def built_again(folder: Path, result: TrialResult) -> None:
    changed("vae_encoder", built=True)(folder, result)
    result.log = ["vae_decoder: other", "/srv/cache: vae_encoder is damaged"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            built_again,
            ("vae_encoder: its engine was not found", "built again; cache: vae_encoder is damaged"),
        ),
        (
            changed("denoise_step", nodes={TENSORRT: 19, CUDA: 1}),
            ("denoise_step: tensorrt was not assigned all of its nodes", f"'{CUDA}': 1"),
        ),
        (changed("vae_encoder", error="NaN"), ("vae_encoder: NaN",)),
    ],
)
def test_what_fails_at_the_second_start(change: Change, words: tuple[str, ...]) -> None:
    report = judged(change, "second start")
    assert report.result == "failed"
    (reason,) = (text for texts in report.stages.values() for text in texts)
    assert all(each in reason for each in words)


@pytest.mark.parametrize(
    ("output", "failed"), [((1.0, -4.001), False), ((1.0, -4.2), True), ((np.nan, -4.0), True)]
)
def test_outputs_that_differ_fail(output: tuple[float, float], failed: bool) -> None:
    def change(folder: Path, _: TrialResult) -> None:
        np.savez(folder / "vae_decoder.npz", np.float16(2), np.array(output))

    reasons = judged(change, "second start").stages["reference"]
    assert [reason.partition(":")[0] for reason in reasons] == ["vae_decoder"] * failed


@pytest.mark.parametrize(("start", "result"), [("reference", "passed"), ("second start", "slower")])
def test_slower_than_the_reference(start: str, result: str) -> None:
    assert judged(changed("denoise_step", mean_ms=7.5), start).result == result


def test_the_limit_of_pictures() -> None:
    """An offset of 65.5 of 65535 levels is 60 dB."""
    assert judged(level=10).passed
    (failure,) = judged(level=100).stages["reference"]
    assert "56.3 dB beside cpu" in failure and "60 dB" in failure


@pytest.mark.parametrize(
    ("provider", "obstacle", "reference", "variant"),
    [
        ("tensorrt", None, "cuda", "auto"),
        ("cuda", None, "cuda", "portable"),
        ("tensorrt", "no driver", "", None),
    ],
)
def test_published_models_are_compared_with_what_cuda_runs_and_that_with_the_portable_graphs(
    provider: str,
    obstacle: str | None,
    reference: str,
    variant: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, str] = {}

    def answer(spec: TrialSpec, on_notice: NoticeCallback) -> TrialResult:
        asked[spec.name] = spec.options.graph_variant
        return TrialResult(spec.provider, {graph: GraphRow(graph) for graph in spec.graphs})

    monkeypatch.setattr(reference_comparison, "diagnose_provider", lambda _: obstacle)
    published = replace(BUNDLE, manifest=replace(MANIFEST, name="1.6-512-fp16"))
    report = report_of(answer, provider, published)
    assert (report.reference, asked["first start"], asked.get("reference")) == (
        reference,
        "auto",
        variant,
    )


def test_paths_and_names_are_hidden(tmp_path: Path) -> None:
    given = tmp_path / "Zden Ka" / "my models" / "1.6-512"
    name = getpass.getuser()
    for text, expected in {
        f"{given}/unet.onnx: damaged": "1.6-512/unet.onnx: damaged",
        f"/srv/{name}/models/x.engine, owner {name} ({name.upper()})": "x.engine, owner … (…)",
        r"C:\Users\zdenka\x.engine is\nlocked": r"x.engine is\nlocked",
        "'~/a/b c.wav', 5 frames/s with 1/2 of it": "'b c.wav', 5 frames/s with 1/2 of it",
    }.items():
        assert redacted(text, [given]) == expected
    command = environment(
        ["bench", "--video", "../someone/private/in.mp4", "--audio", "/home/a.wav"], (), 0
    )["command"]
    assert command == "bench --video in.mp4 --audio a.wav"
