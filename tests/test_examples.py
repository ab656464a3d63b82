"""The scripts and the notebook of examples/, as they stand, and the job of docs/kuberay.yaml."""

import os
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import nbformat
import numpy as np
import pytest
import yaml
from nbclient import NotebookClient

from latentsync_trt.bundle import find
from latentsync_trt.cli.batch import batch
from latentsync_trt.config import PRESETS, Sampling
from latentsync_trt.live import sessions
from latentsync_trt.live.cost import WindowCost
from latentsync_trt.media import demo_clip
from latentsync_trt.media.audio import read_audio_blocks
from tests.clips import decoded, write_clip
from tests.conftest import REPOSITORY
from tests.serving import RESULT, PretendedWorker, serving
from tests.small import small_bundle
from tests.sounds import write_samples

EXAMPLES = REPOSITORY / "examples"
NOTEBOOK = nbformat.read(EXAMPLES / "latentsync_trt.ipynb", as_version=4)
CODE = {cell.id: cell for cell in NOTEBOOK.cells if cell.cell_type == "code"}
FRAMES = 4

Run = Callable[..., None]


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script in an empty folder, as `python NAME.py WORDS` does; its clip has `FRAMES`
    frames, its model two steps, and live is fast enough.
    """
    samples = np.concatenate(list(read_audio_blocks(demo_clip.SPEECH)))
    speech = write_samples(here / "short.wav", samples[: FRAMES * 16000 // 25], 16000)
    two_steps = dict.fromkeys(("balanced", "fast"), Sampling(2, "dpmpp", 1))
    for place, name, value in (
        (demo_clip, "SPEECH", speech),
        (find, "demo_folder", small_bundle),
        (sessions, "measure_cost", lambda *_: WindowCost(0.0, 0.0)),
    ):
        monkeypatch.setattr(place, name, value)

    def run_script(name: str, *words: str) -> None:
        with patch.dict(PRESETS, two_steps), patch.object(sys, "argv", [f"{name}.py", *words]):
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return run_script


@pytest.mark.integration
def test_one_clip(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("one_clip")
    assert len(decoded(Path("one_clip.mp4"))) == FRAMES
    shown = capsys.readouterr()
    assert (
        f"face in {FRAMES} frames" in shown.out and f"lip-sync: {FRAMES} of {FRAMES}" in shown.err
    )
    with pytest.raises(SystemExit, match=r"error: no\.mp4: "):
        run("one_clip", "no.mp4")


@pytest.mark.integration
def test_live(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("live")
    assert f"spoken={FRAMES}, " in capsys.readouterr().out
    assert len(decoded(Path("live.mp4"))) > FRAMES


@pytest.mark.integration
def test_many_clips(run: Run) -> None:
    video, speech = demo_clip.demo_clip()
    with pytest.raises(SystemExit) as ended:
        run("many_clips", str(video), "missing.wav", str(speech), "--output", "dubbed")
    assert ended.value.code == 1
    assert [path.name for path in Path("dubbed").iterdir()] == ["2-short.mp4"]
    assert len(decoded(Path("dubbed/2-short.mp4"))) == FRAMES


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "source"), [("own_detector", "demo"), ("several_speakers", "two_people")]
)
def test_every_face_speaks(run: Run, name: str, source: str) -> None:
    run(name)
    before, after = (np.stack(decoded(Path(f"{each}.mp4"))).astype(int) for each in (source, name))
    assert len(after) == FRAMES
    changed = abs(after - before).max(axis=(0, 3)) > 40
    assert all(
        person.any()
        for person in np.split(changed, changed.shape[1] // demo_clip.DEMO_CAMERA.side_px, axis=1)
    )


def test_serve_client(run: Run, tmp_path: Path) -> None:
    worker = PretendedWorker()
    worker.go.set()
    with serving(tmp_path / "service", worker, "a-key") as (client, service):
        with pytest.raises(SystemExit, match=r"401: .*key: is missing"):
            run("serve_client", f"--url={client.base_url}")
        with patch.dict(os.environ, LATENTSYNC_TRT_API_KEY="a-key"):
            run("serve_client", f"--url={client.base_url}")
        assert service.jobs.newest(1) == []
    assert Path("serve_client.mp4").read_bytes() == RESULT


def test_the_notebook_has_no_results_and_downloads_nothing_by_itself() -> None:
    nbformat.validate(NOTEBOOK)
    assert all(not cell.outputs and cell.execution_count is None for cell in CODE.values())
    settings: dict[str, object] = {}
    exec(CODE["settings"].source, settings)
    assert (settings["VIDEO"], settings["UPLOAD"], settings["PUBLISHED"]) == (None, False, None)


@pytest.mark.slow
@pytest.mark.integration
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    names = "HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"
    folders = {name: str(tmp_path / name) for name in names}
    CODE["settings"].source += "\nVIDEO, AUDIO = {!r}, {!r}".format(
        *map(str, write_clip(tmp_path, FRAMES))
    )
    with patch.dict(os.environ, folders):
        NotebookClient(
            NOTEBOOK, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    assert len(decoded(tmp_path / "out.mp4")) == FRAMES
    pages = [
        output.data["text/html"]
        for name in ("show", "report", "compare")
        for output in CODE[name].outputs
    ]
    assert [page.strip().partition(" ")[0] for page in pages] == ["<video"] * 2 + [
        "<div><iframe"
    ] * 2


def test_the_command_for_kuberay_is_one_of_this_package_whose_workers_fit_into_its_pods(
    tmp_path: Path,
) -> None:
    """An actor that no pod can hold would wait forever."""
    (job,) = yaml.safe_load_all((REPOSITORY / "docs" / "kuberay.yaml").read_text(encoding="utf-8"))
    program, name, *words = shlex.split(job["spec"]["entrypoint"])
    assert (program, name) == ("latentsync-trt", "batch")
    (tmp_path / "jobs.csv").touch()
    words = [word.replace("/data/jobs.csv", str(tmp_path / "jobs.csv")) for word in words]
    with batch.make_context("batch", words) as context:
        options = context.params
    assert options["ray"] == "auto"
    assert options["bundle"].startswith("s3://")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = float(container["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus >= 1
    assert options["provider"] == "tensorrt"  # else workers would not wait for GPUs
    assert group["maxReplicas"] * gpus >= options["workers"]
