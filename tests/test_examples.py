"""The scripts of examples/, as they stand, on the built-in bundle and the beginning of the built-in clip."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.media import demo_clip
from latentsync_trt.media.audio import read_audio_blocks
from tests.clips import decoded
from tests.conftest import REPOSITORY
from tests.serving import RESULT, PretendedWorker, serving
from tests.sounds import write_samples

EXAMPLES = REPOSITORY / "examples"
FRAMES = 16
MOST_LINES = 50

Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script in an empty folder, as `python NAME.py WORDS` does; its clip is that of `FRAMES` frames."""
    samples = np.concatenate(list(read_audio_blocks(demo_clip.SPEECH)))
    write_samples(tmp_path / "short.wav", samples[: FRAMES * 16000 // 25], 16000)
    monkeypatch.setattr(demo_clip, "SPEECH", tmp_path / "short.wav")
    monkeypatch.chdir(tmp_path)

    def run_script(name: str, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return run_script


def test_every_script_is_short_and_named_here() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert f'("{script.stem}"' in tests
        assert len(script.read_text(encoding="utf-8").splitlines()) < MOST_LINES


@pytest.mark.integration
def test_one_clip(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("one_clip")
    assert len(decoded(Path("one_clip.mp4"))) == FRAMES
    shown = capsys.readouterr()
    assert f"face in {FRAMES} frames" in shown.out and f"lip-sync: {FRAMES} of {FRAMES}" in shown.err
    with pytest.raises(SystemExit, match=r"error: no\.mp4: "):
        run("one_clip", "no.mp4")


@pytest.mark.integration
def test_many_clips(run: Run) -> None:
    video, speech = demo_clip.demo_clip()
    with pytest.raises(SystemExit) as ended:
        run("many_clips", str(video), "missing.wav", str(speech), "--output", "dubbed")
    assert ended.value.code == 1
    assert [path.name for path in Path("dubbed").iterdir()] == ["2-short.mp4"]
    assert len(decoded(Path("dubbed/2-short.mp4"))) == FRAMES


@pytest.mark.integration
@pytest.mark.parametrize(("name", "source"), [("own_detector", "demo"), ("several_speakers", "two_people")])
def test_every_face_speaks(run: Run, name: str, source: str) -> None:
    run(name)
    before, after = (np.stack(decoded(Path(f"{each}.mp4"))).astype(int) for each in (source, name))
    assert len(after) == FRAMES
    changed = abs(after - before).max(axis=(0, 3)) > 40
    assert all(person.any() for person in np.split(changed, changed.shape[1] // 480, axis=1))


def test_serve_client(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = PretendedWorker()
    worker.go.set()
    with serving(tmp_path / "service", worker, "a-key") as (client, service):
        with pytest.raises(SystemExit, match=r"401: .*key: is missing"):
            run("serve_client", f"--url={client.base_url}")
        monkeypatch.setenv("LATENTSYNC_TRT_API_KEY", "a-key")
        run("serve_client", f"--url={client.base_url}")
        assert service.jobs(1, 0) == []
    assert Path("serve_client.mp4").read_bytes() == RESULT
