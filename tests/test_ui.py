"""The page `latentsync-trt ui`, without a browser: its events, its limits and its files."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from shutil import copyfile, copytree, rmtree
from typing import Any

import cv2
import httpx
import psutil
import pytest
from click.testing import CliRunner

from latentsync_trt import SyncOptions
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.cli import main
from latentsync_trt.measures import LipMeasure, Measures
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.service import Service
from latentsync_trt.types import UInt8Array
from latentsync_trt.web import jobs
from tests.clips import gif, numbered, write_face, write_sound, write_video
from tests.people import first_person, second_person
from tests.serving import RESULT, PretendedWorker, answering, until

pytest.importorskip("gradio")

# Gradio counts its calls with pandas.
pytestmark = pytest.mark.filterwarnings("ignore:.*no_silent_downcasting", "ignore:The copy keyword")

KEY = "a-key-for-this-test"
LIMITS = Limits(max_upload_mb=3.0, max_clip_s=2.0)
FILES = "result", "before", "report", "download"


@contextmanager
def shown(
    folder: Path, worker: PretendedWorker, key: str | None = None, limits: Limits = LIMITS
) -> Iterator[tuple[str, Service]]:
    """The address of a page, and its service."""
    from latentsync_trt.web.app import page_app

    service = Service(folder, [worker], limits)
    with pytest.MonkeyPatch.context() as changed:  # after the block, another page of this process finds its uploads
        changed.setenv("GRADIO_TEMP_DIR", "")
        with page_app(service, folder, key, own_hosts=True) as app, answering(app) as address:
            yield address, service


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    worker, folder = PretendedWorker(), tmp_path_factory.mktemp("page")
    worker.go.set()
    with shown(folder, worker) as found:
        yield found
    assert not (folder / "uploads").exists()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("clip")
    return write_face(folder / "face.mp4", 25), write_sound(folder / "speech.wav", 1.0)


def submitted(service: Service, clip: tuple[Path, Path], browser: str = "one", **options: Any) -> str:
    """The id of a job of a browser, which is done."""
    files = {"video": str(clip[0]), "audio": str(clip[1])}
    settings = {"options": options, "bundle": None, "files": files}
    job = jobs.submit(service, settings, jobs.Upload(clip[0]), browser)
    until(lambda: service.job(job.id).state == "done")
    return job.id


@pytest.fixture
def plain(page: tuple[str, Service]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=page[0], trust_env=False, timeout=600) as client:
        yield client


def test_files_that_are_refused(page: tuple[str, Service], opened: "Opened", tmp_path: Path) -> None:
    (tmp_path / "video.mp4").write_text("no video")
    opened.upload("video", tmp_path / "video.mp4")
    assert ">video.mp4: is not a readable media file" in opened.of("message")["value"]
    assert opened.of("video")["value"] is None
    opened.fire("video", "change")
    assert ">video.mp4: is not a readable media file" in opened.of("message")["value"]
    opened.upload("video", write_face(tmp_path / "long.mp4", 55))
    assert "lasts longer than 2 s, the most here; send a shorter one" in opened.of("message")["value"]
    too_large = {"files": bytes(4_000_000)}
    assert httpx.post(f"{page[0]}/gradio_api/upload", files=too_large, trust_env=False).status_code == 413
    assert {path.name for path in page[1]._jobs.iterdir()} == {job.id for job in page[1].jobs(100)}


def test_no_other_files_and_addresses(page: tuple[str, Service], plain: httpx.Client, clip: tuple[Path, Path]) -> None:
    job = submitted(page[1], clip)
    secret = page[1].result(job)
    for path in ("/etc/passwd", secret, f"{secret.parent}/../{job}/{secret.name}", "http://127.0.0.1:1/x", "."):
        assert plain.get(f"/gradio_api/file={path}").status_code == 403, path
    for path in (f"{job}/result", f"{job}/before", f"{'0' * 32}/result", "../x", ""):
        assert plain.get(f"/v1/jobs/{path}").status_code == 404, path
    assert plain.get("/docs").status_code == 404
    assert plain.get("/gradio_api/info").json() == {"named_endpoints": {}, "unnamed_endpoints": {}}
    for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
        assert plain.get("/config", headers=headers).status_code == 403


def test_uploads_without_a_job_are_bounded(plain: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from latentsync_trt.web import app

    assert plain.post("/gradio_api/upload", files={"files": b"x"}).status_code == 200
    monkeypatch.setattr(app, "_size_bytes", lambda folder: int(app._MOST_UPLOADS * LIMITS.max_upload_mb * 1e6) + 1)
    assert plain.post("/gradio_api/upload", files={"files": b"x"}).status_code == 507


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/etc/hostname", "../../../etc/hostname", "http://127.0.0.1:1/x.mp4"])
def test_paths_in_place_of_uploads(opened: "Opened", path: str, stream: bool) -> None:
    opened.of("video")["value"] = {"path": path, "is_stream": stream, "meta": {"_type": "gradio.FileData"}}
    with pytest.raises(RuntimeError) as refused:
        opened.fire("video", "change")
    assert "readable" not in str(refused.value)


def test_other_browsers_get_nothing(
    page: tuple[str, Service], plain: httpx.Client, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    service, page_file = page[1], copyfile(clip[0], tmp_path / "a.html")
    assert "default-src 'self'" in plain.get("/").headers["content-security-policy"]
    job = submitted(service, (page_file, clip[1]), dict(plain.cookies).popitem()[1], report=True)
    named = plain.get(f"/v1/jobs/{job}/download").headers["content-disposition"]
    assert named == 'attachment; filename="a-synced.mp4"'
    own = {name: plain.get(f"/v1/jobs/{job}/{name}") for name in FILES}
    assert (own["result"].content, own["before"].content) == (RESULT, clip[0].read_bytes())
    for name in ("before", "report"):
        assert own[name].headers["content-security-policy"] == "sandbox"
    with httpx.Client(base_url=page[0], trust_env=False) as other:
        other.get("/")
        assert {other.get(f"/v1/jobs/{job}/{name}").status_code for name in FILES} == {404}


def test_someone_who_leaves_while_the_page_loads_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gradio

    from latentsync_trt.web.app import page_app

    styles = next((Path(gradio.__file__).parent / "templates" / "frontend" / "assets").glob("*.css"))
    headers = [(b"host", b"127.0.0.1"), (b"accept-encoding", b"gzip")]  # packed answers begin with their first bytes
    scope = {"type": "http", "method": "GET", "path": f"/assets/{styles.name}", "query_string": b"", "headers": headers}

    async def left() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_: object) -> None:
        pass

    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    with page_app(Service(tmp_path, [PretendedWorker()], LIMITS), tmp_path, None, own_hosts=True) as app:
        asyncio.run(app(scope, left, send))


@pytest.mark.integration
@pytest.mark.parametrize(("frames", "known"), [(first_person(10), True), (second_person(10), False)])
def test_the_people_of_a_video(tmp_path: Path, frames: list[UInt8Array], known: bool) -> None:
    told = list[Any]()
    clip = write_video(tmp_path / "face.mp4", frames)
    people, built_in = jobs.look_at(clip, tmp_path / "copy.mp4", LIMITS, told.append)
    assert told[-1].done == 10
    assert [(picture.shape, round(seen_s, 1)) for picture, seen_s in people.portraits] == [((256, 256, 3), 0.4)]
    assert built_in == (known,)


def test_with_a_key_people_log_in(tmp_path: Path) -> None:
    with shown(tmp_path, PretendedWorker(), KEY) as (address, _):
        assert httpx.get(f"{address}/config", trust_env=False).status_code == 401
        assert httpx.post(f"{address}/gradio_api/upload", files={"files": b"x"}, trust_env=False).status_code == 401
        with httpx.Client(base_url=address, trust_env=False) as browser:
            assert browser.post("/login", data={"username": "user", "password": KEY}).is_success
            assert browser.get("/config").is_success
            for method, path in (("GET", "/config"), ("OPTIONS", "/config"), ("POST", "/gradio_api/upload")):
                answer = browser.request(method, path, headers={"Origin": "https://attacker.example"})
                assert answer.status_code == 403
                assert "access-control-allow-origin" not in answer.headers
        wrong = [{"username": "user", "password": str(number)} for number in range(12)]
        with httpx.Client(base_url=address, trust_env=False) as guesser:
            assert [guesser.post("/login", data=each).status_code for each in wrong] == [400] * 10 + [429] * 2


class Opened:
    """A page as its script uses it: `fire` sends the values of components, and notes what comes back."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        client.get("/")
        self._client, self._session, self.leaves = client, session, threading.Event()
        config = client.get("/config").json()
        self._events, parts = config["dependencies"], config["components"]
        self._names = {part["props"]["elem_id"]: part["id"] for part in parts if part["props"].get("elem_id")}
        self.shown: dict[int, dict[str, Any]] = {part["id"]: part["props"] for part in parts}
        self._load()

    def _load(self) -> None:
        for event in self._events:
            if any(kind == "load" for _, kind in event["targets"]):
                self._run(event)

    def of(self, name: str) -> dict[str, Any]:
        """The properties of a component."""
        return self.shown[self._names[name]]

    def upload(self, name: str, path: Path) -> None:
        """Gives a file, as a user does."""
        sent = self._client.post("/gradio_api/upload", files={"files": (path.name, path.read_bytes())}).json()[0]
        self.of(name)["value"] = {"path": sent, "meta": {"_type": "gradio.FileData"}}
        self.fire(name, "change")

    def fire(self, name: str, kind: str, data: Any = None) -> None:
        """Does what happens at an event of a component, and what follows."""
        for event in self._events:
            if [self._names[name], kind] in event["targets"]:
                self._run(event, data)

    def _answer(self, order: dict[str, Any], *, queued: bool) -> list[Any]:
        if not queued:
            answer = self._client.post("/gradio_api/run/predict", json=order)
            if answer.is_error:
                raise RuntimeError(answer.text)
            return list(answer.json()["data"])
        self._client.post("/gradio_api/queue/join", json=order).raise_for_status()
        with self._client.stream("GET", f"/gradio_api/queue/data?session_hash={self._session}") as answer:
            for line in answer.iter_lines():
                if self.leaves.is_set():
                    raise ConnectionAbortedError
                if '"process_completed"' in line:
                    ended = json.loads(line[6:])
        if not ended["success"]:
            raise RuntimeError(ended)
        return list(ended["output"]["data"])

    def _run(self, event: dict[str, Any], data: Any = None) -> None:
        if not event["backend_fn"]:
            return
        values = [self.shown[part].get("value") for part in event["inputs"]]
        order = {"fn_index": event["id"], "data": values, "session_hash": self._session, "event_data": data}
        for part, found in zip(event["outputs"], self._answer(order, queued=event["queue"]), strict=True):
            is_update = isinstance(found, dict) and found.get("__type__") == "update"
            self.shown[part] |= found if is_update else {"value": found}
        for after in self._events:
            if after["trigger_after"] == event["id"]:
                self._run(after)


