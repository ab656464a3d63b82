"""Small pictures of a run: made on request of what is written, and kept as a JPEG by a worker."""

import threading
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch import worker as batch_worker
from latentsync_trt.batch.tasks import Task, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.media.demo_clip import camera_frames
from latentsync_trt.media.hdr import PQ
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.types import ColorTags, Patch, Progress, UInt8Array, VideoInfo, YuvPlanes
from tests.clips import decoded, frame_at, open_writer, write_clip
from tests.small import small_bundle

CLOSE_LEVELS = 3
"""Mean difference that coding and scaling may make."""


def differences(one: UInt8Array, other: UInt8Array) -> float:
    resized = cv2.resize(other, one.shape[1::-1], interpolation=cv2.INTER_AREA)
    return float(np.abs(one.astype(int) - resized.astype(int)).mean())


@pytest.mark.parametrize(
    ("color", "bits", "pixel_aspect", "size"),
    [
        (ColorTags(1, 1, 1, full_range=False), 8, Fraction(1), (480, 480, 3)),
        (ColorTags(1, 1, 1, full_range=True), 10, Fraction(1, 2), (480, 240, 3)),
        (ColorTags(9, PQ, 9, full_range=False), 10, Fraction(1), (480, 480, 3)),
    ],
)
def test_a_small_picture_of_what_is_written(
    tmp_path: Path, color: ColorTags, bits: int, pixel_aspect: Fraction, size: tuple[int, ...]
) -> None:
    rgb = cv2.resize(next(camera_frames(Fraction(1))), (642, 642))
    black = [np.zeros((side, side), np.uint8 if bits == 8 else np.uint16) for side in (642, 321, 321)]
    planes = YuvPlanes(*black, color, bits)
    info = VideoInfo(642, 642, None, "yuv420p" + ("10le" if bits == 10 else ""), False, pixel_aspect, color)
    with open_writer(tmp_path / "out.mp4", info) as writer:
        frame, patch = (
            frame_at(0, LazyRgb(planes), planes),
            Patch(0, 0, rgb * np.uint16(257), np.ones((642, 642), "f4")),
        )
        small = writer.small_rgb(frame, [patch])
        writer.write(frame, [patch])
    assert (small.shape, small.dtype) == (size, np.uint8)
    assert differences(small, rgb) < CLOSE_LEVELS


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
    worker.close()
    assert shown == [False, *11 * [True]]
    jpeg = cv2.cvtColor(cv2.imread(str(preview)), cv2.COLOR_BGR2RGB)
    assert differences(jpeg, decoded(tmp_path / "out.mp4")[-1]) < CLOSE_LEVELS
    assert not (tmp_path / "missing").exists()
    assert not list(tmp_path.glob("*.part"))
