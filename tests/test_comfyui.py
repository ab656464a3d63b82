"""The nodes of integrations/comfyui: what they convert, their files, and a run in ComfyUI where there is one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from latentsync_trt import LatentSyncError, RuntimeOptions, SyncOptions
from latentsync_trt.media.reader import read_frames

ROOT = Path(__file__).parents[1]
NODES = ROOT / "integrations" / "comfyui"


@pytest.fixture(scope="module")
def clips() -> ModuleType:
    spec = importlib.util.spec_from_file_location("comfyui_clips", NODES / "clips.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_come_back_rounded_to_8_bits(clips: ModuleType, tmp_path: Path) -> None:
    images = torch.rand((9, 33, 47, 3), generator=torch.Generator().manual_seed(0))
    path = clips.write_images(tmp_path / "a.mkv", images, 29.97002997)
    times_s = [float(frame.source_s) for frame in read_frames(path)]
    assert times_s == pytest.approx([index * 1001 / 30000 for index in range(9)], abs=0.001)  # Matroska's precision
    assert torch.equal(clips.read_images(path, 9), (images * 255).round() / 255)


def test_sound_stays_as_it_is(clips: ModuleType, tmp_path: Path) -> None:
    waveform = torch.rand((1, 2, 999)) * 2 - 1
    rate_hz, samples = wavfile.read(clips.write_sound(tmp_path / "a.wav", {"waveform": waveform, "sample_rate": 44100}))
    assert rate_hz == 44100
    assert np.array_equal(samples.T, waveform[0].numpy())


def test_options_override_widgets(clips: ModuleType) -> None:
    text = "--crf = 20\n\nend=0:01\npreset = fast \n"
    wanted = SyncOptions(preset="fast", guidance=2.0, crf=20, end=1)  # type: ignore[arg-type]
    assert clips.options_of(SyncOptions, {"preset": "quality", "guidance": 2.0}, text) == wanted
    assert clips.options_of(RuntimeOptions, {"device": "0,1"}, "") == RuntimeOptions(device=(0, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "did you mean steps"),
        ("--report = /etc/page.html", "report is not available in ComfyUI"),
    ],
)
def test_bad_options_are_refused(clips: ModuleType, text: str, message: str) -> None:
    with pytest.raises(LatentSyncError, match=message):
        clips.options_of(SyncOptions, {}, text)
    with pytest.raises(LatentSyncError, match="engine_cache is not available"):
        clips.options_of(RuntimeOptions, {}, "engine_cache = /etc")


@pytest.mark.parametrize("name", ["video", "frames"])
def test_example_workflow_is_what_the_script_runs(name: str) -> None:
    """The template that people open, and the same for ComfyUI's HTTP API."""
    wanted = json.loads((NODES / "api_workflows" / f"{name}.json").read_text(encoding="utf-8"))
    graph = json.loads((NODES / "example_workflows" / f"lip-sync-{name}.json").read_text(encoding="utf-8"))
    sources = {link[0]: [str(link[1]), link[2]] for link in graph["links"]}
    assert {str(node["id"]): (node["type"], _inputs(node, sources)) for node in graph["nodes"]} == {
        number: (node["class_type"], node["inputs"]) for number, node in wanted.items()
    }


def _inputs(node: dict[str, Any], sources: dict[int, Any]) -> dict[str, Any]:
    """A node's inputs as the API has them: values of widgets in their order, unless linked."""
    named = [one["name"] for one in node["inputs"] if "widget" in one]
    inputs = dict(zip(named, node.get("widgets_values", ()), strict=True))
    inputs |= {one["name"]: sources[one["link"]] for one in node["inputs"] if one.get("link") is not None}
    return {name: value for name, value in inputs.items() if name not in ("audioUI", "upload")}


@pytest.mark.slow
def test_nodes_run_in_comfyui(tmp_path: Path) -> None:
    """With $COMFYUI, a checkout, and $COMFYUI_PYTHON, its Python with this package installed."""
    checkout = os.environ.get("COMFYUI")
    if checkout is None:
        pytest.skip("the environment variable COMFYUI does not name a checkout of ComfyUI")
    python = os.environ.get("COMFYUI_PYTHON", sys.executable)
    command = [ROOT / "scripts" / "run_comfyui.py", "--comfyui", checkout, "--python", python, "--out", tmp_path]
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
