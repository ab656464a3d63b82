"""Engines built by a process of its own while a run goes on with another provider. Here both run on the CPU, and the
engines of the one that compiles are copies of the graphs."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import OutOfMemory, ProviderUnavailable
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.networks import background, networks
from latentsync_trt.runtime.model import Networks
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.engines.session_factory import SessionFactory, OpenedEngine
from tests.build_worker import HANG, WAIT, work
from tests.cache_worker import until
from tests.clips import decoded, synced, write_clip
from tests.compiling import COMPILING, compiling_provider
from tests.device import GRAPHS, denoised
from tests.small import small_bundle

pytestmark = pytest.mark.integration

QUICK = SyncOptions(steps=2, cache_interval=2, codec="ffv1", silence="model")
FRAMES, WINDOWS = 20, 2
STEPS = ("denoise_step", "denoise_step_cached")


@dataclass
class Setting:
    """An empty cache, and the notices."""

    cold: Path
    notices: list[str] = field(default_factory=list)

    def networks(self, selection: Selection = COMPILING) -> Networks:
        """On the small bundle."""
        options = RuntimeOptions(build="background", engine_cache=self.cold)
        return Networks(Bundle.load(small_bundle()), selection, options, on_notice=self.notices.append)

    def notice(self, words: str) -> str:
        """The one notice with these words."""
        (notice,) = (notice for notice in self.notices if words in notice)
        return notice


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A provider that compiles, and after it the CPU provider."""
    compiling_provider(monkeypatch)
    monkeypatch.setattr(networks, "next_provider", lambda selection: Selection("cpu"))
    monkeypatch.setattr(background, "build", work)
    return Setting(tmp_path / "cold für Ženy")


def test_a_run_starts_at_once_and_changes_between_two_windows(
    setting: Setting, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, painted = synced(clip, tmp_path / "usual.mkv", QUICK), tmp_path / "painted"
    monkeypatch.setenv(WAIT, str(painted))
    made, windows = setting.networks(), itertools.count()
    between_windows = made.between_windows

    def wait() -> None:
        if next(windows):
            painted.touch()
            made.wait_for_build()
        between_windows()

    monkeypatch.setattr(made, "between_windows", wait)
    with LipSync(made) as lip_sync:
        report = lip_sync.sync(*clip, tmp_path / "out.mkv", QUICK)
        assert not lip_sync.building
        assert lip_sync.wait_for_build() == ""
    assert (report.frames, report.windows) == (FRAMES, WINDOWS)
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), usual)
    assert (
        setting.notice("being built") == f"{len(GRAPHS)} engines for tensorrt are being built; running on cpu meanwhile"
    )
    assert setting.notice("are ready after").endswith(" s; changing to them")
    assert sorted(notice for notice in report.notices if notice in setting.notices) == sorted(setting.notices)
    assert not any(engine.built for engine in report.engines)  # not by this process
    runs = {engine.provider: engine.runs for engine in report.engines if engine.graph == "denoise_step"}
    assert runs == {"cpu": 1, "tensorrt": 1 + WINDOWS - 1}  # before and after the change, with a first run
    assert {entry.state for entry in EngineCache(setting.cold).entries(hashes=True)} == {"ready"}


@pytest.mark.parametrize("provider", [COMPILING, Selection("cpu")], ids=["engines in the cache", "needs no engines"])
def test_without_missing_engines_nothing_is_built(setting: Setting, provider: Selection) -> None:
    warm = SessionFactory(Bundle.load(small_bundle()), COMPILING, RuntimeOptions(), EngineCache(setting.cold), [].append)
    for graph in STEPS:
        warm.build(graph)
    made = setting.networks(provider)
    made.prepare(STEPS)
    assert not made.building
    assert setting.notices == []
    made.close()


def ended(made: Networks) -> str:
    """Runs the denoiser before and after the end of the build; returns what went wrong with the build."""
    before = denoised(made)
    problem = made.wait_for_build()
    made.between_windows()
    assert not made.building
    assert np.array_equal(denoised(made), before)
    return problem


