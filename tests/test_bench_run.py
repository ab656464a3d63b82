"""The bench on the built-in model: every scenario once, as a user starts it, with presets of two steps."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.rows import Results, Row, read_results
from latentsync_trt.bench.suite import Record, run_bench
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import PRESETS, RuntimeOptions, Sampling, SyncOptions
from latentsync_trt.errors import InputError, OutOfMemory
from latentsync_trt.runtime.providers.select import why_unavailable
from tests.clips import write_sound
from tests.small import small_bundle

SPEECH_S = 0.8
FRAMES = 20

SILENT = Record(say=lambda _: None, keep=lambda _: None)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "--bundle", "demo", *arguments])


@pytest.fixture(scope="module")
def short_presets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quality", Sampling(2, "ddim", 1))
        patch.setitem(PRESETS, "fast", Sampling(2, "dpmpp", 2))
        yield


@pytest.fixture(scope="module")
def folder(short_presets: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of all scenarios but PyTorch's wrote."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "secret-folder").mkdir()
    speech = write_sound(folder / "secret-folder" / "speech.wav", SPEECH_S)
    arguments = ["--provider", "cpu", "--preset", "fast,quality", "--runs", "2", "--warm-up", "0"]
    arguments += ["--audio", str(speech), "--out", str(folder / "rows.json"), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["latentsync-trt", "bench", *arguments])
        result = bench(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return read_results(folder / "rows.json")


def rows_of(results: Results, scenario: str) -> dict[tuple[str, str | None], Row]:
    return {(row.case, row.preset): row for row in results.rows if row.scenario == scenario}


@pytest.mark.slow
def test_every_graph_has_a_row_beside_the_ceiling(results: Results) -> None:
    rows = rows_of(results, "graph")
    graphs = Bundle.load(small_bundle()).manifest.graphs
    ceiling, *others = rows.values()
    assert [row.case for row in others] == list(graphs)
    assert ceiling.case == "matmul 1024 fp32"
    for row in rows.values():
        assert row.time.runs == 2
        assert row.arithmetic is not None
        assert row.arithmetic.tflop_per_s > 0
        assert row.arithmetic.ceiling_tflop_per_s == ceiling.arithmetic.tflop_per_s
        assert row.memory is not None
        assert row.memory.host_bytes > 50e6
    full, cached = (rows[name, None].arithmetic.tflop for name in ("denoise_step", "denoise_step_cached"))
    assert cached < full / 2
    assert all(set(row.start_up_s) == {"build", "open"} and row.facts["node_share"] == 1.0 for row in others)


@pytest.mark.slow
def test_a_loop_is_told_by_its_parts_and_steps(results: Results) -> None:
    rows = rows_of(results, "loop")
    assert set(rows) == {("one window", "fast"), ("one window", "quality")}
    quality, fast = rows["one window", "quality"], rows["one window", "fast"]
    assert quality.quality is None
    assert fast.quality is not None
    assert fast.quality.psnr_db is not None
    assert 0 < fast.quality.ssim < 1
    assert fast.quality.frames == 16
    assert [(kind.full, kind.guided, kind.in_a_run, len(kind.times_ms)) for kind in fast.steps] == [
        (True, True, 1, 2),
        (False, True, 1, 2),
    ]
    assert [(kind.full, kind.in_a_run) for kind in quality.steps] == [(True, 2)]
    parts_s = sum(quality.parts_s.values())
    assert parts_s == pytest.approx(quality.time.median_ms / 1000, rel=0.3)  # medians of parts do not add up exactly
    assert quality.facts["full_step_equivalents"] > 1.5


@pytest.mark.slow
def test_stages_are_told_in_frames_per_second(results: Results) -> None:
    rows = rows_of(results, "stage")
    cases = {case for case, _ in rows}
    assert cases == {"decode", "face", "compose", "encode", "all off the GPU", "encode audio", "paint"}
    assert rows["decode", None].provider is None
    assert rows["paint", "fast"].provider == "cpu"
    assert all(row.frames_per_s and row.frames_per_s > 0 for row in rows.values())
    assert any("1920×1080" in note for note in rows["encode", None].notes)


@pytest.mark.slow
def test_a_clip_is_told_from_start_to_end(results: Results) -> None:
    (case, _), *_ = rows = rows_of(results, "end-to-end")
    row = rows[case, "fast"]
    assert row.frames == FRAMES
    assert row.facts["windows"] == 2
    assert 0 < row.facts["paint_busy_share"] <= 1
    assert {"decode", "face", "paint", "compose", "encode"} <= set(row.parts_s)
    assert sum(row.start_up_s.values()) > 0
    assert {engine["graph"] for engine in row.engines} >= {"vae_encoder", "denoise_step"}
    assert row.quality is not None
    assert row.quality.frames == FRAMES
    assert rows[case, "quality"].quality is None


@pytest.mark.slow
def test_the_files_tell_of_the_machine_and_of_nobody(folder: Path, results: Results) -> None:
    assert {"python", "onnxruntime", "cpu", "latentsync_trt", "command"} <= set(results.environment)
    assert "--audio speech.wav" in results.environment["command"]
    for name in ("rows.json", "rows.html"):
        content = (folder / name).read_text(encoding="utf-8")
        assert "secret-folder" not in content
        assert str(Path.home()) not in content
    assert json.loads((folder / "rows.json").read_text(encoding="utf-8"))["bundle"]["resolution_px"] == 128


def test_a_reference_bundle_is_compared_with(short_presets: None, tmp_path: Path) -> None:
    """The same networks under another name are equal."""
    bundle = Bundle.load(small_bundle())
    other = replace(bundle, manifest=replace(bundle.manifest, name="other"))
    options = BenchOptions(provider=("cpu",), preset=("quality",), scenario=("loop",), runs=1, warm_up=0)
    (row,) = run_bench(bundle, other, options, RuntimeOptions(), record=SILENT).rows
    assert row.quality is not None
    assert row.quality.psnr_db is None
    assert row.quality.ssim == pytest.approx(1.0)
    assert row.quality.reference == "other, preset quality, on cpu"


def test_what_counts_before_a_preset_makes_it_another(short_presets: None) -> None:
    """`quality` with other options is no longer what the others are compared with."""
    options = BenchOptions(provider=("cpu",), preset=("quality",), scenario=("loop",), runs=1, warm_up=0)
    sync = SyncOptions(steps=3, guidance=1.0)
    (row,) = run_bench(Bundle.load(small_bundle()), None, options, RuntimeOptions(), sync, record=SILENT).rows
    assert [(kind.full, kind.guided, kind.in_a_run) for kind in row.steps] == [(True, False, 3)]
    assert row.quality is not None
    assert row.quality.psnr_db is not None


def test_a_reference_of_another_size_is_refused() -> None:
    bundle = Bundle.load(small_bundle())
    larger = replace(bundle, manifest=replace(bundle.manifest, resolution_px=256, name="larger"))
    with pytest.raises(InputError, match="--reference-bundle larger: windows of 16 faces of 256 px"):
        run_bench(bundle, larger, BenchOptions(), RuntimeOptions(), record=SILENT)


@pytest.mark.slow
def test_pytorch_is_the_baseline_even_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("diffusers")

    def no_compiler(module: object) -> object:
        raise RuntimeError("no C++ compiler in /opt/secret/bin")

    monkeypatch.setattr(torch, "compile", no_compiler)
    said: list[str] = []
    kept: list[Results] = []
    options = BenchOptions(provider=("cpu",), scenario=("pytorch",), runs=1, warm_up=0)
    found = run_bench(
        Bundle.load(small_bundle()), None, options, RuntimeOptions(), record=Record(said.append, kept.append)
    )
    assert [row.case for row in found.rows] == [
        "denoise_step eager",
        "denoise_step_cached eager",
        "vae_encoder eager",
        "vae_decoder eager",
    ]
    assert [len(results.rows) for results in kept] == [1, 2, 3, 4]
    full, cached, *_ = found.rows
    assert cached.time.median_ms < full.time.median_ms
    assert full.notes[1] == "torch.compile not measured: no C++ compiler in bin"
    assert any("torch.compile failed" in line for line in said)


def test_pytorch_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr("latentsync_trt.bench.suite.find_spec", lambda name: None if name == "torch" else found(name))
    result = bench("--provider", "cpu", "--scenario", "pytorch", "--quiet")
    assert result.exit_code == 1
    assert result.stderr == "error: scenario pytorch needs torch: pip install 'latentsync-trt[export]'\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scenario", "graph,speed"], "--scenario 'speed': not among graph, loop, stage, end-to-end, pytorch"),
        (["--preset", "best"], "--preset 'best': not among quality, balanced, fast"),
        (["--provider", "cpu,gpu"], "--provider 'gpu': not among auto, tensorrt, rtx, cuda, cpu"),
        (["--runs", "0"], "--runs"),
        (["--compare", "one.json"], "--compare"),
        (["--compare", "one.json", "two.json", "--html", "x.html"], "a comparison has no report"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], reason: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--audio", "missing.wav", "--scenario", "loop"], "missing.wav"),
        (["--reference-bundle", "nowhere"], "nowhere: no bundle there"),
        (["--full-steps", "0,9", "--preset", "fast"], "--full-steps 0,9"),
    ],
)
def test_what_cannot_be_used_fails_in_one_line(arguments: list[str], reason: str) -> None:
    result = bench("--provider", "cpu", "--quiet", *arguments)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_place_that_takes_no_files_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (
        ["--out", str(tmp_path / "file")],
        ["--out", str(tmp_path), "--html", str(tmp_path / "file" / "x")],
    ):
        result = bench("--provider", "cpu", *arguments)
        assert result.exit_code == 1
        assert "cannot be written" in result.stderr.splitlines()[-1]
        assert "matmul" not in result.stderr


def test_rows_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OutOfMemory("vae_encoder: out of memory")

    monkeypatch.setattr("latentsync_trt.bench.graphs.random_inputs", fail)
    arguments = ("--provider", "cpu", "--scenario", "graph", "--runs", "1", "--out", str(tmp_path / "rows.json"), "-q")
    result = bench(*arguments)
    assert result.exit_code == 1
    assert result.stderr == "error: vae_encoder: out of memory\n"
    assert [row.case for row in read_results(tmp_path / "rows.json").rows] == ["matmul 1024 fp32"]


def test_a_named_provider_is_a_demand() -> None:
    if why_unavailable("cuda") is None:
        pytest.skip("CUDA runs here")
    result = bench("--provider", "cuda", "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cuda: ")
