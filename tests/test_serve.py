"""The HTTP service, over real HTTP, with workers that pretend."""

import errno
import json
import os
import re
import select
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.tasks import Started, TaskError
from latentsync_trt.errors import OutputError
from latentsync_trt.serve import app, service
from tests.clips import write_face, write_sound
from tests.serving import FRAMES, RESULT, PretendedWorker, ended, serving, until

pytestmark = pytest.mark.integration

MOST_READ_BYTES = 16_000_000
"""Of a refused upload: what the service read, and the buffers of both sockets, of 4 to 6 MB on Linux."""


UPLOAD = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b'Content-Length: 999\r\n\r\n--x\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\nabc'
)
"""The beginning of one."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A video and a recording of 0.2 s, which pass all checks."""
    folder = tmp_path_factory.mktemp("clip")
    video, audio = write_face(folder / "face.mp4", 5), write_sound(folder / "speech.wav", 0.2)
    return {"video": video.read_bytes(), "audio": audio.read_bytes()}


@pytest.fixture
def worker() -> PretendedWorker:
    return PretendedWorker()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "service"


@pytest.fixture
def client(folder: Path, worker: PretendedWorker) -> Iterator[httpx.Client]:
    with serving(folder, worker, max_upload_mb=5, max_queue=3) as (opened, _):
        yield opened


def send(client: httpx.Client, clip: dict[str, bytes], **form: Any) -> httpx.Response:
    """Submits a job; `form`: options, as a dict, and more texts and files, which are tuples."""
    files = {"video": ("in.mp4", clip["video"]), "audio": ("speech.wav", clip["audio"])}
    files |= {name: value for name, value in form.items() if isinstance(value, tuple)}
    texts = {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in form.items()
        if not isinstance(value, tuple)
    }
    return client.post("/v1/jobs", data=texts, files=files)


def job_files(folder: Path) -> list[str]:
    walked = os.walk(folder / "jobs")  # which passes over what is deleted meanwhile
    found = (Path(at) / name for at, folders, files in walked for name in (*folders, *files))
    return sorted(path.relative_to(folder / "jobs").as_posix() for path in found)


