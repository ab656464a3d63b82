"""Engines built by a process of its own for the next run, while this one goes on with another
provider. Here both run on the CPU, and the engines of the one that compiles are copies of the
graphs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.cli import sync as cli_sync
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.engines import session_factory
from latentsync_trt.runtime.engines.cache import EngineCache
from tests.build_worker import GO, HANG, WAIT, work
from tests.cache_worker import until
from tests.clips import write_clip
from tests.compiling import COMPILING, CopyBuilder
from tests.device import DemoModels
from tests.small import small_bundle

pytestmark = pytest.mark.integration

QUICK = SyncOptions(steps=1, guidance=1.0, codec="ffv1", silence="model")
FRAMES = 5
STEP = ("denoise_step",)
NOTICE = "engines for tensorrt are built for the next run; this one uses cpu"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


@pytest.fixture
def cold(tmp_path: Path, builder: CopyBuilder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on a machine with a provider that compiles, and after it the CPU provider."""
    monkeypatch.setattr(session_factory, "build_in_child", work)
    return tmp_path / "cold für Ženy"


def test_a_build_that_fails_leaves_the_run_going(cold: Path, make: DemoModels) -> None:
    cold.write_text("in the place of the cache")
    opened = make(COMPILING, STEP, build="background", engine_cache=cold)
    assert opened.selection.name == "cpu"
    assert opened.build is not None
    assert str(cold) in opened.build.error.result()


def test_closing_stops_the_build_and_its_leftover_is_not_used(
    cold: Path, make: DemoModels, tmp_path: Path
) -> None:
    (tmp_path / HANG).touch()
    opened = make(COMPILING, STEP, build="background", engine_cache=cold)
    until(lambda: list(cold.rglob("engine.onnx")))
    opened.close()
    assert EngineCache(cold).entries() == ()
    assert list(cold.rglob("engine.onnx")) == []


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_command_starts_at_once_and_waits_for_the_build_and_ctrl_c_then_loses_nothing(
    cold: Path,
    clip: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    (tmp_path / (HANG if interrupted else WAIT)).touch()
    usual = cli_sync.interruption

    @contextmanager
    def waiting(text: str) -> Iterator[None]:
        with usual(text):
            assert (tmp_path / "out.mp4").is_file()
            if interrupted:
                raise KeyboardInterrupt
            (tmp_path / GO).touch()
            yield

    monkeypatch.setattr(cli_sync, "interruption", waiting)
    files = ["--video", str(clip[0]), "--audio", str(clip[1]), "-o", str(tmp_path / "out.mp4")]
    options = ["--bundle", str(small_bundle()), "--engine-cache", str(cold)]
    options += [
        "--provider",
        "tensorrt",
        "--build",
        "background",
        "--steps",
        "1",
        "--guidance",
        "1",
    ]
    options += ["--silence", "model"]
    result = CliRunner().invoke(main, ["sync", *files, *options])
    assert result.exit_code == (130 if interrupted else 0)
    assert "still being built; Ctrl-C stops" in result.stderr
    assert result.stderr.count(f"4 {NOTICE}") == 1
    assert {entry.state for entry in EngineCache(cold).entries(hashes=True)} == (
        set() if interrupted else {"ready"}
    )
    if not interrupted:
        settings = RuntimeOptions(build="background", engine_cache=cold)
        with LipSync.from_bundle(small_bundle(), "tensorrt", settings) as lip_sync:
            report = lip_sync.sync(*clip, tmp_path / "next.mkv", QUICK)
            assert lip_sync.build is None
        assert {(engine.provider, engine.built) for engine in report.engines} == {
            ("tensorrt", False)
        }
        assert NOTICE not in "".join(report.notices)
