"""What fits into a GPU's memory: all networks or one at a time, and how many windows are denoised together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.bundle.manifest import Bundle, DimensionRange, GraphVariant, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.networks import batching
from latentsync_trt.runtime.networks import networks as networks_module
from latentsync_trt.runtime.memory_estimate import needed_bytes, window_bytes, windows_that_fit
from latentsync_trt.runtime.model import Networks
from latentsync_trt.runtime.networks.opened import Opened
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from tests.small import small_bundle

GB = 10**9
MEASURED_BYTES = 0.61 * GB
"""Of each further window: published U-Net, 256 px, float16, CUDA provider; benchmarks/ has the rows."""

MOST = 4
RANGES = {"windows": DimensionRange(1, 1, MOST)}

WEIGHT_BYTES = {
    "unet.weights": 2 * 1_270_000_000,
    "vae.weights": 2 * 83_700_000,
    "audio_encoder.weights": 2 * 8_200_000,
}
"""Of the published networks, in float16."""

PEAKS = [
    ("bench-cuda-h100-512.json", 512, "cuda"),
    ("bench-cuda-h100-256.json", 256, "cuda"),
    ("sync-cuda-h200-512-fp16-first.json", 512, "portable"),
    ("sync-cuda-h200-256-fp16-first.json", 256, "portable"),
]
"""Measurements of whole clips, the side of their pictures, and the form of their graphs."""

WITHIN = 0.1
"""Of a peak: what an estimate may be off. Allocators round, and cuDNN chooses its workspace by what is free."""

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def published() -> Manifest:
    manifest = Bundle.load(small_bundle(), verify=False).manifest
    assert {entry.weights for entry in manifest.graphs.values()} == set(WEIGHT_BYTES)
    files = {name: replace(entry, bytes=WEIGHT_BYTES.get(name, entry.bytes)) for name, entry in manifest.files.items()}
    unet = {"widths": [320, 640, 1280, 1280]}
    return replace(manifest, resolution_px=256, frames=16, precision="fp16", unet=unet, files=files)


def measured_peak_bytes(file: str) -> float:
    """Most device memory of any row of a measurement."""
    content = json.loads((BENCHMARKS / file).read_text(encoding="utf-8"))
    if "peak_device_gb" in content:
        return float(content["peak_device_gb"]) * GB
    return max(float(row["memory"]["device_bytes"]) for row in content["rows"])


def test_a_window_takes_what_was_measured(published: Manifest) -> None:
    assert window_bytes(published) == pytest.approx(MEASURED_BYTES, rel=0.15)
    assert window_bytes(replace(published, resolution_px=512)) == 4 * window_bytes(published)
    assert window_bytes(replace(published, precision="fp32")) == 2 * window_bytes(published)


@pytest.mark.parametrize(("free_bytes", "windows"), [(None, 1), (0, 1), (2 * GB, 2), (80 * GB, MOST)])
def test_as_many_as_fit(published: Manifest, free_bytes: int | None, windows: int) -> None:
    assert windows_that_fit(published, RANGES, free_bytes) == windows


@pytest.mark.parametrize(("file", "side_px", "form"), PEAKS)
def test_a_run_needs_what_was_measured(published: Manifest, file: str, side_px: int, form: GraphVariant) -> None:
    needed = needed_bytes(replace(published, resolution_px=side_px), provider=CUDA, form=form)
    peak = measured_peak_bytes(file)
    assert needed / batching._MARGIN == pytest.approx(peak, rel=WITHIN)
    assert needed > peak


def test_engines_need_as_much_as_the_cuda_form(published: Manifest) -> None:
    of_cuda = needed_bytes(published, provider=CUDA, form="cuda")
    assert needed_bytes(published, provider=TENSORRT, form="portable") == of_cuda
    assert needed_bytes(published, provider=CUDA, form="portable") > of_cuda


def test_engines_that_say_what_they_take_need_that(published: Manifest) -> None:
    """Whoever runs: each engine holds its own memory as long as it is open."""
    needed = needed_bytes(published, provider=TENSORRT, form="portable", side_by_side=True, engine_bytes=20 * GB)
    assert 20 * GB < needed < 25 * GB


@pytest.fixture
def gpu_with_room(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Free memory of a GPU that opens everything: before a run, and with its networks open.

    Engines take up to 4 windows.
    """
    free: list[int | None] = [80 * GB, 80 * GB]
    monkeypatch.setattr(Opened, "open", lambda self, graphs, run: None)
    monkeypatch.setattr(networks_module, "free_memory_bytes", lambda index: free.pop(0))
    usual = Engines.__init__

    def made(self: SessionFactory, *given: object, **named: object) -> None:
        usual(self, *given, **named)  # type: ignore[arg-type]
        self.ranges = RANGES

    monkeypatch.setattr(Engines, "__init__", made)
    return free