def test_from_upload_to_result(
    client: httpx.Client, clip: dict[str, bytes], worker: PretendedWorker, folder: Path
) -> None:
    sent = send(client, clip, options={"preset": "fast", "report": True, "start": 0.04})
    assert sent.status_code == 201, sent.text
    job = sent.json()
    path = f"/v1/jobs/{job['id']}"
    assert sent.headers["Location"] == str(client.base_url.join(path))
    half = until(lambda: (found := client.get(path).json())["done"] == FRAMES // 2 and found)
    assert (half["state"], half["total"], half["stage"], half["worker"]) == ("running", FRAMES, "lip-sync", worker.name)
    assert half["frames_per_s"] == 0.5
    assert 0 <= half["seconds_left"] <= FRAMES  # of half the frames, and counting down
    assert [client.get(f"{path}/{name}").status_code for name in ("result", "preview")] == [409, 404]
    picture = Path(str(worker.tasks[0].preview))
    picture.write_bytes(b"picture")
    preview = client.get(f"{path}/preview").raise_for_status()
    assert (preview.content, preview.headers["content-type"]) == (b"picture", "image/jpeg")
    assert client.head(f"{path}/preview").headers["content-length"] == "7"
    picture.unlink()
    worker.go.set()
    done = ended(client, job["id"])
    assert (done["state"], done["error"], done["done"]) == ("done", None, FRAMES)
    assert done["report"]["output"] == "output.mp4"
    result = client.get(f"{path}/result")
    assert result.content == RESULT and result.headers["Content-Type"] == "video/mp4"
    assert f'filename="latentsync-{job["id"][:8]}.mp4"' in result.headers["Content-Disposition"]
    part = client.get(f"{path}/result", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, RESULT[5:10])
    assert client.get(f"{path}/report").text == "<p>page</p>"
    for which in ("", "/result", "/report"):
        got, head = client.get(f"{path}{which}"), client.head(f"{path}{which}")
        told = [{name: text for name, text in each.headers.items() if name != "date"} for each in (head, got)]
        assert (head.status_code, head.content, told[0]) == (200, b"", told[1])
    part = client.head(f"{path}/result", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, b"")
    assert part.headers["Content-Range"] == f"bytes 5-9/{len(RESULT)}"
    assert worker.tasks[0].options.preset == "fast"
    assert job_files(folder) == [job["id"], f"{job['id']}/output.mp4", f"{job['id']}/report.html"]
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == client.get(f"{path}/result").status_code == 404
    assert job_files(folder) == [] and client.get("/v1/jobs").json() == []


def test_newest_first_with_positions(client: httpx.Client, clip: dict[str, bytes], worker: PretendedWorker) -> None:
    first = send(client, clip).json()["id"]
    until(lambda: worker.tasks)
    waiting = [send(client, clip).json()["id"] for _ in range(3)]
    listed = client.get("/v1/jobs").json()
    assert [job["id"] for job in listed] == [*reversed(waiting), first]
    assert [job["position"] for job in listed] == [3, 2, 1, None]
    assert [job["id"] for job in client.get("/v1/jobs?limit=1&offset=1").json()] == [waiting[1]]
    full = send(client, clip)
    assert full.status_code == 429 and int(full.headers["Retry-After"]) > 0
    assert full.json()["error"].startswith("queue: 3 jobs wait already; try again")
    for query in ("limit=0", "limit=1001", f"offset={10**20}", "offset=-1"):
        assert client.get(f"/v1/jobs?{query}").status_code == 422
    assert client.get(f"/v1/jobs?offset={2**63 - 1}").json() == []


def test_cancel_and_delete_at_any_time(
    client: httpx.Client, clip: dict[str, bytes], worker: PretendedWorker, folder: Path
) -> None:
    running, waiting, deleted = (send(client, clip).json()["id"] for _ in range(3))
    until(lambda: client.get(f"/v1/jobs/{running}").json()["done"] == FRAMES // 2)
    assert client.post(f"/v1/jobs/{waiting}/cancel").json()["state"] == "canceled"
    assert client.delete(f"/v1/jobs/{deleted}").status_code == 204
    assert client.post(f"/v1/jobs/{running}/cancel").status_code == 202
    assert ended(client, running)["state"] == "canceled"
    assert client.post(f"/v1/jobs/{running}/cancel").status_code == 202  # twice is no error
    assert client.get(f"/v1/jobs/{running}/result").status_code == 409
    assert len(worker.tasks) == 1
    until(lambda: job_files(folder) == sorted([running, waiting]))
    running = send(client, clip).json()["id"]
    until(lambda: client.get(f"/v1/jobs/{running}").json()["done"] == FRAMES // 2)
    assert client.delete(f"/v1/jobs/{running}").status_code == 204
    until(lambda: running not in job_files(folder))


def test_key(folder: Path, worker: PretendedWorker, clip: dict[str, bytes]) -> None:
    worker.go.set()
    with serving(folder, worker, key="sécret") as (client, _):
        for path in ("/v1/jobs", f"/v1/jobs/{32 * '0'}", "/metrics"):
            missing, wrong = client.get(path), client.get(path, headers={"Authorization": "Bearer secre"})
            assert missing.status_code == wrong.status_code == 401
            assert missing.json()["error"] == "key: is missing; send it as Authorization: Bearer KEY"
        until(lambda: client.get("/healthz").status_code == 200)
        assert send(client, clip).status_code == 401 and job_files(folder) == []
        client.headers = httpx.Headers({b"Authorization": "Bearer sécret".encode()})
        assert ended(client, send(client, clip).json()["id"])["state"] == "done"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://["}, 400),
        ({"Host": "[::1"}, 400),
        ({"Host": "127.0.0.2:8000"}, 200),
        ({"Host": "127.0.0.1", "X-Forwarded-Host": "dub.example", "Origin": "https://dub.example"}, 200),
    ],
)
def test_other_sites_are_refused_without_a_key(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = client.get("/v1/jobs", headers=headers)
    assert answer.status_code == status
    assert answer.status_code == 200 or list(headers.values())[-1] in answer.json()["error"]


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_of_2_gb_is_refused_early(client: httpx.Client, folder: Path, chunked: bool) -> None:
    total_bytes, sent_bytes = 2_000_000_000, 0

    def body() -> Iterator[bytes]:
        nonlocal sent_bytes
        yield b'--x\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\n'
        while sent_bytes < total_bytes:
            sent_bytes += 65536
            yield bytes(65536)

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    if not chunked:
        headers["Content-Length"] = str(total_bytes)
    refused = client.post("/v1/jobs", content=body(), headers=headers)
    assert refused.status_code == 413 and "more than 5 MB" in refused.json()["error"]
    assert sent_bytes < MOST_READ_BYTES
    until(lambda: not job_files(folder))


@pytest.mark.parametrize(
    ("status", "line", "header"),
    [
        (401, "POST /v1/jobs", "Authorization: Bearer wrong"),
        (404, "POST /nothing", "Authorization: Bearer key"),
        (405, "PUT /v1/jobs", "Authorization: Bearer key"),
        (413, "POST /v1/jobs", "Authorization: Bearer key"),
        (507, "POST /v1/jobs", "Authorization: Bearer key"),
        (403, "POST /v1/jobs", "Origin: https://evil.example"),
    ],
)
def test_answers_before_the_end_of_an_upload_arrive(
    folder: Path, worker: PretendedWorker, monkeypatch: pytest.MonkeyPatch, status: int, line: str, header: str
) -> None:
    """A close with unread bytes would reset the connection, and clients could lose the answer."""
    with serving(folder, worker, key=None if status == 403 else "key", max_upload_mb=2) as (client, _):
        if status == 507:
            usage = shutil.disk_usage(folder)._replace(free=100)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        total_bytes = 3_000_000 if status == 413 else 1_000_000
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\nContent-Length: {total_bytes}\r\n\r\n"
        with socket.create_connection((client.base_url.host, client.base_url.port)) as sender:
            sender.sendall(head.encode() + bytes(1000))
            answer = HTTPResponse(sender)
            answer.begin()
            assert (answer.status, answer.headers["Connection"]) == (status, "close")
            assert json.loads(answer.read())["error"]
            for _ in range(9):
                sender.sendall(bytes(111_000))
            assert sender.recv(1) == b""


def test_names_of_clients_are_never_used(
    client: httpx.Client, clip: dict[str, bytes], worker: PretendedWorker, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "evil.mp4"
    worker.go.set()
    for name in ["../../../evil.mp4", str(outside), "C:\\evil.mp4", "evil.mp4/../../x", "..", "%2e%2e/e.mp4"]:
        job = send(client, clip, video=(name, clip["video"])).json()
        assert ended(client, job["id"])["state"] == "done"
        video = Path(worker.tasks[-1].video)
        assert video.parent == folder / "jobs" / job["id"] / "inputs" and video.name in ("video", "video.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["service"]
    for job_id in ("%2e%2e", "..%2f..%2fetc", 32 * "Z", f"{32 * '0'}%2fx", "ledger.sqlite"):
        for path in ("", "/result", "/report"):
            assert client.get(f"/v1/jobs/{job_id}{path}").status_code in (404, 405, 307)
        assert client.delete(f"/v1/jobs/{job_id}").status_code in (404, 405, 307)
    assert (folder / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mix": "/etc/passwd"}, "mix"),
        ({"--MIX": "/etc/passwd"}, "mix"),
        ({"speaker": ["0=/etc/passwd"]}, "recordings in speaker_0"),
        ({"speaker": "anna"}, "recordings in speaker_0"),
        ({"report": "/tmp/x.html"}, "report"),
        ({"guidance": 50}, "guidance"),
        ({"start": 9}, "start"),
    ],
)
def test_options_that_cannot_be_used(
    client: httpx.Client, clip: dict[str, bytes], folder: Path, options: dict[str, Any], named: str
) -> None:
    refused = send(client, clip, options=options)
    assert refused.status_code == 422, refused.text
    error = refused.json()["error"]
    assert named in error.replace("-", "_") and str(folder) not in error
    assert job_files(folder) == [] and client.get("/v1/jobs").json() == []


def test_files_of_options_are_uploads(client: httpx.Client, clip: dict[str, bytes], worker: PretendedWorker) -> None:
    worker.go.set()
    files = {"mix": ("m.wav", clip["audio"]), "speaker_1": ("s.WAV", clip["audio"])}
    wrong = send(client, clip, **files)
    assert wrong.status_code == 422 and wrong.json()["error"].startswith("audio: was sent, and speaker_1, too; send")
    video = {"video": ("in.mp4", clip["video"])}
    silent = client.post("/v1/jobs", files=video)
    assert silent.status_code == 422 and silent.json()["error"].startswith(
        "audio: is missing; send either all speech in"
    )
    sent = client.post("/v1/jobs", files={**video, **files}, data={"options": "{}"})
    assert ended(client, sent.json()["id"])["state"] == "done"
    options = worker.tasks[0].options
    assert Path(str(options.mix)).name == "mix.wav" and worker.tasks[0].audio is None
    assert [(each.face, Path(each.voice).name) for each in options.speaker] == [(1, "speaker_1.wav")]


def test_media_that_cannot_be_used(client: httpx.Client, clip: dict[str, bytes], folder: Path, tmp_path: Path) -> None:
    secret = write_sound(tmp_path / "secret.wav", 1.0)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n".encode()
    concat = f"ffconcat version 1.0\nfile '{secret}'\n".encode()
    for name, content in (("a.mp4", b"no video at all"), ("a.mp4", b""), ("a.m3u8", playlist), ("a.mp4", concat)):
        refused = send(client, clip, video=(name, content))
        assert refused.status_code == 415, refused.text
        assert str(folder) not in refused.text and str(secret) not in refused.text
    assert job_files(folder) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"no form", "not a valid form"),
        (b'--x\r\nContent-Disposition: form-data; name="evil"; filename="a"\r\n\r\nabc\r\n--x--', "evil: is no field"),
        (b'--x\r\nContent-Disposition: form-data; name="video"\r\n\r\nabc\r\n--x--', "video: is no field"),
        (b'--x\r\nContent-Disposition: form-data; name="options"\r\n\r\n{}\r\n--x--', "video: is missing"),
        (
            b'--x\r\nContent-Disposition: form-data; name="options"\r\n\r\n' + 70000 * b"{" + b"\r\n--x--",
            "maximum size",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="video_url"\r\n\r\nhttp://a/b\r\n--x--',
            "video_url: is no field",
        ),
    ],
)
def test_forms_that_cannot_be_used(client: httpx.Client, folder: Path, body: bytes, problem: str) -> None:
    refused = client.post("/v1/jobs", content=body, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert refused.status_code == 422 and problem in refused.json()["error"]
    assert client.post("/v1/jobs", json={"video": "x"}).status_code == 422
    assert job_files(folder) == []


def test_uploads_that_break_off(
    client: httpx.Client, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "STALL_S", 0.2)
    address = client.base_url.host, client.base_url.port
    with socket.create_connection(address) as stalled:
        stalled.sendall(UPLOAD)
        until(lambda: job_files(folder))
        assert b"nothing arrived for 0.2 seconds" in stalled.makefile("rb").read()
    monkeypatch.setattr(app, "STALL_S", 60)
    with socket.create_connection(address) as gone:
        gone.sendall(UPLOAD)
        until(lambda: job_files(folder))
    until(lambda: not job_files(folder))
    assert not caplog.records


def test_slow_uploads_end_and_take_no_place_in_the_queue(
    client: httpx.Client, clip: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three places. One sends a byte now and then."""
    address = client.base_url.host, client.base_url.port
    with ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(address)) for _ in range(4)]
        for each in slow[:3]:
            each.sendall(UPLOAD)
        until(lambda: len(job_files(folder)) == 2 * 3)
        assert send(client, clip).status_code == 201
        monkeypatch.setattr(app, "STALL_S", 0.3)
        slow[3].sendall(UPLOAD)
        with suppress(OSError):  # the answer comes while it sends
            while not select.select([slow[3]], [], [], 0.1)[0]:
                slow[3].sendall(b"a")
        assert b"less than 10 kB/s on the whole" in slow[3].makefile("rb").read()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A disk on which nothing can be written until `undo` is called."""

    def no_space(*_: object) -> Iterator[None]:
        raise OSError(errno.ENOSPC, "No space left on device")

    def ledger_full(*_: object) -> None:
        raise OutputError("ledger: disk full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobStore, "_write", ledger_full)
        patch.setattr(service, "whole_file", no_space)
        yield patch


def test_a_full_disk_is_survived(
    folder: Path, worker: PretendedWorker, clip: dict[str, bytes], request: pytest.FixtureRequest
) -> None:
    with serving(folder, worker) as (client, running):
        job = send(client, clip).json()["id"]
        until(lambda: worker.tasks)
        disk = request.getfixturevalue("full")
        worker.go.set()
        until(lambda: client.get("/healthz").status_code == 503)
        running.check()
        refused = send(client, clip)
        assert refused.status_code == 507 and "disk is full" in refused.json()["error"]
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
        disk.undo()
        assert send(client, clip).status_code == 201
        assert ended(client, job)["state"] == "done"
        assert client.get("/healthz").status_code == 200


def test_a_service_starts_on_a_full_disk(
    folder: Path, worker: PretendedWorker, clip: dict[str, bytes], full: pytest.MonkeyPatch
) -> None:
    with serving(folder, worker) as (client, running):
        until(lambda: running.workers()[0].state == "ready")
        assert (client.get("/healthz").status_code, send(client, clip).status_code) == (503, 507)
        full.undo()
        assert (client.get("/healthz").status_code, send(client, clip).status_code) == (200, 201)


def test_a_disk_that_others_fill_and_free(
    client: httpx.Client, clip: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: client.get("/healthz").status_code == 200)
    usage = shutil.disk_usage(".")._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    sick = client.get("/healthz")
    assert (sick.status_code, send(client, clip).status_code) == (503, 507)
    assert "disk is full" in sick.json()["error"]
    monkeypatch.undo()
    assert (client.get("/healthz").status_code, send(client, clip).status_code) == (200, 201)


def test_the_reserve_is_what_the_ledger_gets(
    client: httpx.Client, clip: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, reserve = send(client, clip).json()["id"], folder / "reserve"

    def tight(change: Callable[[JobStore, Any], None]) -> Callable[[JobStore, Any], None]:
        def changed(store: JobStore, value: Any) -> None:
            if reserve.exists():
                raise OutputError("ledger: disk full")
            change(store, value)

        return changed

    for name in ("record", "remove"):
        monkeypatch.setattr(JobStore, name, tight(getattr(JobStore, name)))
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert ended(client, job)["state"] == "canceled"
    until(lambda: client.get("/healthz").status_code == 200)
    assert reserve.stat().st_size > 1e6
    assert client.delete(f"/v1/jobs/{job}").status_code == 204
    assert client.get(f"/v1/jobs/{job}").status_code == 404


def test_a_worker_that_hangs_is_told(client: httpx.Client, worker: PretendedWorker) -> None:
    until(lambda: client.get("/healthz").status_code == 200)
    worker.hangs = True
    sick = client.get("/healthz")
    assert (sick.status_code, sick.json()["error"]) == (503, f"{worker.name}: hangs")
    assert 'latentsync_workers{state="hangs"} 1.0' in client.get("/metrics").text
    worker.hangs = False
    assert client.get("/healthz").status_code == 200


def test_metrics_health_and_description(folder: Path, worker: PretendedWorker, clip: dict[str, bytes]) -> None:
    worker.go.set()
    with serving(folder, worker) as (client, service):
        until(lambda: client.get("/healthz").status_code == 200)
        assert ended(client, send(client, clip).json()["id"])["state"] == "done"
        worker.run_error = TaskError("no face in it", usage=True)
        assert ended(client, send(client, clip).json()["id"])["error"] == "no face in it"
        until(lambda: service.workers()[0].state == "ready")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
        }
        validate(client.get("/openapi.json").json())
        assert client.get("/").headers["location"] == "docs"
        page = client.get("/", follow_redirects=True).text
        assert not re.findall(r"""["']https?://""", page)
        for part in re.findall(r'(?:src|href)="([^"]+)"', page):
            assert client.get(part).status_code == 200
        schema = client.get("/openapi.json").json()["paths"]["/v1/jobs/{job_id}"]["get"]["responses"]
        assert {schema[code]["content"]["application/json"]["schema"]["$ref"] for code in ("4XX", "422")} == {
            "#/components/schemas/Problem"
        }
        assert client.get("/nothing").json() == {"error": "Not Found"}
    expected = {
        ("latentsync_jobs", "waiting"): 0,
        ("latentsync_jobs", "done"): 1,
        ("latentsync_jobs", "failed"): 1,
        ("latentsync_jobs_ended_total", "done"): 1,
        ("latentsync_failures_total", "input"): 1,
        ("latentsync_failures_total", "worker"): 0,
        ("latentsync_frames_total",): 2 * FRAMES,
        ("latentsync_workers", "ready"): 1,
    }
    assert {name: samples[name] for name in expected} == expected


def test_jobs_go_on_after_restarts(folder: Path, worker: PretendedWorker, clip: dict[str, bytes]) -> None:
    with serving(folder, worker) as (client, _):
        jobs = [send(client, clip).json()["id"] for _ in range(3)]
        until(lambda: client.get(f"/v1/jobs/{jobs[0]}").json()["done"])
    left = folder / "jobs" / (32 * "a")  # as an upload that was interrupted leaves it
    left.mkdir()
    with closing(JobStore(folder / "ledger.sqlite")) as store:  # as services that were killed leave it
        for job in (*[jobs[1]] * 3, *[jobs[2]] * 2):
            store.record(Started(job, worker.name, 1))
    again = PretendedWorker()
    again.go.set()
    with serving(folder, again) as (client, _):
        interrupted, given_up, killed = (ended(client, job) for job in jobs)
    assert (interrupted["state"], interrupted["attempts"], killed["state"]) == ("done", 1, "done")
    assert [task.id for task in again.tasks] == [jobs[0], jobs[2]] and not left.exists()
    assert given_up["state"] == "failed" and "died 3 times while it ran" in given_up["error"]
    assert f"{jobs[1]}/inputs" not in job_files(folder)


def test_a_store_of_another_version_is_refused_before_any_job_runs(
    folder: Path, worker: PretendedWorker, clip: dict[str, bytes]
) -> None:
    worker.go.set()
    with serving(folder, worker) as (client, _):
        ended(client, send(client, clip).json()["id"])
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as store, store:
        store.execute("update tasks set task = json_set(task, '$.webhook', 'https://example.com')")
    with pytest.raises(OutputError, match=r"'webhook'.*delete it to begin anew"), serving(folder, PretendedWorker()):
        pass


def test_finished_jobs_are_deleted_in_time(folder: Path, worker: PretendedWorker, clip: dict[str, bytes]) -> None:
    worker.go.set()
    with serving(folder, worker, keep_hours=1.0) as (client, service):
        job = ended(client, send(client, clip).json()["id"])
        service.sweep(job["ended_s"] + 3500)
        assert client.get(f"/v1/jobs/{job['id']}/result").status_code == 200
        service.sweep(job["ended_s"] + 3700)
        assert client.get(f"/v1/jobs/{job['id']}/result").status_code == 404 and job_files(folder) == []
