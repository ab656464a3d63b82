"""The notebook of examples/: executed from top to bottom, on the built-in bundle."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.clips import decoded, write_clip
from tests.conftest import REPOSITORY

NOTEBOOK = nbformat.read(REPOSITORY / "examples" / "latentsync_trt.ipynb", as_version=4)
CODE = {cell.id: cell for cell in NOTEBOOK.cells if cell.cell_type == "code"}
FRAMES = 16


def test_it_has_no_results_and_downloads_nothing_by_itself() -> None:
    nbformat.validate(NOTEBOOK)
    assert all(not cell.outputs and cell.execution_count is None for cell in CODE.values())
    settings: dict[str, object] = {}
    exec(CODE["settings"].source, settings)
    assert (settings["VIDEO"], settings["UPLOAD"], settings["PUBLISHED"]) == (None, False, None)


@pytest.mark.slow
@pytest.mark.integration
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    CODE["settings"].source += "\nVIDEO, AUDIO = {!r}, {!r}".format(*map(str, write_clip(tmp_path, FRAMES)))
    NotebookClient(NOTEBOOK, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert len(decoded(tmp_path / "out.mp4")) == FRAMES
    pages = [output.data["text/html"] for name in ("show", "report", "compare") for output in CODE[name].outputs]
    starts = [page.strip().partition(" ")[0] for page in pages]
    assert starts == ["<video", "<video", "<div><iframe", "<div><iframe"]
    assert CODE["published"].outputs == []