def opened(notices: list[str] | None = None, **options: object) -> Networks:
    selection = Selection("cuda", gpu=Gpu(0, "RTX", "8.9", 24 * GB, "0000:01:00.0"))
    asked = RuntimeOptions(**options)  # type: ignore[arg-type]
    received = [] if notices is None else notices
    return Networks(Bundle.load(small_bundle(), verify=False), selection, asked, on_notice=received.append)


def needed_here() -> int:
    """What the built-in model takes."""
    manifest = Bundle.load(small_bundle(), verify=False).manifest
    return needed_bytes(manifest, provider=CUDA, form="portable")


def test_windows_that_fit_are_counted_when_all_networks_are_open(gpu_with_room: list[int | None]) -> None:
    """Not before, when the memory that they will take is still free."""
    usable = 2 * window_bytes(Bundle.load(small_bundle(), verify=False).manifest)
    gpu_with_room[1] = int(1.01 * usable / 0.7)
    networks = opened()
    assert networks.windows_per_batch == 1
    for _ in range(2):
        networks.prepare(["denoise_step"])
        assert networks.windows_per_batch == 2
    assert gpu_with_room == []


def test_with_too_little_for_all_networks_one_at_a_time_is_open_from_the_start(
    gpu_with_room: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    low_at_once: list[bool] = []
    monkeypatch.setattr(Opened, "open", lambda self, graphs, run: low_at_once.append(self.low_memory))
    gpu_with_room[0] = needed_here() - 1
    notices: list[str] = []
    networks = opened(notices)
    assert not networks.low_memory
    networks.prepare(["denoise_step"])
    assert low_at_once == [True]
    assert networks.low_memory
    assert networks.windows_per_batch == 1
    assert notices == [
        f"memory of the device is short (this bundle takes about {needed_here() / GB:.1f} GB, "
        f"{needed_here() / GB:.1f} GB is free): one network at a time is kept on it, which is slower"
    ]
    assert networks.take_notices() == tuple(notices)
    networks.prepare(["denoise_step"])  # a second clip gets no new notice, and reads the free memory no more
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("short_bytes", "asked", "recorded"), [(0, None, True), (1, None, False), (1, True, True), (0, False, False)]
)
def test_cuda_graphs_by_default_only_with_room_for_them(
    gpu_with_room: list[int | None],
    monkeypatch: pytest.MonkeyPatch,
    short_bytes: int,
    asked: bool | None,
    recorded: bool,
) -> None:
    manifest = Bundle.load(small_bundle(), verify=False).manifest
    enough = needed_bytes(manifest, provider=CUDA, form="portable", side_by_side=True, recorded=True)
    gpu_with_room[:] = [enough - short_bytes] * 3
    monkeypatch.setattr(Engines, "_uses_cuda_graph", lambda self: self.options.cuda_graph is not False)
    monkeypatch.setattr(Opened, "_in_turn", lambda self, graphs: None)
    notices: list[str] = []
    networks = opened(notices, cuda_graph=asked)
    networks.prepare(["denoise_step"])
    assert (networks._opened.engines.cuda_graph, networks.low_memory, notices) == (recorded, False, [])
