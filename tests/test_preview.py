"""Small pictures of a run: made on request of what is written, and kept as a JPEG by a worker."""

import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch.tasks import Task, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.types import Progress
from tests.clips import decoded, write_clip
from tests.small import small_bundle

CLOSE_LEVELS = 3
"""Mean difference that coding and scaling may make."""


@pytest.mark.integration
def test_a_worker_shows_frames_while_it_works(tmp_path: Path) -> None:
    video, audio = write_clip(tmp_path, 6)
    preview = tmp_path / "preview.jpg"
    shown = list[bool]()

    def look(progress: Progress) -> None:
        if progress.stage == "lip-sync":
            shown.append(preview.exists())
            if len(shown) == 3:
                preview.unlink()
                threading.Event().wait(1.1)  # it is written again after a second

    worker = Worker(WorkerSettings(str(small_bundle()), "cpu"))
    for path in (preview, tmp_path / "missing" / "preview.jpg"):  # the second cannot be written
        task = Task(
            "one",
            str(video),
            str(audio),
            str(tmp_path / "out.mp4"),
            SyncOptions(steps=1),
            str(path),
        )
        worker.run(task, look)
    assert shown == [False, *11 * [True]]
    jpeg = cv2.cvtColor(cv2.imread(str(preview)), cv2.COLOR_BGR2RGB)
    frames = (
        cv2.resize(frame, jpeg.shape[1::-1], interpolation=cv2.INTER_AREA)
        for frame in decoded(Path(task.output))
    )
    assert min(np.abs(jpeg.astype(int) - frame).mean() for frame in frames) < CLOSE_LEVELS
    assert not (tmp_path / "missing").exists()
    assert not list(tmp_path.glob("*.part"))
