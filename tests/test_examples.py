"""The scripts of examples/, as they stand, on the built-in bundle and the beginning of the built-in clip."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media import demo_clip
from tests.clips import decoded, write_face
from tests.conftest import REPOSITORY
from tests.serving import RESULT, PretendedWorker, serving

EXAMPLES = REPOSITORY / "examples"
FRAMES = 16
MOST_LINES = 50

Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script in an empty folder, as `python NAME.py WORDS` does; its clip is that of `FRAMES` frames."""
    samples, rate_hz = soundfile.read(demo_clip.SPEECH)
    soundfile.write(tmp_path / "short.wav", samples[: FRAMES * rate_hz // 25], rate_hz)
    monkeypatch.setattr(demo_clip, "SPEECH", tmp_path / "short.wav")
    monkeypatch.chdir(tmp_path)

    def run_script(name: str, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return run_script


def test_every_script_is_short_and_has_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert f'run("{script.stem}"' in tests
        assert len(script.read_text(encoding="utf-8").splitlines()) < MOST_LINES


@pytest.mark.integration
def test_one_clip(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("one_clip")
    assert len(decoded(Path("one_clip.mp4"))) == FRAMES
    shown = capsys.readouterr()
    assert f"face in {FRAMES} frames" in shown.out and "cpu: " in shown.out
    assert f"lip-sync: {FRAMES} of {FRAMES}" in shown.err and "note: the built-in model" in shown.err
    with pytest.raises(SystemExit, match=r"error: no\.mp4: "):
        run("one_clip", "no.mp4", "short.wav")


@pytest.mark.integration
def test_many_clips(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_face(Path("face.mp4"), FRAMES)
    with pytest.raises(SystemExit) as ended:
        run("many_clips", "face.mp4", "missing.wav", "short.wav", "--output", "dubbed")
    assert ended.value.code == 1
    assert [path.name for path in Path("dubbed").iterdir()] == ["2-short.mp4"]
    assert len(decoded(Path("dubbed/2-short.mp4"))) == FRAMES
    assert "1-missing.mp4: failed: missing.wav" in capsys.readouterr().err.replace("\\", "/").replace("dubbed/", "")


@pytest.mark.integration
def test_own_detector(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("own_detector")
    assert "seam" in capsys.readouterr().out
    assert len(decoded(Path("own_detector.mp4"))) == FRAMES
    write_face(Path("gone.mp4"), FRAMES, blank=range(FRAMES))
    with pytest.raises(LatentSyncError, match="no face"):
        run("own_detector", "gone.mp4", "short.wav")


@pytest.mark.integration
def test_several_speakers(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("several_speakers")
    before, after = (np.stack(decoded(Path(f"{name}.mp4"))).astype(int) for name in ("two_people", "several_speakers"))
    changed = abs(after - before).max(axis=(0, 3)) > 40
    left, right = np.split(changed, 2, axis=1)
    assert len(after) == FRAMES and left.any() and right.any()
    assert "speaker 0: " in (shown := capsys.readouterr().out) and "speaker 1: " in shown


def test_serve_client(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = PretendedWorker()
    worker.go.set()
    with serving(tmp_path / "service", worker, "a-key") as (client, service):
        url = f"--url={client.base_url}"
        with pytest.raises(SystemExit, match=r"401: .*key: is missing"):
            run("serve_client", url)
        monkeypatch.setenv("LATENTSYNC_TRT_API_KEY", "a-key")
        run("serve_client", url)
        assert service.jobs(1, 0) == []
    assert Path("serve_client.mp4").read_bytes() == RESULT
