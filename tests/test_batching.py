"""How many windows are denoised together where nobody says."""

from dataclasses import replace

import pytest

from latentsync_trt.bundle import Bundle, DimensionRange, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime import networks as networks_module
from latentsync_trt.runtime.batching import window_bytes, windows_that_fit
from latentsync_trt.runtime.engines import Engines
from latentsync_trt.runtime.gpu import Gpu
from latentsync_trt.runtime.networks import Networks
from latentsync_trt.runtime.pool import SessionPool
from latentsync_trt.runtime.providers import Selection
from tests.small import small_bundle

GB = 10**9
MEASURED_BYTES = 0.61 * GB
"""Of each further window: published U-Net, 256 px, float16, CUDA provider; benchmarks/ has the rows."""

MOST = 4
RANGES = {"windows": DimensionRange(1, 1, MOST)}


@pytest.fixture(scope="module")
def published() -> Manifest:
    manifest = Bundle.load(small_bundle(), verify=False).manifest
    return replace(manifest, resolution_px=256, frames=16, precision="fp16", unet={"widths": [320, 640, 1280, 1280]})


def test_a_window_takes_what_was_measured(published: Manifest) -> None:
    assert window_bytes(published) == pytest.approx(MEASURED_BYTES, rel=0.15)
    assert window_bytes(replace(published, resolution_px=512)) == 4 * window_bytes(published)
    assert window_bytes(replace(published, precision="fp32")) == 2 * window_bytes(published)


@pytest.mark.parametrize(
    ("free_bytes", "windows"), [(None, 1), (0, 1), (GB, 1), (2 * GB, 2), (3 * GB, 3), (80 * GB, MOST)]
)
def test_as_many_as_fit(published: Manifest, free_bytes: int | None, windows: int) -> None:
    assert windows_that_fit(published, RANGES, free_bytes) == windows


def test_fixed_shapes_take_one(published: Manifest) -> None:
    assert windows_that_fit(published, {}, 80 * GB) == 1
    assert windows_that_fit(published, {"windows": DimensionRange(1, 1, 1)}, 80 * GB) == 1


@pytest.fixture
def gpu_with_room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a GPU that opens everything has free, as it is asked, one value after the other; engines take 4 windows."""
    free = [80 * GB]
    monkeypatch.setattr(SessionPool, "prepare", lambda self, graphs: None)
    monkeypatch.setattr(networks_module, "free_memory_bytes", lambda index: free.pop(0))
    usual = Engines.__init__

    def made(self: Engines, *given: object, **named: object) -> None:
        usual(self, *given, **named)  # type: ignore[arg-type]
        self.ranges = RANGES

    monkeypatch.setattr(Engines, "__init__", made)
    return free


def opened(**options: object) -> Networks:
    selection = Selection("cuda", gpu=Gpu(0, "RTX", "8.9", 24 * GB, "0000:01:00.0"))
    asked = RuntimeOptions(**options)  # type: ignore[arg-type]
    return Networks(Bundle.load(small_bundle(), verify=False), selection, asked)


def test_a_run_counts_once_all_networks_are_open(gpu_with_room: list[int]) -> None:
    networks = opened()
    assert networks.windows_per_batch == 1
    for _ in range(2):
        networks.prepare(["denoise_step"])
        assert networks.windows_per_batch == MOST
    assert gpu_with_room == []


@pytest.mark.usefixtures("gpu_with_room")
@pytest.mark.parametrize(("options", "windows"), [({"windows_per_batch": 2}, 2), ({"low_memory": True}, 1)])
def test_what_is_asked_for_counts_first(options: dict[str, object], windows: int) -> None:
    networks = opened(**options)
    networks.prepare(["denoise_step"])
    assert networks.windows_per_batch == windows


def test_a_cpu_takes_one() -> None:
    networks = Networks(Bundle.load(small_bundle(), verify=False), Selection("cpu"))
    networks.prepare([])
    assert networks.windows_per_batch == 1
