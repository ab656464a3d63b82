"""The nodes of integrations/comfyui: what they convert, their files, and a run in ComfyUI where
there is one.
"""

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
from latentsync_trt.errors import InputError
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
    # Matroska's precision
    assert times_s == pytest.approx([index * 1001 / 30000 for index in range(9)], abs=0.001)
    assert torch.equal(clips.read_images(path, 9), (images * 255).round() / 255)


def test_sound_stays_as_it_is(clips: ModuleType, tmp_path: Path) -> None:
    waveform = torch.rand((1, 2, 999)) * 2 - 1
    rate_hz, samples = wavfile.read(
        clips.write_sound(tmp_path / "a.wav", {"waveform": waveform, "sample_rate": 44100})
    )
    assert rate_hz == 44100
    assert np.array_equal(samples.T, waveform[0].numpy())


@pytest.mark.parametrize(
    "how", [{"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"requires_grad": True}]
)
def test_tensors_of_any_precision_and_with_gradients_are_taken(
    clips: ModuleType, tmp_path: Path, how: dict[str, Any]
) -> None:
    images = torch.full((2, 7, 5, 3), 0.5, **how)
    waveform = torch.full((1, 6, 99), 0.5, **how)
    assert (
        clips.read_images(clips.write_images(tmp_path / "a.mkv", images, "25"), 2) == 128 / 255
    ).all()
    rate_hz, samples = wavfile.read(
        clips.write_sound(tmp_path / "a.wav", {"waveform": waveform, "sample_rate": "48000.0"})
    )
    assert (rate_hz, samples.shape, samples.min(), samples.max()) == (48_000, (99, 6), 0.5, 0.5)


def test_what_is_no_sound_is_refused_with_a_sentence(clips: ModuleType, tmp_path: Path) -> None:
    waveforms = (None, np.zeros((1, 1, 9)), *map(torch.zeros, ((1, 1, 0), (2, 1, 9), (1, 9))))
    wrong = [
        *waveforms,
        torch.zeros((1, 1, 9), dtype=torch.int16),
        torch.full((1, 1, 9), torch.nan),
    ]
    audios = [None, {}, *({"waveform": each, "sample_rate": 16_000} for each in wrong)]
    audios += [
        {"waveform": torch.zeros((1, 1, 9)), "sample_rate": rate_hz}
        for rate_hz in (None, 0, "x", 22050.5)
    ]
    for audio in audios:
        with pytest.raises(InputError, match=r"^audio: "):
            clips.write_sound(tmp_path / "a.wav", audio)


def test_what_is_no_picture_is_refused_with_a_sentence(clips: ModuleType, tmp_path: Path) -> None:
    shapes = (0, 8, 8, 3), (8, 8, 3), (1, 8, 8, 4), (1, 8, 8)
    bytes_ = torch.zeros((1, 8, 8, 3), dtype=torch.uint8)
    nan = torch.full((1, 8, 8, 3), torch.nan)
    for images in (None, bytes_, nan, *map(torch.zeros, shapes)):
        with pytest.raises(InputError, match=r"^images: "):
            clips.write_images(tmp_path / "a.mkv", images, 25.0)
    for fps in (None, 0, -25, "x", float("nan")):
        with pytest.raises(InputError, match=r"^fps "):
            clips.write_images(tmp_path / "a.mkv", torch.zeros((1, 8, 8, 3)), fps)
    assert not list(tmp_path.iterdir())


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
    graph = json.loads(
        (NODES / "example_workflows" / f"lip-sync-{name}.json").read_text(encoding="utf-8")
    )
    sources = {link[0]: [str(link[1]), link[2]] for link in graph["links"]}
    assert {str(node["id"]): (node["type"], _inputs(node, sources)) for node in graph["nodes"]} == {
        number: (node["class_type"], node["inputs"]) for number, node in wanted.items()
    }


def _inputs(node: dict[str, Any], sources: dict[int, Any]) -> dict[str, Any]:
    """A node's inputs as the API has them: values of widgets in their order, unless linked."""
    named = [one["name"] for one in node["inputs"] if "widget" in one]
    inputs = dict(zip(named, node.get("widgets_values", ()), strict=True))
    inputs |= {
        one["name"]: sources[one["link"]] for one in node["inputs"] if one.get("link") is not None
    }
    return {name: value for name, value in inputs.items() if name not in ("audioUI", "upload")}


@pytest.mark.slow
def test_nodes_run_in_comfyui(tmp_path: Path) -> None:
    """With $COMFYUI, a checkout, and $COMFYUI_PYTHON, its Python with this package installed."""
    checkout = os.environ.get("COMFYUI")
    if checkout is None:
        pytest.skip("the environment variable COMFYUI does not name a checkout of ComfyUI")
    python = os.environ.get("COMFYUI_PYTHON", sys.executable)
    command = [
        ROOT / "scripts" / "run_comfyui.py",
        "--comfyui",
        checkout,
        "--python",
        python,
        "--out",
        tmp_path,
    ]
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
