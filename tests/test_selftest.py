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

from latentsync_trt.bench import selftest
from latentsync_trt.bench.rows import environment
from latentsync_trt.bench.selftest import PICTURES, GraphRow, Part, Report, Say, run_part, self_test
from latentsync_trt.bundle.manifest import REQUIRED_GRAPHS, Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
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


def in_few_steps(part: Part, say: Say) -> Part:
    if part.folder.name == "second start":  # which repeats the first, where no engines are built
        return replace(part, provider=part.requested, doing="")
    return run_part(replace(part, steps=2), say)


def report_of(
    carry: Callable[[Part, Say], Part], provider: str = "tensorrt", bundle: Bundle = BUNDLE
) -> Report:
    """The report where `carry` stands for the child processes."""
    return self_test(bundle, provider, RuntimeOptions(), lambda _: None, REQUIRED_GRAPHS, carry)


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


Change = Callable[[Part], object]


def judged(
    change: Change = lambda part: None, start: str = "first start", level: int = 0
) -> Report:
    """The report of a TensorRT that works, and paints gray, except for what `change` does to the
    outcome of `start`, and for the `level` that it adds to pictures.
    """

    def answer(part: Part, say: Say) -> Part:
        part.folder.mkdir()
        is_ours = part.folder.name != "reference"
        part.provider = part.requested
        part.doing = ""
        np.save(part.folder / PICTURES, np.full((2, 8, 8, 3), 30_000 + is_ours * level, np.uint16))
        row: dict[str, Any] = {
            "nodes": {TENSORRT if is_ours else CPU: 1},
            "built": part.folder.name == "first start",
        }
        for graph in part.tested:
            np.savez(part.folder / f"{graph}.npz", np.float16(2), np.array([1.0, -4.0]))
            part.graphs[graph] = GraphRow(graph, mean_ms=7.0, **row)
        if part.folder.name == start:
            change(part)
        return part

    return report_of(answer)


def built_again(part: Part) -> None:
    part.graphs["vae_encoder"].built = True
    part.log = ["vae_decoder: other", "/srv/cache: vae_encoder is damaged"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            built_again,
            ("vae_encoder: its engine was not found", "built again; cache: vae_encoder is damaged"),
        ),
        (
            lambda part: setattr(part.graphs["denoise_step"], "nodes", {TENSORRT: 19, CUDA: 1}),
            ("denoise_step: tensorrt was not assigned all of its nodes", f"'{CUDA}': 1"),
        ),
        (lambda part: setattr(part.graphs["vae_encoder"], "error", "NaN"), ("vae_encoder: NaN",)),
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
    def change(part: Part) -> None:
        np.savez(part.folder / "vae_decoder.npz", np.float16(2), np.array(output))

    reasons = judged(change, "second start").stages["reference"]
    assert [reason.partition(":")[0] for reason in reasons] == ["vae_decoder"] * failed


@pytest.mark.parametrize(("start", "result"), [("reference", "passed"), ("second start", "slower")])
def test_slower_than_the_reference(start: str, result: str) -> None:
    assert (
        judged(lambda part: setattr(part.graphs["denoise_step"], "mean_ms", 7.5), start).result
        == result
    )


def test_the_limit_of_pictures() -> None:
    """An offset of 65.5 of 65535 levels is 60 dB."""
    assert judged(level=10).passed
    assert judged(level=100).stages["reference"] == (
        "pictures: 56.3 dB beside cpu (at least 60 dB)",
    )


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

    def answer(part: Part, say: Say) -> Part:
        asked[part.folder.name] = part.options.graph_variant
        return replace(
            part, provider=part.requested, graphs={graph: GraphRow(graph) for graph in part.tested}
        )

    monkeypatch.setattr(selftest, "diagnose_provider", lambda _: obstacle)
    found = report_of(
        answer, provider, replace(BUNDLE, manifest=replace(MANIFEST, name="1.6-512-fp16"))
    )
    assert (found.reference, asked["first start"], asked.get("reference")) == (
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
