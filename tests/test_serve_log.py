"""What the service tells of its jobs: their labels and files, and a line of the log for each step."""

import logging
from pathlib import Path

import pytest

from latentsync_trt.serve.server import log_to_stderr
from tests.clips import write_face, write_sound
from tests.serving import PretendedWorker, ended, serving

pytestmark = pytest.mark.integration


def test_each_step_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "latentsync_trt")
    video, audio = write_face(tmp_path / "face.mp4", 5), write_sound(tmp_path / "speech.wav", 0.2)
    clip = {"video": (r"C:\clips\Ann 1.mp4", video.read_bytes()), "audio": ("a.wav", audio.read_bytes())}
    worker = PretendedWorker()
    worker.go.set()
    with serving(tmp_path / "service", worker) as (client, _):
        assert client.post("/v1/jobs", files=clip, data={"label": "x" * 201}).status_code == 422
        job = client.post("/v1/jobs", files=clip, data={"label": "two\nlines"}).raise_for_status().json()
        assert (job["label"], job["files"]) == ("two\nlines", {"video": "Ann 1.mp4", "audio": "a.wav"})
        ended(client, job["id"])
        client.delete(f"/v1/jobs/{job['id']}")
    steps = [text.partition(": ")[2] for text in caplog.messages if text.startswith(f"job {job['id']}: ")]
    assert steps == [
        "waiting, label two lines, video Ann 1.mp4, audio a.wav",
        "running, worker pretended, attempt 1",
        *("finding faces, frames 20", "reading audio, frames 20", "lip-sync, frames 20"),
        "done, seconds 3.0, frames 20",
        "deleted",
    ]


def test_log_lines_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    root, own = logging.getLogger(), logging.getLogger("latentsync_trt")
    before = root.handlers[:], root.level, own.level
    try:
        log_to_stderr()
        own.info("job %s: waiting, label %s", "abc", "a\u202eb")
        logging.getLogger("other").info("not shown")
        line = capsys.readouterr().err
    finally:
        root.handlers, root.level, own.level = before
    assert line.endswith(" job abc: waiting, label a\\u202eb\n") and line.count("\n") == 1