def test_a_build_that_fails_leaves_the_run_going(setting: Setting) -> None:
    setting.cold.write_text("in the place of the cache")
    made = setting.networks()
    made.prepare(STEPS)
    problem = ended(made)
    assert "the engine cache cannot be used" in problem
    assert made.take_notices()[1:] == (f"building in the background failed, continuing with cpu: {problem}",)
    assert {engine.runs for engine in made.times() if engine.graph == "denoise_step"} == {2}
    made.close()


def test_engines_that_do_not_open_leave_the_run_going(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    open_engine, error = SessionFactory.open, OutOfMemory("too little memory")

    def refuse(self: SessionFactory, graph: str, **options: Path | None) -> OpenedEngine:
        if self.selection.name == "tensorrt" and graph == STEPS[1]:
            raise error
        return open_engine(self, graph, **options)

    monkeypatch.setattr(Engines, "open", refuse)
    made = setting.networks()
    made.prepare(STEPS)
    assert ended(made) == ""
    assert setting.notice("failed, continuing") == f"building in the background failed, continuing with cpu: {error}"
    made.close()


def test_closing_stops_the_build_and_its_leftover_is_not_used(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANG, "1")
    made = setting.networks()
    made.prepare(STEPS)
    until(lambda: list(setting.cold.rglob("engine.onnx")))
    assert made.building
    assert EngineCache(setting.cold).entries() == ()
    made.close()
    assert not made.building
    assert EngineCache(setting.cold).entries() == ()
    assert list(setting.cold.rglob("engine.onnx")) == []
    made.close()


def test_with_nothing_to_run_on_the_run_waits_and_says_so(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(selection: Selection) -> Selection:
        raise ProviderUnavailable("cuda: no NVIDIA driver")

    monkeypatch.setattr(networks, "next_provider", none)
    made = setting.networks()
    made.prepare(STEPS)
    assert not made.building
    assert "so the run waits for them" in setting.notices[0]
    assert {(time.provider, time.built) for time in made.times()} == {("tensorrt", True)}
    made.close()


# On the command line.


def sync_command(setting: Setting, clip: tuple[Path, Path], output: Path, code: int = 0) -> tuple[str, str]:
    """The command with a build in the background, which ends with `code`; what it prints to stdout and stderr."""
    options = ["--provider", "tensorrt", "--steps", "1", "--build", "background", "--engine-cache", str(setting.cold)]
    files = ["--bundle", str(small_bundle()), "--video", str(clip[0]), "--audio", str(clip[1]), "-o", str(output)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latentsync_trt.runtime.providers.select.select_provider", lambda name, device: COMPILING)
        result = CliRunner().invoke(main, ["sync", *files, *options])
    assert result.exit_code == code
    assert output.is_file()
    return result.stdout, result.stderr


def test_the_command_waits_so_that_the_next_run_is_fast(
    setting: Setting, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, wait = tmp_path / "waiting", background.BackgroundBuild.wait

    def watched(self: background.BackgroundBuild) -> str:
        waiting.touch()
        return wait(self)

    monkeypatch.setenv(WAIT, str(waiting))
    monkeypatch.setattr(background.BackgroundBuild, "wait", watched)
    _, err = sync_command(setting, clip, tmp_path / "out.mp4")
    assert "engines for the next run are still being built; Ctrl-C stops that, the output is complete" in err
    assert {entry.state for entry in EngineCache(setting.cold).entries()} == {"ready"}


def test_ctrl_c_while_waiting_loses_nothing(
    setting: Setting, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANG, "1")

    def interrupt(self: background.BackgroundBuild) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(background.BackgroundBuild, "wait", interrupt)
    out, err = sync_command(setting, clip, tmp_path / "out.mp4", code=130)
    assert err.endswith("error: interrupted while engines were built for the next run; the output is complete\n")
    assert f"{FRAMES} frames" in out
