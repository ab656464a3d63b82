"""The notebook of examples/: executed from top to bottom, on the built-in bundle."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.clips import decoded, write_clip
from tests.conftest import REPOSITORY

NOTEBOOK = nbformat.read(REPOSITORY / "examples" / "latentsync_trt.ipynb", as_version=4)
FRAMES = 16


def test_it_has_no_results_and_asks_for_no_download() -> None:
    nbformat.validate(NOTEBOOK)
    code = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert all(len(cell.id) < 20 for cell in NOTEBOOK.cells)
    settings: dict[str, object] = {}
    exec(next(cell.source for cell in code if cell.id == "settings"), settings)
    assert (settings["VIDEO"], settings["UPLOAD"], settings["PUBLISHED"]) == (None, False, None)


@pytest.mark.slow
@pytest.mark.integration
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.from_dict(NOTEBOOK)
    settings = next(cell for cell in notebook.cells if cell.id == "settings")
    video, audio = write_clip(tmp_path, FRAMES)
    settings.source += f"\nVIDEO, AUDIO = {str(video)!r}, {str(audio)!r}"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    assert "latentsync-trt" in outputs["install"][0].text
    shown = [output.data["text/html"] for output in (*outputs["show"], *outputs["report"], *outputs["compare"])]
    assert [html.count("data:video/mp4;base64,") for html in shown[:2]] == [1, 1]
    assert len(decoded(tmp_path / "out.mp4")) == FRAMES
    assert all(html.startswith("<div><iframe srcdoc=") for html in shown[2:])
    assert outputs["published"] == []
