"""Fixtures shared by all tests."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import chdir
from fractions import Fraction
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from latentsync_trt import LipSync
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media import parts
from latentsync_trt.runtime.providers import choice, devices
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.remembered_tests import FOLDER
from latentsync_trt.runtime.providers.table import CPU, Obstacle, Provider
from latentsync_trt.types import UInt8Array
from tests.clips import LOSSLESS, synced, write_clip
from tests.compiling import CopyBuilder, compiling_provider
from tests.device import DemoModels, Device, watched_device
from tests.exports import ExportCache
from tests.small import small_bundle

if TYPE_CHECKING:
    from tests.tensorrt_stand_in.stand_in import StandIn

REPOSITORY = Path(__file__).resolve().parents[1]


THOROUGH = "--thorough"


def pytest_addoption(parser: pytest.Parser) -> None:
    """A flag for long runs of the tests that search at random."""
    parser.addoption(
        THOROUGH,
        action="store_true",
        help="many more random examples and damaged files; takes an hour",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Settings that the processes of tests inherit, too."""
    # Derandomized: a run must not fail by chance for a change that is not at fault; `--thorough`
    # searches anew.
    settings.register_profile(
        "quick", max_examples=50, deadline=None, derandomize=True, database=None
    )
    settings.register_profile("thorough", max_examples=5000, deadline=None, database=None)
    settings.load_profile("thorough" if config.getoption(THOROUGH) else "quick")
    # Each child would compile the whole package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # pytest-xdist's workers would compete for the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A shell starts background jobs with Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all tests, and the processes they start, keep engines: never in the cache of whoever
    runs them.
    """
    folder = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATENTSYNC_TRT_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def nothing_remembered(engine_cache: Path) -> None:
    """Facts that tests remember depend on what they simulate."""
    rmtree(engine_cache / FOLDER, ignore_errors=True)


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether `--thorough` was given."""
    return bool(request.config.getoption(THOROUGH))


@pytest.fixture(scope="session")
def detector() -> MediaPipeDetector:
    """The built-in detector, which remembers nothing between pictures."""
    return MediaPipeDetector()


@pytest.fixture(scope="session")
def lip_sync() -> Iterator[LipSync]:
    """The small bundle on the CPU."""
    with LipSync.from_bundle(small_bundle(), "cpu") as made:
        yield made


@pytest.fixture(scope="session")
def exports(request: pytest.FixtureRequest) -> ExportCache:
    """Exported bundles that are kept on disk between runs."""
    return ExportCache(request.config.cache.mkdir("bundles"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded reference numbers and clips that lies beside the repository; not part
    of it.
    """
    folder = REPOSITORY.parent / "shared"
    if not (folder / "reference" / "README.md").is_file():
        pytest.skip(
            "needs the reference recordings in ../shared, which are not part of the repository"
        )
    return folder


@pytest.fixture(scope="session")
def reference(shared: Path) -> Path:
    """Numbers recorded from the public release."""
    return shared / "reference"


@pytest.fixture(scope="session")
def assets(shared: Path) -> Path:
    """Real clips and speech."""
    return shared / "assets"


@pytest.fixture(scope="session")
def three_windows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A face of three windows, and speech as long."""
    return write_clip(tmp_path_factory.mktemp("three_windows"), 36, halved=True)


@pytest.fixture(scope="session")
def three_windows_synced(
    three_windows: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> UInt8Array:
    """What a usual run with `LOSSLESS` makes of them."""
    return synced(
        three_windows, tmp_path_factory.mktemp("three_windows_synced") / "out.mkv", LOSSLESS
    )


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a file end after ten frames instead of half a minute."""
    monkeypatch.setattr(parts, "PART_S", Fraction(2, 5))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, which is the current one."""
    with chdir(tmp_path):
        yield tmp_path


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of checkpoints, which does not exist yet."""
    folder = tmp_path / "check points"
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(folder))
    return folder


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """The GPUs of this machine, on which all providers load but those that are named "broken"; a
    test may change it.
    """
    found = [Gpu(number, "GPU", "9.0", 10**10) for number in range(3)]

    def diagnose(provider: Provider, number: int = 0) -> Obstacle | None:
        if provider is CPU:
            return None
        names = [each.name for each in found if each.index == number]
        if not names or "broken" in names:
            return Obstacle("it is broken", "mend it")
        return None

    monkeypatch.setattr(devices, "gpus", lambda: tuple(found))
    monkeypatch.setattr(choice, "diagnose_provider", diagnose)
    return found


@pytest.fixture
def stand_in(tmp_path: Path) -> "StandIn":
    """ONNX Runtime's TensorRT provider over a stand-in for TensorRT's and CUDA's libraries."""
    from tests.tensorrt_stand_in.stand_in import stand_in_at

    return stand_in_at(tmp_path)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> CopyBuilder:
    """A provider that compiles, in place of TensorRT; see `compiling_provider`."""
    return compiling_provider(monkeypatch)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that counts the networks on it; see `Device`."""
    return watched_device(monkeypatch)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[DemoModels]:
    """Opens models of the small bundle with an engine cache of their own, and closes them."""
    with DemoModels(tmp_path / "cache") as made:
        yield made