@pytest.fixture
def opened(plain: httpx.Client, request: pytest.FixtureRequest) -> Opened:
    return Opened(plain, request.node.name)


def test_the_built_in_clip_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from latentsync_trt.web import inputs

    made = list[Path]()
    monkeypatch.setattr(inputs, "demo_clip", lambda folder: [made.append(folder), demo_clip(folder)])
    with (
        shown(tmp_path, PretendedWorker()) as (address, _),
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        people = [Opened(client, str(number)) for number in range(3)]
        assert list(pool.map(lambda one: one.fire("demo", "click"), people)) == [None] * 3
        assert {one.of("speech")["value"]["orig_name"] for one in people} == {SPEECH.name}
    assert len(made) == 1


def test_the_built_in_clip(plain: httpx.Client, opened: Opened) -> None:
    opened.fire("demo", "click")
    files = [plain.get(f"/gradio_api/file={opened.of(name)['value']['path']}").content for name in ("video", "speech")]
    assert files[1] == SPEECH.read_bytes()
    opened.fire("video", "change")
    assert "whose face is the only one" in opened.of("demo-note")["value"]


@pytest.mark.integration
def test_the_built_in_model_asks_before_it_smears(page: tuple[str, Service], opened: Opened, tmp_path: Path) -> None:
    service = page[1]
    assert opened.of("bundle")["value"].startswith("demo (model demo, ")
    assert "CPU" in opened.of("model")["value"]
    opened.upload("video", write_video(tmp_path / "part of the built-in clip.mp4", first_person(10)))
    assert "will be a smear" not in opened.of("demo-note")["value"]
    before = len(service.jobs(100))
    opened.upload("video", write_video(tmp_path / "my face.mp4", second_person(10)))
    opened.upload("speech", write_sound(tmp_path / "my voice.wav", 0.4))
    assert "will be a smear" in opened.of("demo-note")["value"]
    opened.fire("start", "click")
    assert (opened.of("anyway")["visible"], len(service.jobs(100))) == (True, before)
    opened.fire("anyway", "click")
    assert (opened.of("anyway")["visible"], len(service.jobs(100))) == (False, before + 1)
    job = service.jobs(1)[0]
    until(lambda: service.job(job.id).state == "done")
    opened.fire("history", "input")
    assert "my face-synced.mp4" in opened.of("progress")["value"]


def test_a_list_of_jobs(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    """Jobs differ; broken ones break nothing; settings come back; other browsers delete nothing."""
    worker = PretendedWorker()
    worker.go.set()
    with (
        shown(tmp_path, worker) as (address, service),
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
        httpx.Client(base_url=address, trust_env=False, timeout=600) as another,
    ):
        opened = Opened(client, "first")
        opened.upload("video", clip[0])
        opened.upload("speech", clip[1])
        ids, presets = list[str](), ("fast", "draft", "quality")
        for preset in presets:
            opened.of("preset")["value"], opened.of("option-guidance")["value"] = preset, 1.0
            opened.fire("anyway", "click")
            ids.insert(0, service.jobs(1)[0].id)
            until(lambda: service.job(ids[0]).state == "done")
        opened.fire("history", "input")
        assert [number for _, number in opened.of("history")["choices"]] == ids
        listed = [text.split(" · ") for text, _ in opened.of("history")["choices"]]
        assert [(name, preset, state) for name, preset, _, state in listed] == [
            ("face.mp4", preset, "done") for preset in reversed(presets)
        ]
        with sqlite3.connect(tmp_path / "ledger.sqlite") as ledger:
            ledger.execute("update tasks set report = 'broken' where id = ?", (ids[0],))
        rmtree(service.folder(ids[2]))
        opened.of("history")["value"] = ids[2]
        opened.fire("history", "input")
        assert [number for _, number in opened.of("history")["choices"]] == ids[1:]
        assert "face-synced.mp4: is missing" in opened.of("progress")["value"]
        opened.of("history")["value"] = ids[1]
        opened.fire("again", "click")
        opened.fire("video", "change")
        assert (opened.of("preset")["value"], opened.of("option-guidance")["value"]) == ("draft", 1.0)
        assert [Path(opened.of(each)["value"]["path"]).name for each in ("video", "speech")] == [
            path.name for path in clip
        ]
        assert len(opened.of("faces")["value"]) == 1
        stranger = Opened(another, "stranger")
        stranger.shown |= {number: dict(properties) for number, properties in opened.shown.items()}
        with pytest.raises(RuntimeError, match="not in the list of choices"):
            stranger.fire("delete", "click")
        assert service.job(ids[1]).state == "done"
        opened.fire("delete", "click")
        assert [number for _, number in opened.of("history")["choices"]] == [ids[2]]


def test_a_preview_is_three_seconds(page: tuple[str, Service], opened: Opened, clip: tuple[Path, Path]) -> None:
    opened.upload("video", clip[0])
    opened.upload("speech", clip[1])
    opened.fire("trial", "click")
    job = page[1].jobs(1)[0]
    assert page[1]._store.row(job.id).task.options.preview_s == 3
    assert " · balanced · preview · " in opened.of("history")["choices"][0][0]


@pytest.mark.parametrize(
    ("verdicts", "alarm", "said"),
    [
        (["follows"], "", "Lips follow the speech, 80 ms late"),
        (["follows", "weak"], "", "speaker 1: weak: lips hardly follow the speech; try guidance 2"),
        (["follows"], "another face", "Alarm: another face"),
        ([], "", ""),
    ],
)
def test_the_verdict_is_shown(
    page: tuple[str, Service], clip: tuple[Path, Path], verdicts: list[str], alarm: str, said: str
) -> None:
    from latentsync_trt.web import parts

    lips = tuple(LipMeasure(number, 50, verdict, late_ms=80) for number, verdict in enumerate(verdicts))
    measures = json.loads(json.dumps(asdict(Measures(lips, alarm=alarm))))
    job = page[1].job(submitted(page[1], clip))
    found = parts.verdict(replace(job, report={"quality": measures}))
    card = parts.html.card(job, "", found, has_preview=False, canceling=False)
    assert said in card
    assert ("verdict" in card) == bool(said)


def test_a_search_that_fails_queues_no_job(page: tuple[str, Service], opened: Opened, tmp_path: Path) -> None:
    before = len(page[1].jobs(100))
    opened.upload("video", write_video(tmp_path / "a tree.mp4", numbered(5)))
    opened.upload("speech", write_sound(tmp_path / "voice.wav", 0.4))
    assert "a tree.mp4: no face in any of the 5 frames" in opened.of("message")["value"]
    opened.of("message")["value"] = ""
    opened.fire("anyway", "click")
    assert "a tree.mp4: no face in any of the 5 frames" in opened.of("message")["value"]
    assert len(page[1].jobs(100)) == before


def test_an_upload_that_was_deleted(opened: Opened, clip: tuple[Path, Path], tmp_path: Path) -> None:
    opened.upload("video", clip[0])
    opened.upload("speech", write_sound(tmp_path / "gone.wav", 0.3))
    Path(opened.of("speech")["value"]["path"]).unlink()
    opened.fire("anyway", "click")
    assert ">gone.wav: is not kept any longer; upload it again" in opened.of("message")["value"]
    opened.of("speech")["value"] = None
    opened.fire("anyway", "click")
    assert ">speech: is missing" in opened.of("message")["value"]


def test_errors_name_the_file_of_the_user(opened: Opened, clip: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "my voice.wav").write_text("no sound")
    opened.upload("video", clip[0])
    opened.upload("speech", tmp_path / "my voice.wav")
    opened.fire("anyway", "click")
    assert ">my voice.wav: is not a readable media file" in opened.of("message")["value"]


@pytest.mark.integration
def test_a_search_that_takes_long_stalls_no_other_and_ends_when_its_browser_leaves(
    tmp_path: Path, clip: tuple[Path, Path]
) -> None:
    (tmp_path / "large.gif").write_bytes(gif(1500, 20_000))
    with (
        ThreadPoolExecutor(1) as pool,
        shown(tmp_path / "page", PretendedWorker(), limits=Limits()) as (address, _),
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
    ):
        before = {child.pid for child in psutil.Process().children()}
        slow, other = Opened(client, "slow"), Opened(client, "other")
        searching = pool.submit(slow.upload, "video", tmp_path / "large.gif")
        (child,) = until(lambda: [each for each in psutil.Process().children() if each.pid not in before])
        other.upload("video", clip[0])
        assert len(other.of("faces")["value"]) == 1
        assert child.is_running() and not searching.done()
        slow.leaves.set()
        with pytest.raises(ConnectionAbortedError):
            searching.result()
        until(lambda: not child.is_running())


@pytest.mark.integration
def test_a_search_that_needs_too_much_memory_leaves_the_choice_to_the_job(
    tmp_path: Path, clip: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latentsync_trt.web.inputs.machine_bytes", lambda: 1e6)
    with (
        shown(tmp_path, PretendedWorker()) as (address, service),
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
    ):
        opened = Opened(client, "too much")
        opened.upload("video", clip[0])
        opened.upload("speech", clip[1])
        assert "GB of memory, the most here" in opened.of("message")["value"]
        assert "a job takes the largest face" in opened.of("message")["value"]
        opened.fire("anyway", "click")
        assert service._store.row(service.jobs(1)[0].id).task.options.faces is None


def test_a_search_loads_nothing_that_serves() -> None:
    looks = "import sys, latentsync_trt.serve.checks, latentsync_trt.face.detector, latentsync_trt.sync.faces; "
    served = "{'fastapi', 'gradio', 'starlette', 'uvicorn', 'prometheus_client'}"
    subprocess.run([sys.executable, "-c", f"{looks} assert not {served} & set(sys.modules)"], check=True)


def test_a_preview_takes_the_place_of_what_browsers_cannot_play(
    page: tuple[str, Service], opened: Opened, tmp_path: Path
) -> None:
    photo = tmp_path / "my photo.png"
    cv2.imwrite(str(photo), first_person(1)[0][..., ::-1])
    opened.upload("video", photo)
    assert opened.of("video")["value"]["path"].endswith("my photo.png.preview.mp4")
    opened.of("option-start")["value"] = "0.1"
    opened.fire("video", "change")
    assert opened.of("faces")["visible"]
    assert opened.of("option-start")["value"] == "0.1"
    opened.of("option-start")["value"] = ""
    opened.upload("speech", write_sound(tmp_path / "voice.wav", 0.4))
    opened.fire("anyway", "click")
    assert Path(page[1]._store.row(page[1].jobs(1)[0].id).task.video).name == "my photo.png"


def test_cancel_answers_at_once(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    class Deaf(PretendedWorker):
        def cancel(self, task_id: str) -> None:
            """Works on until `go`, as one that paints a window."""

    worker = Deaf()
    with (
        shown(tmp_path, worker) as (address, _),
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
    ):
        opened = Opened(client, "cancels")
        opened.upload("video", clip[0])
        opened.upload("speech", clip[1])
        opened.fire("anyway", "click")
        until(lambda: worker.tasks)
        opened.fire("cancel", "click")
        assert "Canceling…" in opened.of("progress")["value"]
        assert opened.of("cancel")["interactive"] is False
        worker.go.set()


def test_another_bundle_is_named_in_the_task(
    tmp_path: Path, clip: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copytree(demo_folder(), tmp_path / "bundles" / "other")
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(tmp_path / "bundles"))
    worker = PretendedWorker()
    worker.go.set()
    with (
        shown(tmp_path, worker) as (address, _),
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
    ):
        opened = Opened(client, "chooses")
        (name, _), (another, _) = opened.of("bundle")["choices"]
        opened.upload("video", clip[0])
        opened.upload("speech", clip[1])
        for chosen in (name, another):
            opened.of("bundle")["value"] = chosen
            opened.fire("bundle", "change")
            opened.fire("anyway", "click")
        assert opened.of("demo-note")["visible"] is False
        until(lambda: len(worker.tasks) == 2)
    assert [task.bundle for task in worker.tasks] == [None, str(other)]


def test_every_option_has_a_control() -> None:
    import gradio as gr

    from latentsync_trt.web import parts as options

    async def made() -> dict[str, Any]:
        with gr.Blocks(analytics_enabled=False):
            return {**options.shown_controls(), **options.folded_controls()}

    controls = asyncio.run(made())
    names = {spec.name for spec in fields(SyncOptions)}
    unset = {"preset", "faces", "overwrite", "resume", "speaker", "turns", "preview_s"}
    assert names - controls.keys() == unset
    assert controls["offset"].label == "Offset (ms)"
    untouched = {name: control.value for name, control in controls.items()}
    assert options.changed(untouched) == ({}, {})
    given = {"crf": "20", "mark": False, "report": True, "codec": "hevc"}
    assert options.changed({**untouched, **given, "mix": "a.wav"}) == (given, {"mix": "a.wav"})
    assert controls["codec"].choices[1][0] == "h264"
    assert controls["guidance"].info.startswith("Classifier-free guidance scale")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latentsync_trt.batch.workers.make_workers", lambda *_, **__: [PretendedWorker()])

    words = ["ui", "--bundle", "demo", "--folder", str(tmp_path), "--host", "0.0.0.0"]
    refused = CliRunner().invoke(main, words, env={"LATENTSYNC_TRT_API_KEY": None})
    assert refused.exit_code == 2
    assert "--host 0.0.0.0: other machines reach it; set $LATENTSYNC_TRT_API_KEY" in refused.output
    assert not list(tmp_path.iterdir())
