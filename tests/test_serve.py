"""The HTTP service, over real HTTP, with workers that pretend."""

import json
import logging
import os
import re
import select
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from fractions import Fraction
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import cv2
import httpx
import pytest
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.tasks import Started, TaskError
from latentsync_trt.errors import OutputError
from tests.clips import camera_frames, write_face, write_sound
from tests.serving import FRAMES, RESULT, PretendedWorker, ended, serving, until, upload_of

pytestmark = pytest.mark.integration

MOST_READ_BYTES = 16_000_000
"""Of a refused upload: what the service read, and the buffers of both sockets, of 4 to 6 MB on
Linux.
"""

FORM = {"Content-Type": "multipart/form-data; boundary=x"}
JSON = {"Content-Type": "application/json"}
FIELD = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n--x--'
UPLOAD = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 999\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\nabc'
)
"""The beginning of one."""

Files = dict[str, tuple[str, bytes]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A video and a recording of 0.2 s, which pass all checks."""
    folder = tmp_path_factory.mktemp("clip")
    return upload_of(write_face(folder / "in.mp4", 5), write_sound(folder / "speech.wav", 0.2))


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


def send(client: httpx.Client, files: Files, **texts: Any) -> httpx.Response:
    """Submits a job; `texts`: fields, `options` as a dict."""
    data = {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in texts.items()
    }
    return client.post("/v1/jobs", data=data, files=files)


def sent(client: httpx.Client, files: Files, **texts: Any) -> str:
    """The id of a job that is submitted."""
    return str(send(client, files, **texts).raise_for_status().json()["id"])


def painting(client: httpx.Client, job: str) -> dict[str, Any]:
    """A job whose worker has painted half and is held there."""
    found: dict[str, Any] = until(
        lambda: (
            (job_ := client.get(f"/v1/jobs/{job}").json())["done"] == FRAMES // 2
            and job_["stage"]
            and job_
        )
    )
    return found


def job_files(folder: Path) -> list[str]:
    walked = os.walk(folder / "jobs")  # which passes over what is deleted meanwhile
    found = (Path(at) / name for at, folders, files in walked for name in (*folders, *files))
    return sorted(path.relative_to(folder / "jobs").as_posix() for path in found)


def test_from_upload_to_result(
    client: httpx.Client, clip: Files, worker: PretendedWorker, folder: Path
) -> None:
    named = clip | {"video": (r"C:\clips\Ann 1.mp4", clip["video"][1])}
    assert send(client, named, label="x" * 201).status_code == 422
    answer = send(
        client,
        named,
        label="two\nlines",
        options={"preset": "fast", "report": True, "start": 0.04, "finish": "plain"},
    )
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["label"], job["files"]) == (
        "two\nlines",
        {"video": "Ann 1.mp4", "audio": "speech.wav"},
    )
    path = f"/v1/jobs/{job['id']}"
    assert answer.headers["Location"] == str(client.base_url.join(path))
    half = painting(client, job["id"])
    assert (half["state"], half["total"], half["stage"], half["worker"]) == (
        "running",
        FRAMES,
        "lip-sync",
        worker.name,
    )
    assert 0 <= half["seconds_left"] <= FRAMES  # of half the frames, and counting down
    assert [client.get(f"{path}/{name}").status_code for name in ("result", "preview")] == [
        409,
        404,
    ]
    picture = Path(str(worker.tasks[0].preview))
    picture.write_bytes(b"picture")
    preview = client.get(f"{path}/preview").raise_for_status()
    assert (preview.content, preview.headers["content-type"]) == (b"picture", "image/jpeg")
    picture.unlink()
    worker.go.set()
    done = ended(client, job["id"])
    assert (done["state"], done["error"], done["done"]) == ("done", None, FRAMES)
    assert done["report"]["output"] == "output.mp4"
    result = client.get(f"{path}/result")
    assert result.content == RESULT and result.headers["Content-Type"] == "video/mp4"
    assert (
        result.headers["Content-Disposition"] == "attachment; filename*=utf-8''Ann%201-synced.mp4"
    )
    part = client.get(f"{path}/result", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, RESULT[5:10])
    assert client.get(f"{path}/report").text == "<p>page</p>"
    for each in (
        "/docs",
        "/metrics",
        "/healthz",
        "/v1/jobs",
        path,
        f"{path}/result",
        f"{path}/report",
        "/v1/none",
    ):
        whole = client.get(each)
        head = client.head(each)
        assert (head.status_code, head.content) == (whole.status_code, b""), each
        names = "content-type", "content-length", "etag"
        assert [head.headers.get(name) for name in names] == [
            whole.headers.get(name) for name in names
        ], each
    options = worker.tasks[0].options
    assert (options.preset, options.finish) == ("fast", "plain")
    names = ["inputs", "inputs/audio.wav", "inputs/video.mp4", "output.mp4", "report.html"]
    assert job_files(folder) == [job["id"], *(f"{job['id']}/{name}" for name in names)]
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == client.get(f"{path}/result").status_code == 404
    assert job_files(folder) == [] and client.get("/v1/jobs").json() == []


def test_newest_first_with_positions(
    client: httpx.Client, clip: Files, worker: PretendedWorker
) -> None:
    first = sent(client, clip)
    until(lambda: worker.tasks)
    waiting = [sent(client, clip) for _ in range(3)]
    listed = [(job["id"], job["position"]) for job in client.get("/v1/jobs").json()]
    assert listed == [*zip(reversed(waiting), (3, 2, 1), strict=True), (first, None)]
    assert [job["id"] for job in client.get("/v1/jobs?limit=1&offset=1").json()] == [waiting[1]]
    full = send(client, clip)
    assert full.status_code == 429 and int(full.headers["Retry-After"]) > 0
    assert full.json()["error"].startswith("queue: 3 jobs wait already")
    assert client.get(f"/v1/jobs?offset={10**20}").status_code == 422


def test_cancel_and_delete_at_any_time(
    client: httpx.Client, clip: Files, worker: PretendedWorker, folder: Path
) -> None:
    running, waiting, deleted = (sent(client, clip) for _ in range(3))
    painting(client, running)
    assert client.post(f"/v1/jobs/{waiting}/cancel").json()["state"] == "canceled"
    assert client.delete(f"/v1/jobs/{deleted}").status_code == 204
    assert client.post(f"/v1/jobs/{running}/cancel").status_code == 202
    assert ended(client, running)["state"] == "canceled"
    assert client.post(f"/v1/jobs/{running}/cancel").status_code == 202  # twice is no error
    assert client.get(f"/v1/jobs/{running}/result").status_code == 409
    assert len(worker.tasks) == 1
    until(lambda: job_files(folder) == sorted([running, waiting]))
    running = sent(client, clip)
    painting(client, running)
    assert client.delete(f"/v1/jobs/{running}").status_code == 204
    until(lambda: running not in job_files(folder))


def test_key(folder: Path, worker: PretendedWorker, clip: Files) -> None:
    worker.go.set()
    with serving(folder, worker, key="sécret") as (client, _):
        for path in ("/v1/jobs", f"/v1/jobs/{32 * '0'}", "/metrics"):
            missing = client.get(path)
            wrong = client.get(path, headers={"Authorization": "Bearer secre"})
            assert missing.status_code == wrong.status_code == 401
            assert missing.json()["error"].startswith("key: is missing")
        until(lambda: client.get("/healthz").status_code == 200)
        assert send(client, clip).status_code == 401 and job_files(folder) == []
        client.headers = httpx.Headers({b"Authorization": "Bearer sécret".encode()})
        assert ended(client, sent(client, clip))["state"] == "done"


def test_other_sites_are_refused_without_a_key(client: httpx.Client) -> None:
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://["}, 400),
        ({"Host": "127.0.0.2:8000"}, 200),
        (
            {
                "Host": "127.0.0.1",
                "X-Forwarded-Host": "dub.example",
                "Origin": "https://dub.example",
            },
            200,
        ),
    ):
        answer = client.get("/v1/jobs", headers=headers)
        assert answer.status_code == status, headers
        assert status == 200 or list(headers.values())[-1] in answer.json()["error"]


def test_an_upload_of_2_gb_that_tells_no_size_is_refused_early(
    client: httpx.Client, folder: Path
) -> None:
    total_bytes = 2_000_000_000
    sent_bytes = 0

    def body() -> Iterator[bytes]:
        nonlocal sent_bytes
        yield b'--x\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\n'
        while sent_bytes < total_bytes:
            sent_bytes += 65536
            yield bytes(65536)

    refused = client.post("/v1/jobs", content=body(), headers=FORM)
    assert refused.status_code == 413 and "more than 5 MB" in refused.json()["error"]
    assert sent_bytes < MOST_READ_BYTES
    until(lambda: not job_files(folder))


class Disk:
    """What the service and its ledger find: space, none, or none but that of the reserve."""

    def __init__(self, reserve: Path) -> None:
        self._reserve = reserve
        self.full = False
        self.tight = False

    def writing(self, change: Callable[[JobStore, Any], None]) -> Callable[[JobStore, Any], None]:
        def changed(store: JobStore, value: Any) -> None:
            if self.full or (self.tight and self._reserve.exists()):
                raise OutputError("ledger: disk full")
            change(store, value)

        return changed


@pytest.fixture
def disk(folder: Path) -> Iterator[Disk]:
    found = Disk(folder / "reserve")
    usage = shutil.disk_usage(folder.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            shutil, "disk_usage", lambda _: usage._replace(free=100) if found.full else usage
        )
        for name in ("add", "record", "remove"):
            patch.setattr(JobStore, name, found.writing(getattr(JobStore, name)))
        yield found


@pytest.mark.parametrize(
    ("status", "line", "header"),
    [
        (401, "POST /v1/jobs", "Authorization: Bearer wrong"),
        (413, "POST /v1/jobs", "Authorization: Bearer key"),
        (403, "POST /v1/jobs", "Origin: https://evil.example"),
    ],
)
def test_answers_before_the_end_of_an_upload_arrive(
    folder: Path, worker: PretendedWorker, status: int, line: str, header: str
) -> None:
    """A close with unread bytes would reset the connection, and clients could lose the answer."""
    with serving(folder, worker, key=None if status == 403 else "key", max_upload_mb=2) as (
        client,
        _,
    ):
        total_bytes = 3_000_000 if status == 413 else 1_000_000
        head = (
            f"{line} HTTP/1.1\r\nHost: "
            f"127.0.0.1\r\n{header}\r\nContent-Length: {total_bytes}\r\n\r\n"
        )
        with socket.create_connection((client.base_url.host, client.base_url.port)) as sender:
            sender.sendall(head.encode() + bytes(1000))
            answer = HTTPResponse(sender)
            answer.begin()
            assert (answer.status, answer.headers["Connection"]) == (status, "close")
            assert json.loads(answer.read())["error"]
            for _ in range(9):
                sender.sendall(bytes(111_000))
            assert sender.recv(1) == b""


def test_a_full_disk_is_survived(
    folder: Path, worker: PretendedWorker, clip: Files, disk: Disk
) -> None:
    """From the start on, and while a job runs."""
    disk.full = True
    with serving(folder, worker) as (client, running):
        until(lambda: running.events.workers()[0].state == "ready")
        assert (client.get("/healthz").status_code, send(client, clip).status_code) == (503, 507)
        disk.full = False
        job = sent(client, clip)
        until(lambda: worker.tasks)
        disk.full = True
        worker.go.set()
        assert client.get("/healthz").status_code == 503
        running.check()
        refused = send(client, clip)
        assert refused.status_code == 507 and "disk is full" in refused.json()["error"]
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
        disk.full = False
        assert send(client, clip).status_code == 201
        assert ended(client, job)["state"] == "done"
        assert client.get("/healthz").status_code == 200


def test_the_reserve_is_what_the_ledger_gets(
    client: httpx.Client, clip: Files, folder: Path, disk: Disk
) -> None:
    job = sent(client, clip)
    reserve = folder / "reserve"
    disk.tight = True
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert ended(client, job)["state"] == "canceled"
    until(lambda: client.get("/healthz").status_code == 200)
    assert reserve.stat().st_size > 1e6
    assert client.delete(f"/v1/jobs/{job}").status_code == 204
    assert client.get(f"/v1/jobs/{job}").status_code == 404


def test_names_of_clients_are_never_used(
    client: httpx.Client, clip: Files, worker: PretendedWorker, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "evil.mp4"
    worker.go.set()
    for name in [
        "../../../evil.mp4",
        str(outside),
        "C:\\evil.mp4",
        "evil.mp4/../../x",
        "..",
        "%2e%2e/e.mp4",
    ]:
        job = sent(client, clip | {"video": (name, clip["video"][1])})
        assert ended(client, job)["state"] == "done"
        video = Path(worker.tasks[-1].video)
        assert video.parent == folder / "jobs" / job / "inputs" and video.name in (
            "video",
            "video.mp4",
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["service"]
    for job in ("%2e%2e", "..%2f..%2fetc", 32 * "Z", f"{32 * '0'}%2fx", "ledger.sqlite"):
        for path in ("", "/result", "/report"):
            assert client.get(f"/v1/jobs/{job}{path}").status_code in (404, 405, 307)
        assert client.delete(f"/v1/jobs/{job}").status_code in (404, 405, 307)
    assert (folder / "ledger.sqlite").exists()


def test_what_cannot_be_used(
    client: httpx.Client, clip: Files, folder: Path, tmp_path: Path
) -> None:
    """Options, files and forms: nothing is kept of them, and no paths are told."""
    refused = list[tuple[httpx.Response, int, str]]()
    for options, named in (
        ({"--MIX": "/etc/passwd"}, "mix"),
        ({"speaker": ["0=/etc/passwd"]}, "recordings in speaker_0"),
        ({"report": "/tmp/x.html"}, "report"),
        ({"guidance": 50}, "guidance"),
        ({"finish": "sharp"}, "finish"),
    ):
        refused.append((send(client, clip, options=options), 422, named))
    secret = write_sound(tmp_path / "secret.wav", 1.0)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n".encode()
    concat = f"ffconcat version 1.0\nfile '{secret}'\n".encode()
    for name, content in (("a.mp4", b"no video at all"), ("a.m3u8", playlist), ("a.mp4", concat)):
        refused.append((send(client, clip | {"video": (name, content)}), 415, name))
    for body, problem in (
        (b"no form", "not a valid form"),
        (FIELD % (b"video", b"abc"), "video: is no field"),
        (FIELD % (b"options", b"{}"), "video: is missing"),
        (FIELD % (b"options", 70000 * b"{"), "maximum size"),
    ):
        refused.append((client.post("/v1/jobs", content=body, headers=FORM), 422, problem))
    no_json = client.post("/v1/jobs/none/redo", content=b"{", headers=JSON)
    refused.append((no_json, 422, "body: is not JSON"))
    for answer, status, words in refused:
        assert (answer.status_code, words in answer.json()["error"].replace("-", "_")) == (
            status,
            True,
        ), answer.text
        assert str(folder) not in answer.text and str(secret) not in answer.text
    assert job_files(folder) == [] and client.get("/v1/jobs").json() == []


def test_files_of_options_are_uploads(
    client: httpx.Client, clip: Files, worker: PretendedWorker
) -> None:
    worker.go.set()
    sound = clip["audio"][1]
    files = {"mix": ("m.wav", sound), "speaker_1": ("s.WAV", sound)}
    video = {"video": clip["video"]}
    for wrong, words in (
        (clip | files, "audio: was sent, and speaker_1, too"),
        (video, "audio: is missing"),
    ):
        refused = send(client, wrong)
        assert (refused.status_code, refused.json()["error"].startswith(words)) == (422, True), (
            refused.text
        )
    assert ended(client, sent(client, video | files, options={}))["state"] == "done"
    options = worker.tasks[0].options
    assert Path(str(options.mix)).name == "mix.wav" and worker.tasks[0].audio is None
    assert [(each.face, Path(each.voice).name) for each in options.speaker] == [
        (1, "speaker_1.wav")
    ]


def test_a_mask_is_an_upload(
    client: httpx.Client, clip: Files, worker: PretendedWorker, folder: Path
) -> None:
    worker.go.set()
    picture = next(camera_frames(Fraction(1, 25)))[..., 0]
    for mask, status, words in (
        (b"no picture", 415, "matte.PNG"),
        (cv2.imencode(".png", picture[1:])[1].tobytes(), 422, "give a mask of the video's size"),
    ):
        refused = send(client, clip | {"keep_mask": ("matte.PNG", mask)})
        assert (refused.status_code, words in refused.text) == (status, True), refused.text
        assert str(folder) not in refused.text
    mask = cv2.imencode(".png", picture)[1].tobytes()
    files = clip | {"keep_mask": ("matte.PNG", mask)}
    assert ended(client, sent(client, files, options={"occluders": "paint"}))["state"] == "done"
    options = worker.tasks[0].options
    assert Path(str(options.keep_mask)).name == "keep_mask.png"
    assert options.occluders == "paint"


def test_uploads_that_break_off_take_no_place_in_the_queue(
    client: httpx.Client, clip: Files, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three places."""
    with ExitStack() as opened:
        for _ in range(3):
            slow = socket.create_connection((client.base_url.host, client.base_url.port))
            opened.enter_context(slow).sendall(UPLOAD)
        until(lambda: len(job_files(folder)) == 2 * 3)
        job = sent(client, clip)
    until(lambda: all(path.startswith(job) for path in job_files(folder)))
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("trickles", [False, True])
def test_slow_uploads_end(folder: Path, worker: PretendedWorker, trickles: bool) -> None:
    with serving(folder, worker, stall_s=0.3) as (client, _):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as slow:
            slow.sendall(UPLOAD)
            with suppress(OSError):  # the answer comes while it sends
                while trickles and not select.select([slow], [], [], 0.1)[0]:
                    slow.sendall(b"a")
            assert b"nothing arrived for 0.3 seconds, or less than" in slow.makefile("rb").read()
        until(lambda: not job_files(folder))


def test_a_worker_that_hangs_is_told(client: httpx.Client, worker: PretendedWorker) -> None:
    until(lambda: client.get("/healthz").status_code == 200)
    worker.hangs = True
    sick = client.get("/healthz")
    assert (sick.status_code, sick.json()["error"]) == (503, f"{worker.name}: hangs")
    assert 'latentsync_workers{state="hangs"} 1.0' in client.get("/metrics").text
    worker.hangs = False
    assert client.get("/healthz").status_code == 200


def test_metrics_health_and_description(folder: Path, worker: PretendedWorker, clip: Files) -> None:
    worker.go.set()
    with serving(folder, worker) as (client, service):
        until(lambda: client.get("/healthz").status_code == 200)
        assert ended(client, sent(client, clip))["state"] == "done"
        sent_as = "Mr. Ü's video.mp4"
        stored = folder / "jobs" / (32 * "0") / "inputs" / "video.mp4"
        worker.run_error = TaskError(f"{stored}: no face; video.mp4 is a video", usage=True)
        failed = ended(client, sent(client, clip | {"video": (sent_as, clip["video"][1])}))
        assert failed["error"] == f"{sent_as}: no face; {sent_as} is a video"
        until(lambda: service.events.workers()[0].state == "ready")
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
    expected = {
        ("latentsync_jobs", "done"): 1,
        ("latentsync_jobs", "failed"): 1,
        ("latentsync_jobs_ended_total", "done"): 1,
        ("latentsync_failures_total", "input"): 1,
        ("latentsync_frames_total",): 2 * FRAMES,
        ("latentsync_workers", "ready"): 1,
    }
    assert {name: samples[name] for name in expected} == expected


def test_jobs_go_on_after_restarts(folder: Path, worker: PretendedWorker, clip: Files) -> None:
    with serving(folder, worker) as (client, _):
        jobs = [sent(client, clip) for _ in range(3)]
        until(lambda: client.get(f"/v1/jobs/{jobs[0]}").json()["done"])
    left = folder / "jobs" / (32 * "a")  # as an upload that was interrupted leaves it
    left.mkdir()
    # as services that were killed leave it
    with closing(JobStore(folder / "ledger.sqlite")) as store:
        for job in (*[jobs[1]] * 3, *[jobs[2]] * 2):
            store.record(Started(job, worker.name, 1))
    again = PretendedWorker()
    again.go.set()
    with serving(folder, again, keep_hours=1.0) as (client, service):
        interrupted, given_up, killed = (ended(client, job) for job in jobs)
        assert (interrupted["state"], interrupted["attempts"], killed["state"]) == (
            "done",
            1,
            "done",
        )
        assert [task.id for task in again.tasks] == [jobs[0], jobs[2]] and not left.exists()
        assert given_up["state"] == "failed" and "died 3 times" in given_up["error"]
        assert f"{jobs[1]}/inputs" not in job_files(folder)
        service.jobs.delete_old(1.0, killed["ended_s"] + 3700)
        assert (
            client.get(f"/v1/jobs/{jobs[0]}/result").status_code == 404 and job_files(folder) == []
        )


def test_a_damaged_row_of_the_ledger_fails_its_job_and_the_others_run(
    folder: Path, worker: PretendedWorker, clip: Files
) -> None:
    """Also one of another version."""
    with serving(folder, worker) as (client, _):
        jobs = [sent(client, clip) for _ in range(3)]
        until(lambda: worker.tasks)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as store, store:
        store.execute("update tasks set task = '{' where id = ?", (jobs[0],))
        store.execute(
            "update tasks set task = json_set(task, '$.webhook', 'x') where id = ?", (jobs[1],)
        )
    again = PretendedWorker()
    again.go.set()
    with serving(folder, again) as (client, _):
        *damaged, whole = (ended(client, job) for job in jobs)
        assert [each["state"] for each in (*damaged, whole)] == ["failed", "failed", "done"]
        assert all("ledger is damaged" in each["error"] for each in damaged)
        assert [each["id"] for each in client.get("/v1/jobs").json()] == jobs[::-1]
        assert client.delete(f"/v1/jobs/{jobs[0]}").status_code == 204
