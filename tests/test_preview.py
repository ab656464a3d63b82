"""Small pictures of a run: made on request of what is written, and kept as a JPEG by a worker."""

import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch import worker as batch_worker
from latentsync_trt.batch.tasks import Task, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.types import Progress, UInt8Array
from tests.clips import decoded, write_clip
from tests.small import small_bundle

CLOSE_LEVELS = 3
"""Mean difference that coding and scaling may make."""


def differences(one: UInt8Array, other: UInt8Array) -> float:
    resized = cv2.resize(other, one.shape[1::-1], interpolation=cv2.INTER_AREA)
    return float(np.abs(one.astype(int) - resized.astype(int)).mean())


@pytest.mark.integration
def test_a_worker_shows_the_newest_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_worker, "_PREVIEW_S", 0.0)
    video, audio = write_clip(tmp_path, 6)
    preview, shown = tmp_path / "preview.jpg", list[bool]()

    def look(progress: Progress) -> None:
        if progress.stage == "lip-sync":
            shown.append(preview.exists())

    worker = Worker(WorkerSettings(str(small_bundle()), "cpu"))
    for path in (preview, tmp_path / "missing" / "preview.jpg"):  # the second cannot be written
        task = Task("one", str(video), str(audio), str(tmp_path / "out.mp4"), SyncOptions(steps=1), str(path))
        worker.run(task, look, threading.Event())
    assert shown == [False, *11 * [True]]
    jpeg = cv2.cvtColor(cv2.imread(str(preview)), cv2.COLOR_BGR2RGB)
    assert differences(jpeg, decoded(tmp_path / "out.mp4")[-1]) < CLOSE_LEVELS
    assert not (tmp_path / "missing").exists()
    assert not list(tmp_path.glob("*.part"))
