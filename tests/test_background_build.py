"""Engines built by a process of its own for the next run, while this one goes on with another provider. Here both run
on the CPU, and the engines of the one that compiles are copies of the graphs."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.cli import sync as cli_sync
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.runtime import background_build, model
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.select import Selection
from tests.build_worker import HANG, WAIT, work
from tests.cache_worker import until
from tests.clips import write_clip
from tests.compiling import COMPILING, compiling_provider
from tests.device import CPU, GRAPHS, DemoModels
from tests.small import small_bundle

pytestmark = pytest.mark.integration

QUICK = SyncOptions(steps=1, codec="ffv1", silence="model")
FRAMES = 20
STEPS = ("denoise_step", "denoise_step_cached")
NOTICE = "engines for tensorrt are built for the next run; this one uses cpu"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on a machine with a provider that compiles, and after it the CPU provider."""
    compiling_provider(monkeypatch)
    monkeypatch.setattr(background_build, "build", work)
    return tmp_path / "cold für Ženy"


def test_this_run_starts_at_once_and_the_next_one_has_engines(
    cold: Path, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted = tmp_path / "painted"
    monkeypatch.setenv(WAIT, str(painted))
    options = RuntimeOptions(build="background", engine_cache=cold)
    for provider in ("cpu", "tensorrt"):
        with LipSync.from_bundle(small_bundle(), "tensorrt", options) as lip_sync:
            report = lip_sync.sync(*clip, tmp_path / f"{provider}.mkv", QUICK)
            if provider == "cpu":
                assert lip_sync.build is not None
                assert not lip_sync.build.done()
                painted.touch()
                assert lip_sync.build.result() == ""
                assert lip_sync.build.done()
            else:
                assert lip_sync.build is None
        assert report.provider == provider
        assert {(engine.provider, engine.built) for engine in report.engines} == {(provider, False)}
        assert [text for text in report.notices if NOTICE in text] == [f"4 {NOTICE}"] * (provider == "cpu")
    assert {entry.state for entry in EngineCache(cold).entries(hashes=True)} == {"ready"}


@pytest.mark.parametrize("selection", [COMPILING, CPU], ids=["engines in the cache", "needs no engines"])
def test_without_missing_engines_nothing_is_built(cold: Path, make: DemoModels, selection: Selection) -> None:
    warm = SessionFactory(Bundle.load(small_bundle()), COMPILING, RuntimeOptions(), EngineCache(cold), [].append)
    for graph in STEPS:
        warm.build(graph)
    opened = make(selection, STEPS, build="background", engine_cache=cold)
    assert opened.build is None
    assert opened.selection == selection
    assert make.notices == []


def test_a_build_that_fails_leaves_the_run_going(cold: Path, make: DemoModels) -> None:
    cold.write_text("in the place of the cache")
    opened = make(COMPILING, STEPS, build="background", engine_cache=cold)
    assert opened.selection.name == "cpu"
    assert opened.build is not None
    assert "the engine cache cannot be used" in opened.build.wait()


def test_closing_stops_the_build_and_its_leftover_is_not_used(
    cold: Path, make: DemoModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANG, "1")
    opened = make(COMPILING, STEPS, build="background", engine_cache=cold)
    until(lambda: list(cold.rglob("engine.onnx")))
    opened.close()
    assert EngineCache(cold).entries() == ()
    assert list(cold.rglob("engine.onnx")) == []


def test_with_nothing_to_run_on_the_run_waits_and_says_so(
    cold: Path, make: DemoModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> Selection:
        raise ProviderUnavailable("cuda: no NVIDIA driver")

    monkeypatch.setattr(model, "next_provider", none)
    opened = make(COMPILING, STEPS, build="background", engine_cache=cold)
    assert opened.build is None
    assert "so the run waits for them: cuda: no NVIDIA driver" in make.notices[0]
    assert {(time.provider, time.built) for time in opened.times()} == {("tensorrt", True)}


# On the command line.


def sync_command(cold: Path, clip: tuple[Path, Path], output: Path) -> Result:
    options = ["--provider", "tensorrt", "--steps", "1", "--build", "background", "--engine-cache", str(cold)]
    files = ["--bundle", str(small_bundle()), "--video", str(clip[0]), "--audio", str(clip[1]), "-o", str(output)]
    result = CliRunner().invoke(main, ["sync", *files, *options])
    assert output.is_file()
    return result


def test_the_command_waits_so_that_the_next_run_is_fast(
    cold: Path, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, interruption = tmp_path / "waiting", cli_sync.interruption

    def watched(text: str) -> AbstractContextManager[None]:
        waiting.touch()
        return interruption(text)

    monkeypatch.setenv(WAIT, str(waiting))
    monkeypatch.setattr(cli_sync, "interruption", watched)
    result = sync_command(cold, clip, tmp_path / "out.mp4")
    assert result.exit_code == 0
    assert "engines for the next run are still being built; Ctrl-C stops that, the output is complete" in result.stderr
    assert [entry.state for entry in EngineCache(cold).entries()] == ["ready"] * len(set(GRAPHS) - {STEPS[1]})


def test_ctrl_c_while_waiting_loses_nothing(
    cold: Path, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv(HANG, "1")
    monkeypatch.setattr(cli_sync, "wait", interrupt)
    result = sync_command(cold, clip, tmp_path / "out.mp4")
    assert result.exit_code == 130
    message = "error: interrupted while engines were built for the next run; the output is complete\n"
    assert result.stderr.endswith(message)
    assert f"{FRAMES} frames" in result.stdout
