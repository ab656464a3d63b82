"""What the service tells of its jobs: log lines, and signed calls of the address that a job names."""

import json
import logging
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.serve import events
from latentsync_trt.serve.events import headers_of, log_step, log_to_stderr, read_secret
from tests.clips import write_face, write_sound
from tests.serving import FRAMES, PretendedWorker, ended, serving, until

pytestmark = pytest.mark.integration

# A published example of the scheme.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent; answers with `statuses` in turn, then with 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.messages: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), _Receive)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/ended"


class _Receive(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.messages.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, bytes]]:
    folder = tmp_path_factory.mktemp("clip")
    video, audio = write_face(folder / "face.mp4", 5), write_sound(folder / "speech.wav", 0.2)
    return {"video": (r"C:\clips\Ann 1.mp4", video.read_bytes()), "audio": ("a.wav", audio.read_bytes())}


def job_of(client: httpx.Client, clip: dict[str, tuple[str, bytes]], **texts: str) -> dict[str, Any]:
    sent = client.post("/v1/jobs", files=clip, data=texts)
    assert sent.status_code == 201, sent.text
    job: dict[str, Any] = sent.json()
    return job


def ready_worker() -> PretendedWorker:
    worker = PretendedWorker()
    worker.go.set()
    return worker


def test_the_end_of_a_job_is_told_and_told_again_until_it_is_heard(
    tmp_path: Path, receiver: Receiver, clip: dict[str, tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DELAYS_S", (0.0,) * 4)
    receiver.statuses = [500, 302]
    allowed = {"allow_urls": True, "allow_private_urls": True}
    with serving(tmp_path, ready_worker(), secret=read_secret(SECRET), **allowed) as (client, _):
        job = job_of(client, clip, webhook=receiver.url, label="row 7")
        assert (job["label"], job["files"]) == ("row 7", {"video": "Ann 1.mp4", "audio": "a.wav"})
        ended(client, job["id"])
        until(lambda: not (tmp_path / "jobs" / job["id"] / "webhook").exists())
    assert len(receiver.messages) == 3
    for headers, body in receiver.messages:
        expected = headers_of(read_secret(SECRET), job["id"], body, int(headers["webhook-timestamp"]))
        assert expected.items() <= headers.items()
    told = json.loads(receiver.messages[-1][1])
    assert told["type"] == "job.done"
    wanted = {"id": job["id"], "state": "done", "label": "row 7", "files": job["files"], "done": FRAMES}
    assert wanted.items() <= told["data"].items()


def test_what_was_not_told_is_told_by_the_next_service(
    tmp_path: Path, receiver: Receiver, clip: dict[str, tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DELAYS_S", (0.0, 3600.0))
    receiver.statuses = [503]
    how: dict[str, Any] = {"secret": read_secret(SECRET), "allow_urls": True, "allow_private_urls": True}
    with serving(tmp_path, ready_worker(), **how) as (client, _):
        job = job_of(client, clip, webhook=receiver.url)
        until(lambda: receiver.messages)
    with serving(tmp_path, ready_worker(), **how):
        until(lambda: len(receiver.messages) == 2)
    assert json.loads(receiver.messages[1][1])["data"]["id"] == job["id"]


def test_private_addresses_are_not_called(
    tmp_path: Path,
    receiver: Receiver,
    clip: dict[str, tuple[str, bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "latentsync_trt")
    with serving(tmp_path, ready_worker(), secret=read_secret(SECRET)) as (client, _):
        job = job_of(client, clip, webhook=receiver.url)
        until(lambda: not (tmp_path / "jobs" / job["id"] / "webhook").exists())
        for wrong in ("ftp://host/x", "nowhere", "http://"):
            assert client.post("/v1/jobs", files=clip, data={"webhook": wrong}).status_code == 422
        assert client.post("/v1/jobs", files=clip, data={"label": "x" * 201}).status_code == 422
    assert not receiver.messages
    assert "address 127.0.0.1: is not on the public Internet" in caplog.text


def test_without_a_secret_no_job_names_an_address(tmp_path: Path, clip: dict[str, tuple[str, bytes]]) -> None:
    with serving(tmp_path, ready_worker()) as (client, _):
        refused = client.post("/v1/jobs", files=clip, data={"webhook": "https://example.com"})
    assert refused.status_code == 422
    assert "LATENTSYNC_TRT_WEBHOOK_SECRET" in refused.json()["error"]


def test_signatures_are_those_of_the_standard() -> None:
    message, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}'
    assert headers_of(read_secret(SECRET), message, body, 1614265330)["webhook-signature"] == SIGNED
    for wrong in ("", "whsec_", SECRET[6:], f"whsec_{b64encode(bytes(23)).decode()}", f"{SECRET}!"):
        with pytest.raises(InputError, match="24 to 64 bytes in base64"):
            read_secret(wrong)


def test_each_step_is_a_line_of_the_log(
    tmp_path: Path, clip: dict[str, tuple[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "latentsync_trt")
    with serving(tmp_path, ready_worker()) as (client, _):
        job = job_of(client, clip, label="two\nlines")
        ended(client, job["id"])
        client.delete(f"/v1/jobs/{job['id']}")
    steps = [record.fields["step"] for record in caplog.records if hasattr(record, "fields")]
    assert steps == ["waiting", "running", "finding faces", "reading audio", "lip-sync", "done", "deleted"]
    assert f"job {job['id']}: waiting, label two lines, video Ann 1.mp4, audio a.wav" in caplog.messages


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_lines_are_text_or_json(form: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root, own = logging.getLogger(), logging.getLogger("latentsync_trt")
    before = root.handlers[:], root.level, own.level
    try:
        log_to_stderr(form)
        log_step("abc", "running", worker="gpu 0", attempt=1, label="")
        logging.getLogger("other").info("not shown")
        line = capsys.readouterr().err
    finally:
        root.handlers, root.level, own.level = before
    if form == "text":
        assert line.endswith(" job abc: running, worker gpu 0, attempt 1\n")
    else:
        message = {"level": "info", "message": "job abc: running, worker gpu 0, attempt 1"}
        assert {**message, "job": "abc", "step": "running", "worker": "gpu 0"}.items() <= json.loads(line).items()
