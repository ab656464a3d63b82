"""The script that times networks by themselves, as graphs and as PyTorch modules."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.config import PRESETS, Sampling
from tests.clips import write_clip
from tests.small import small_bundle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MANIFEST = read_manifest(small_bundle())


def test_rows_of_graphs_windows_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "quality", Sampling(1, "ddim", 1))
    monkeypatch.setitem(PRESETS, "fast", Sampling(2, "dpmpp", 2))
    measure = pytest.importorskip("scripts.measure_networks").main
    video, audio = write_clip(tmp_path, MANIFEST.frames)
    words = ["--bundle", str(small_bundle()), "--provider", "cpu", "--runs", "1", "--warm-up", "0", "--preset", "fast"]
    words += [word for scenario in ("graph", "loop", "pytorch") for word in ("--scenario", scenario)]
    words += ["--eager", "--video", str(video), "--audio", str(audio), "--out", str(tmp_path / "rows.json")]
    result = CliRunner().invoke(measure, words)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    graphs, modules = ([row["case"] for row in rows if row["scenario"] == kind] for kind in ("graph", "pytorch"))
    assert graphs == list(MANIFEST.graphs)
    networks = ("denoise_step", "denoise_step_cached", "vae_encoder", "vae_decoder")
    assert modules == [f"{name} eager" for name in networks]
    (loop,) = (row for row in rows if row["scenario"] == "loop")
    assert (loop["case"], loop["preset"], loop["frames"]) == ("one window", "fast", MANIFEST.frames)
    assert set(loop["parts_s"]) == {*networks, "rest"}
    assert sum(loop["parts_s"].values()) == pytest.approx(loop["time"]["median_ms"] / 1000, rel=1e-4)
    assert any("beside preset quality" in note for note in loop["notes"])
