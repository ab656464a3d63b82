"""The bench on a small bundle: every scenario once, with presets of one and two steps."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bench import run
from latentsync_trt.bench.rows import BenchOptions
from latentsync_trt.bench.run import settings_for
from latentsync_trt.bundle.manifest import MANIFEST_NAME, Bundle, read_manifest, write_manifest
from latentsync_trt.cli import main
from latentsync_trt.config import PRESETS, RuntimeOptions, Sampling, SyncOptions
from latentsync_trt.errors import OutOfMemory
from tests.clips import write_clip
from tests.small import small_bundle

pytestmark = pytest.mark.integration

MANIFEST = read_manifest(small_bundle())
GUIDED = {name: entry for name, entry in MANIFEST.graphs.items() if "unguided" not in name}


def bench(*arguments: str, bundle: Path | None = None) -> Result:
    return CliRunner().invoke(main, ["bench", "--bundle", str(bundle or small_bundle()), *arguments])


@pytest.fixture(scope="module")
def short_presets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quality", Sampling(1, "ddim", 1))
        patch.setitem(PRESETS, "fast", Sampling(2, "dpmpp", 2))
        yield


@pytest.fixture(scope="module")
def folder(short_presets: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of scenarios graph and loop wrote; the bundle has no unguided graphs."""
    folder = tmp_path_factory.mktemp("bench")
    bundle = shutil.copytree(small_bundle(), folder / "bundle", ignore=shutil.ignore_patterns(MANIFEST_NAME))
    write_manifest(bundle, replace(MANIFEST, graphs=GUIDED))
    (folder / "secret-folder").mkdir()
    video, audio = write_clip(folder / "secret-folder", MANIFEST.frames)
    arguments = ["--provider", "cpu", "--preset", "fast,quality", "--runs", "1", "--warm-up", "0", "--quiet"]
    arguments += ["--scenario", "graph,loop", "--out", str(folder / "rows.json")]
    arguments += ["--video", str(video), "--audio", str(audio)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["latentsync-trt", "bench", *arguments])
        result = bench(*arguments, bundle=bundle)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict]:
    return rows_in(folder / "rows.json")


def rows_in(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def test_every_graph_has_a_row(rows: list[dict]) -> None:
    graphs = [row for row in rows if row["scenario"] == "graph"]
    assert [row["case"] for row in graphs] == list(GUIDED)
    for row in graphs:
        assert row["time"]["runs"] == 1
        assert row["memory"]["host_bytes"] > 50e6
        assert set(row["start_up_s"]) == {"build", "open"}


def test_a_loop_has_its_parts_steps_and_quality(rows: list[dict]) -> None:
    quality, fast = (row for row in rows if row["scenario"] == "loop")
    assert [(row["case"], row["preset"]) for row in (quality, fast)] == [
        ("one window", "quality"),
        ("one window", "fast"),
    ]
    assert quality["quality"] is None
    likeness = fast["quality"]
    assert likeness["psnr_db"] is not None
    assert 0 < likeness["ssim"] < 1
    assert likeness["frames"] == fast["frames"] == MANIFEST.frames
    assert likeness["reference"] == f"{MANIFEST.name}, preset quality, on cpu"
    assert set(quality["parts_s"]) == {"vae_encoder", "denoise_step", "vae_decoder", "rest"}
    assert set(fast["parts_s"]) - set(quality["parts_s"]) == {"denoise_step_cached"}
    assert min(fast["parts_s"].values()) > 0
    assert sum(quality["parts_s"].values()) == pytest.approx(quality["time"]["median_ms"] / 1000, rel=1e-4)


def test_a_clip_has_its_stages_and_start_up(short_presets: None, tmp_path: Path) -> None:
    video, audio = write_clip(tmp_path, MANIFEST.frames)
    out = tmp_path / "out"
    arguments = ["--provider", "cpu", "--scenario", "end-to-end", "--preset", "fast", "--runs", "1", "--warm-up", "0"]
    result = bench(*arguments, "--video", str(video), "--audio", str(audio), "--out", str(out))
    assert result.exit_code == 0, result.output
    (file,) = out.glob("bench-cpu-*.json")
    assert result.stdout.splitlines()[-1] == f"{file}: 1 rows"
    assert "face.mp4 480×480 · fast · cpu" in result.stdout
    (row,) = rows_in(file)
    assert row["frames"] == MANIFEST.frames
    assert {"decode", "face", "denoise", "compose", "encode"} <= set(row["parts_s"])
    assert f"{max(row['parts_s'], key=row['parts_s'].get)} " in result.stdout
    assert sum(row["start_up_s"].values()) > 0


def test_rows_name_the_machine_and_no_folders(folder: Path) -> None:
    content = (folder / "rows.json").read_text(encoding="utf-8")
    assert "secret-folder" not in content
    assert str(Path.home()) not in content
    results = json.loads(content)
    assert {"python", "onnxruntime", "cpu", "latentsync_trt", "command"} <= set(results["environment"])
    assert "--audio speech.wav" in results["environment"]["command"]
    assert results["bundle"]["name"] == MANIFEST.name


@pytest.mark.slow
def test_the_pytorch_baseline_has_rows_of_all_networks() -> None:
    baseline = pytest.importorskip("scripts.pytorch_baseline")
    options = BenchOptions(provider=("cpu",), runs=1, warm_up=0)
    (setting,) = settings_for(Bundle.load(small_bundle()), RuntimeOptions(), SyncOptions(), options, lambda _: None)
    full, cached, *vae = baseline.measure_torch(setting, compiled=False)
    assert (full.scenario, full.case, cached.case) == ("pytorch", "denoise_step eager", "denoise_step_cached eager")
    assert [row.case for row in vae] == ["vae_encoder eager", "vae_decoder eager"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scenario", "graph,speed"], "--scenario graph,speed: not among graph, loop, end-to-end"),
        (["--runs", "0"], "--runs 0: not a whole number"),
        (["--audio", "missing.wav", "--scenario", "loop"], "missing.wav"),
        (["--cache-interval", "0,9", "--preset", "fast"], "--cache-interval 0,9"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], reason: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())  # which the terminal's width wraps


def test_rows_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter([run.BoundRun])

    def fail_at_the_second(*arguments: Any) -> Any:
        for usual in first:
            return usual(*arguments)
        raise OutOfMemory("vae_encoder: out of memory")

    monkeypatch.setattr(run, "BoundRun", fail_at_the_second)
    arguments = ("--provider", "cpu", "--scenario", "graph", "--runs", "1", "--out", str(tmp_path / "rows.json"), "-q")
    result = bench(*arguments)
    assert result.exit_code == 1
    assert result.stderr == "error: vae_encoder: out of memory\n"
    assert len(rows_in(tmp_path / "rows.json")) == 1
