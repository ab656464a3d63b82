"""Engines built by a process of its own while a run goes on with another provider. Here both run on the CPU, and the
engines of the one that compiles are copies of the graphs."""

import itertools
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, OutOfMemory, ProviderUnavailable
from latentsync_trt.runtime.cache.store import EngineCache
from latentsync_trt.runtime.networks import background, networks
from latentsync_trt.runtime.networks.background import failure_of
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from tests.cache_worker import until
from tests.clips import decoded, synced, write_clip
from tests.compiling import COMPILING, compiling_provider
from tests.device import GRAPHS, denoised
from tests.small import small_bundle

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[1]
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
    monkeypatch.setattr(Selection, "device", "cpu")
    usual_command = background.build_command
    monkeypatch.setattr(
        background,
        "build_command",
        lambda engines, graphs: [sys.executable, "-m", "tests.build_worker", *usual_command(engines, graphs)[3:]],
    )
    monkeypatch.chdir(REPOSITORY)
    return Setting(tmp_path / "cold für Ženy")


def python(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Puts a line of Python in the place of the command that builds."""
    monkeypatch.setattr(background, "build_command", lambda engines, graphs: [sys.executable, "-c", code])


def test_a_run_starts_at_once_and_changes_between_two_windows(
    setting: Setting, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = synced(clip, tmp_path / "usual.mkv", QUICK)
    made, windows = setting.networks(), itertools.count()
    between_windows = made.between_windows

    def wait() -> None:
        if next(windows):
            made.wait_for_build()
        between_windows()

    monkeypatch.setattr(made, "between_windows", wait)
    with LipSync(made) as lip_sync:
        report = lip_sync.sync(*clip, tmp_path / "out.mkv", QUICK)
        assert not lip_sync.building
        assert lip_sync.wait_for_build() == ""
    assert (report.frames, report.windows) == (FRAMES, WINDOWS)
    assert np.array_equal(np.stack(decoded(tmp_path / "out.mkv")), usual)
    assert setting.notice("being built") == f"{len(GRAPHS)} engines for rtx are being built; running on cpu meanwhile"
    assert setting.notice("are ready after").endswith(" s; changing to them")
    about_model, *about_builds = setting.notices
    assert about_model.startswith("the built-in model is")
    assert len(about_builds) == 2
    assert [notice for notice in report.notices if notice in setting.notices] == setting.notices
    assert not any(engine.built for engine in report.engines)  # not by this process
    runs = {engine.provider: engine.runs for engine in report.engines if engine.graph == "denoise_step"}
    assert runs == {"cpu": 1, "rtx": 1 + WINDOWS - 1}  # before and after the change, with a first run
    assert {entry.state for entry in EngineCache(setting.cold).entries(hashes=True)} == {"ready"}


@pytest.mark.parametrize("provider", [COMPILING, Selection("cpu")], ids=["engines in the cache", "needs no engines"])
def test_without_missing_engines_nothing_is_built(setting: Setting, provider: Selection) -> None:
    warm = Engines(Bundle.load(small_bundle()), COMPILING, RuntimeOptions(), EngineCache(setting.cold), [].append)
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
    assert "is a file" in problem
    assert made.take_notices()[1:] == (f"building in the background failed, continuing with cpu: {problem}",)
    assert {engine.runs for engine in made.times() if engine.graph == "denoise_step"} == {2}
    made.close()


@pytest.mark.parametrize("error", [EngineBuildError("made by another driver"), OutOfMemory("too little memory")])
def test_engines_that_do_not_open_leave_the_run_going(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    python(monkeypatch, "'builds nothing, so the engines are built when they are opened'")
    open_engine = Engines.open

    def refuse(self: Engines, graph: str, **options: Path | None) -> OpenedEngine:
        if self.selection.name == "rtx" and graph == STEPS[1]:
            raise error
        return open_engine(self, graph, **options)

    monkeypatch.setattr(Engines, "open", refuse)
    made = setting.networks()
    made.prepare(STEPS)
    assert ended(made) == ""
    assert setting.notice("failed, continuing") == f"building in the background failed, continuing with cpu: {error}"
    made.close()


def test_closing_stops_the_build_and_its_leftover_is_not_used(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    python(
        monkeypatch,
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from pathlib import Path; from tests.cache_worker import main\n"
        f"main(Path({str(setting.cold)!r}), Path({str(signals)!r}), 'hang')",
    )
    made = setting.networks()
    made.prepare(STEPS)
    assert made.building
    until(lambda: list(signals.glob("builds-*")))
    assert (len(list(setting.cold.glob(".*/*/engine.bin"))), EngineCache(setting.cold).entries()) == (1, ())
    start_s = time.monotonic()
    made.close()
    assert time.monotonic() - start_s < background._STOP_S  # asked once, it ends
    assert not made.building
    assert EngineCache(setting.cold).entries() == ()
    EngineCache(setting.cold).remove_all([])
    assert list(setting.cold.rglob("engine.bin")) == []
    made.close()


def test_with_nothing_to_run_on_the_run_waits_and_says_so(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(selection: Selection) -> Selection:
        raise ProviderUnavailable("cuda: no NVIDIA driver")

    monkeypatch.setattr(networks, "next_provider", none)
    made = setting.networks()
    made.prepare(STEPS)
    assert not made.building
    reason = "cuda: no NVIDIA driver"
    waits = f"no provider to run on while engines are built, so the run waits for them: {reason}"
    assert setting.notices[0] == waits
    assert {(time.provider, time.built) for time in made.times()} == {("rtx", True)}
    made.close()


def test_without_a_process_to_build_in_the_run_waits_and_says_so(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    made = setting.networks()
    made.prepare(STEPS)
    assert "no process can be started that builds engines, so the run waits for them: " in setting.notices[0]
    assert {(time.provider, time.built) for time in made.times()} == {("rtx", True)}
    made.close()


@pytest.mark.parametrize(
    ("out", "err", "wanted"),
    [
        (json.dumps({"error": "too little memory"}), "Traceback\n", "too little memory"),
        ("", "Traceback (most recent call last):\n  ...\nImportError: av\n\n", "ImportError: av"),
        ('{"engines": []}', "", "it ended with code -9"),
        ("[]", "", "it ended with code -9"),
    ],
)
def test_the_reason_of_a_failed_build(out: str, err: str, wanted: str) -> None:
    assert failure_of(out.encode(), err.encode(), -9) == wanted


# On the command line.


def sync_command(setting: Setting, clip: tuple[Path, Path], output: Path, code: int = 0) -> tuple[str, str]:
    """The command with a build in the background, which ends with `code`; what it prints to stdout and stderr."""
    options = ["--provider", "rtx", "--steps", "1", "--build", "background", "--engine-cache", str(setting.cold)]
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
    target, built = tmp_path / "out.mp4", tmp_path / "built"
    python(
        monkeypatch,
        "import time; from pathlib import Path\n"
        f"while not Path({str(target)!r}).exists(): time.sleep(0.05)\n"
        f"time.sleep(0.5); Path({str(built)!r}).touch()",
    )
    _, err = sync_command(setting, clip, target)
    assert "engines for the next run are still being built; Ctrl-C stops that, the output is complete" in err
    assert built.exists()


def test_ctrl_c_while_waiting_loses_nothing(
    setting: Setting, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(monkeypatch, "import time; time.sleep(600)")

    def interrupt(self: background.BackgroundBuild) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(background.BackgroundBuild, "wait", interrupt)
    out, err = sync_command(setting, clip, tmp_path / "out.mp4", code=130)
    assert err.endswith("error: interrupted while engines were built for the next run; the output is complete\n")
    assert f"{FRAMES} frames" in out
