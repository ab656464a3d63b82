"""The page `latentsync-trt ui`, without a browser: its events, its limits and its files."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile, copytree, rmtree
from typing import Any

import cv2
import httpx
import numpy as np
import psutil
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.measures import Interval, LipMeasure, Measures
from latentsync_trt.media.reader import probe
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.folders import FULL
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs
from latentsync_trt.web.uploads import Upload
from tests.clips import decoded, gif, number_of, numbered, write_face, write_sound, write_video
from tests.people import first_person, second_person, together
from tests.serving import RESULT, PretendedWorker, answering, kill_new_children, until
from tests.test_show import REPORT

if find_spec("gradio") is None:  # its import takes seconds, in each process that collects tests
    pytest.skip("needs the extra ui", allow_module_level=True)

# Gradio counts its calls with pandas.
pytestmark = pytest.mark.filterwarnings("ignore:.*no_silent_downcasting", "ignore:The copy keyword")

KEY = "a-key-for-this-test"
LIMITS = Limits(max_upload_mb=3.0, max_clip_s=2.0)
FILES = "result", "before", "report"
WRONG_VARIABLES = {
    "ALL_PROXY": "gopher://127.0.0.1:9",
    "no_proxy": "fe80::/10",
    "SSL_CERT_FILE": "gone.pem",
}
"""With which no HTTP client opens; the page needs none."""


@contextmanager
def shown(folder: Path, service: Service, key: str | None = None) -> Iterator[str]:
    """The address of a page."""
    from latentsync_trt.web.app import page_app

    # after the block, another page of this process finds its uploads
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("GRADIO_TEMP_DIR", "")
        for name, value in WRONG_VARIABLES.items():
            changed.setenv(name, value)
        changed.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(folder / "bundles"))
        with page_app(service, folder, key, own_hosts=True) as app, answering(app) as address:
            yield address


@pytest.fixture(scope="module")
def worker() -> PretendedWorker:
    return PretendedWorker()


@pytest.fixture(scope="module")
def page(
    tmp_path_factory: pytest.TempPathFactory, worker: PretendedWorker
) -> Iterator[tuple[str, Service]]:
    """A page with two bundles, the built-in one and a copy of it."""
    folder = tmp_path_factory.mktemp("page")
    copytree(demo_folder(), folder / "bundles" / "other")
    service = Service(folder, [worker], LIMITS)
    with shown(folder, service) as address:
        yield address, service
    assert not (folder / "uploads").exists()


@pytest.fixture
def service(page: tuple[str, Service], worker: PretendedWorker) -> Service:
    """The page's; its worker finishes what it is given."""
    worker.go.set()
    worker.tasks.clear()
    return page[1]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("clip")
    return write_face(folder / "face.mp4", 10), write_sound(folder / "speech.wav", 0.4)


def submitted(
    service: Service, clip: tuple[Path, Path], browser: str = "one", **options: Any
) -> str:
    """The id of a job of a browser, which is done."""
    files = {"video": str(clip[0]), "audio": str(clip[1])}
    settings = {"options": options, "bundle": None, "files": files}
    job = jobs.submit(service, settings, Upload(clip[0]), browser)
    until(lambda: service.jobs.status(job).state == "done")
    return job


@pytest.fixture
def plain(page: tuple[str, Service]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=page[0], trust_env=False, timeout=600) as client:
        yield client


def test_no_other_files_and_addresses(
    service: Service, plain: httpx.Client, clip: tuple[Path, Path]
) -> None:
    job = submitted(service, clip)
    secret, _ = service.jobs.result(job)
    for path in (
        "/etc/passwd",
        secret,
        f"{secret.parent}/../{job}/{secret.name}",
        "http://127.0.0.1:1/x",
        ".",
    ):
        assert plain.get(f"/gradio_api/file={path}").status_code == 403, path
    for path in (f"{job}/result", f"{job}/before", f"{'0' * 32}/result", "../x", ""):
        assert plain.get(f"/v1/jobs/{path}").status_code == 404, path
    assert plain.get("/docs").status_code == 404
    assert plain.get("/gradio_api/info").json() == {"named_endpoints": {}, "unnamed_endpoints": {}}
    for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
        assert plain.get("/config", headers=headers).status_code == 403


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../../../etc/hostname", "http://127.0.0.1:1/x.mp4"]
)
def test_paths_in_place_of_uploads(opened: "Opened", path: str, stream: bool) -> None:
    opened.of("video")["value"] = {
        "path": path,
        "is_stream": stream,
        "meta": {"_type": "gradio.FileData"},
    }
    with pytest.raises(RuntimeError) as refused:
        opened.fire("video", "change")
    assert "readable" not in str(refused.value)


def test_other_browsers_get_nothing(
    page: tuple[str, Service],
    service: Service,
    plain: httpx.Client,
    clip: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    page_file = copyfile(clip[0], tmp_path / "a.html")
    assert "default-src 'self'" in plain.get("/").headers["content-security-policy"]
    job = submitted(service, (page_file, clip[1]), dict(plain.cookies).popitem()[1], report=True)
    own = {name: plain.get(f"/v1/jobs/{job}/{name}") for name in FILES}
    assert own["result"].headers["content-disposition"] == 'attachment; filename="a-synced.mp4"'
    assert (own["result"].content, own["before"].content) == (RESULT, clip[0].read_bytes())
    for name in ("before", "report"):
        assert own[name].headers["content-security-policy"] == "sandbox"
    with httpx.Client(base_url=page[0], trust_env=False) as other:
        other.get("/")
        assert {other.get(f"/v1/jobs/{job}/{name}").status_code for name in FILES} == {404}


class FullService(Service):
    """Has no space for anything once it is `full`."""

    full = False

    def problem(self) -> str:
        if self.full:
            return FULL
        return super().problem()


def test_with_a_key_people_log_in(tmp_path: Path) -> None:
    service = FullService(tmp_path, [PretendedWorker()], LIMITS)
    upload = {"files": b"x"}
    with shown(tmp_path, service, KEY) as address:
        assert httpx.get(f"{address}/config", trust_env=False).status_code == 401
        assert (
            httpx.post(f"{address}/gradio_api/upload", files=upload, trust_env=False).status_code
            == 401
        )
        with httpx.Client(base_url=address, trust_env=False) as browser:
            assert browser.post("/login", data={"username": "user", "password": KEY}).is_success
            assert browser.get("/config").is_success
            for method, path in (
                ("GET", "/config"),
                ("OPTIONS", "/config"),
                ("POST", "/gradio_api/upload"),
            ):
                answer = browser.request(
                    method, path, headers={"Origin": "https://attacker.example"}
                )
                assert answer.status_code == 403
                assert "access-control-allow-origin" not in answer.headers
            assert browser.post("/gradio_api/upload", files=upload).is_success
            service.full = True
            assert browser.post("/gradio_api/upload", files=upload).status_code == 507
        wrong = [{"username": "user", "password": str(number)} for number in range(12)]
        with httpx.Client(base_url=address, trust_env=False) as guesser:
            assert [guesser.post("/login", data=each).status_code for each in wrong] == [
                400
            ] * 10 + [429] * 2


class Opened:
    """A page as its script uses it: `fire` sends the values of components, and notes what comes
    back.
    """

    def __init__(self, client: httpx.Client, session: str, kept: str = "") -> None:
        """`kept`: what the tab kept of the form before it was loaded again."""
        client.get("/")
        self.client = client
        self._session = session
        self.leaves = threading.Event()
        config = client.get("/config").json()
        self._events = config["dependencies"]
        parts = config["components"]
        self._names = {
            part["props"]["elem_id"]: part["id"] for part in parts if part["props"].get("elem_id")
        }
        self.shown: dict[int, dict[str, Any]] = {part["id"]: part["props"] for part in parts}
        self.of("kept")["value"] = kept
        for event in self._events:
            if any(kind == "load" for _, kind in event["targets"]):
                self._run(event)

    def of(self, name: str) -> dict[str, Any]:
        """The properties of a component."""
        return self.shown[self._names[name]]

    def form(self) -> str:
        """What the page's script keeps of the form."""
        (event,) = (event for event in self._events if "page.keep(" in (event["js"] or ""))
        return json.dumps([self.shown[part].get("value") for part in event["inputs"]])

    def send(self, **order: Any) -> int:
        """Sends what the page's script never does; returns the status of the answer."""
        return self.client.post(
            "/gradio_api/run/predict", json={"session_hash": self._session, **order}
        ).status_code

    def upload(self, name: str, path: Path) -> None:
        """Gives a file, as a user does."""
        sent = self.client.post(
            "/gradio_api/upload", files={"files": (path.name, path.read_bytes())}
        ).json()[0]
        self.of(name)["value"] = {"path": sent, "meta": {"_type": "gradio.FileData"}}
        self.fire(name, "change")

    def give(self, clip: tuple[Path, Path]) -> None:
        """Gives video and speech."""
        self.upload("video", clip[0])
        self.upload("speech", clip[1])

    def fire(self, name: str, kind: str, data: Any = None) -> None:
        """Does what happens at an event of a component, and what follows."""
        for event in self._events:
            if [self._names[name], kind] in event["targets"]:
                self._run(event, data)

    def _answers(self, order: dict[str, Any], *, queued: bool) -> Iterator[list[Any]]:
        """What an event shows: of several answers the first and the last, as between them come
        differences.
        """
        if not queued:
            answer = self.client.post("/gradio_api/run/predict", json=order)
            if answer.is_error:
                raise RuntimeError(answer.text)
            yield answer.json()["data"]
            return
        self.client.post("/gradio_api/queue/join", json=order).raise_for_status()
        first = None
        ended = dict[str, Any]()
        with self.client.stream(
            "GET", f"/gradio_api/queue/data?session_hash={self._session}"
        ) as answer:
            for line in answer.iter_lines():
                if self.leaves.is_set():
                    raise ConnectionAbortedError
                if first is None and '"process_generating"' in line:
                    first = json.loads(line[6:])["output"]["data"]
                    yield first
                if '"process_completed"' in line:
                    ended = json.loads(line[6:])
        if not ended["success"]:
            raise RuntimeError(ended)
        yield ended["output"]["data"]

    def _run(self, event: dict[str, Any], data: Any = None) -> None:
        if event["backend_fn"]:  # else the script does it
            self._show(event, data)
        for after in self._events:
            if after["trigger_after"] == event["id"]:
                self._run(after)

    def _show(self, event: dict[str, Any], data: Any) -> None:
        values = [self.shown[part].get("value") for part in event["inputs"]]
        order = {
            "fn_index": event["id"],
            "data": values,
            "session_hash": self._session,
            "event_data": data,
        }
        for answer in self._answers(order, queued=event["queue"]):
            for part, found in zip(event["outputs"], answer, strict=True):
                is_update = isinstance(found, dict) and found.get("__type__") == "update"
                self.shown[part] |= found if is_update else {"value": found}


@pytest.fixture
def opened(plain: httpx.Client, request: pytest.FixtureRequest) -> Opened:
    return Opened(plain, request.node.name)


def test_files_that_are_refused(page: tuple[str, Service], opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no video")
    long = write_face(tmp_path / "long.mp4", 55)
    tree = write_video(tmp_path / "a tree.mp4", numbered(5))
    for name, path, said in (
        ("video", tmp_path / "notes.txt", ">notes.txt: is not a readable media file"),
        ("speech", tmp_path / "notes.txt", ">notes.txt: is not a readable media file"),
        ("speech", tree, ">a tree.mp4: has no audio stream"),
        ("video", long, "lasts longer than 2 s, the most here; send a shorter one"),
        ("video", tree, ">a tree.mp4: no face in any of the 5 frames"),
    ):
        opened.upload(name, path)
        is_gone = opened.of(name)["value"] is None
        assert is_gone == (name == "speech" or path.name == "notes.txt")
        if is_gone:  # which is a change, too
            opened.fire(name, "change")
        assert said in opened.of(f"{name}-error")["value"]
    opened.of("video")["value"] = None
    opened.fire("video", "change")
    assert ">a tree.mp4" not in opened.of("video-error")["value"]
    too_large = {"files": bytes(4_000_000)}
    assert (
        httpx.post(f"{page[0]}/gradio_api/upload", files=too_large, trust_env=False).status_code
        == 413
    )


@pytest.mark.integration
def test_the_built_in_model_asks_before_it_smears(
    service: Service, opened: Opened, tmp_path: Path
) -> None:
    assert opened.of("bundle")["value"].startswith("demo (model demo, ")
    assert "CPU" in opened.of("model")["value"]
    opened.upload(
        "video", write_video(tmp_path / "part of the built-in clip.mp4", first_person(10))
    )
    assert "the only one" in opened.of("demo-note")["value"]
    before = len(service.jobs.newest(100))
    opened.upload("video", write_video(tmp_path / "my face.mp4", second_person(10)))
    opened.upload("speech", write_sound(tmp_path / "my voice.wav", 0.4))
    assert "will be a smear" in opened.of("demo-note")["value"]
    opened.fire("start", "click")
    assert (opened.of("anyway")["visible"], len(service.jobs.newest(100))) == (True, before)
    opened.fire("anyway", "click")
    assert (opened.of("anyway")["visible"], len(service.jobs.newest(100))) == (False, before + 1)
    job = service.jobs.newest(1)[0]
    until(lambda: service.jobs.status(job.id).state == "done")
    opened.fire("history", "input")
    assert "my face-synced.mp4" in opened.of("progress")["value"]


def test_a_list_of_jobs(
    page: tuple[str, Service], service: Service, opened: Opened, clip: tuple[Path, Path]
) -> None:
    """Jobs differ; broken ones break nothing; settings come back; other browsers delete nothing."""
    opened.give(clip)
    ids = list[str]()
    presets = ("fast", "draft", "quality")
    for preset in presets:
        opened.of("preset")["value"] = preset
        opened.of("option-guidance")["value"] = 1.0
        opened.fire("trial" if preset == "quality" else "anyway", "click")
        ids.insert(0, service.jobs.newest(1)[0].id)
        until(lambda: service.jobs.status(ids[0]).state == "done")
    opened.fire("history", "input")
    listed = [(*text.split(" · "), number) for text, number in opened.of("history")["choices"]]
    assert [(*words[:-3], *words[-2:]) for words in listed] == [
        ("face.mp4", "quality", "preview", "done", ids[0]),
        ("face.mp4", "draft", "done", ids[1]),
        ("face.mp4", "fast", "done", ids[2]),
    ]
    rmtree(service.jobs.folder(ids[2]))
    opened.of("history")["value"] = ids[1]
    opened.fire("history", "input")
    assert [number for _, number in opened.of("history")["choices"]] == ids
    assert "face-synced.mp4" in opened.of("progress")["value"]
    assert service.jobs.result(ids[0])[1] == "face-preview.mp4"
    opened.of("speech")["value"] = None
    opened.fire("again", "click")
    opened.fire("video", "change")
    reloaded = Opened(opened.client, "reloaded", opened.form())
    reloaded.fire("video", "change")
    for each in (opened, reloaded):
        assert (each.of("preset")["value"], each.of("option-guidance")["value"]) == ("draft", 1.0)
        assert len(each.of("faces")["value"]) == 1
    assert [Path(opened.of(each)["value"]["path"]).name for each in ("video", "speech")] == [
        path.name for path in clip
    ]
    with httpx.Client(base_url=page[0], trust_env=False, timeout=600) as another:
        stranger = Opened(another, "stranger")
        stranger.shown |= {number: dict(properties) for number, properties in opened.shown.items()}
        with pytest.raises(RuntimeError, match="list of choices"):
            stranger.fire("delete", "click")
    opened.of("history")["value"] = None  # as where the user does not confirm
    opened.fire("delete", "click")
    assert service.jobs.status(ids[1]).state == "done"
    opened.of("history")["value"] = ids[1]
    opened.fire("delete", "click")
    assert [number for _, number in opened.of("history")["choices"]] == [ids[0], ids[2]]


def test_a_preview_is_three_seconds(
    service: Service, worker: PretendedWorker, opened: Opened, clip: tuple[Path, Path]
) -> None:
    """And "Use these settings again" works after a reload."""
    opened.give(clip)
    opened.fire("trial", "click")
    assert until(lambda: worker.tasks)[0].options.preview_s == 3
    again = Opened(opened.client, "reloaded")
    again.fire("again", "click")
    again.fire("video", "change")
    assert len(again.of("faces")["value"]) == 1
    Path(again.of("speech")["value"]["path"]).unlink()
    again.fire("again", "click")
    assert "Speech: not kept any longer" in again.of("message")["value"]


def test_the_verdict_is_shown(
    service: Service, worker: PretendedWorker, plain: httpx.Client, clip: Any
) -> None:
    opened = Opened(plain, "verdicts")
    browser = dict(plain.cookies).popitem()[1]
    lips = (LipMeasure(0, 50, "follows", late_ms=80),)
    misfits = (Interval(3.2, 4.1, "smeared"),)
    for measures, said in (
        (Measures(lips), "Lips follow the speech, 80 ms late"),
        (Measures(lips, alarm="another face"), "Alarm: another face"),
        (Measures(lips, misfits=misfits), "Alarm: 3.2–4.1 s: smeared; lips follow"),
    ):
        worker.quality = json.loads(json.dumps(asdict(measures)))
        opened.of("history")["value"] = None
        submitted(service, clip, browser)
        opened.fire("history", "input")
        assert said in opened.of("progress")["value"]


def test_a_timeline_is_shown(
    service: Service, worker: PretendedWorker, plain: httpx.Client, clip: Any
) -> None:
    """Not of a report that lacks something, as that of another version."""
    opened = Opened(plain, "timeline")
    browser = dict(plain.cookies).popitem()[1]
    untouched = (Interval(4.0, 4.5, "<b>no face"),)
    whole = asdict(replace(REPORT, untouched=untouched, speech=(Interval(0.5, 3.0, "speech"),)))
    for changes in (whole, whole | {"provider": None}):
        worker.played = json.loads(json.dumps(changes))
        opened.of("history")["value"] = None
        submitted(service, clip, browser)
        opened.fire("history", "input")
        card = opened.of("progress")["value"]
        is_whole = changes is whole
        assert ('x="20.000%" width="2.500%"' in card) == is_whole
        assert ('data-start="4.0" data-end="4.5">4.0–4.5 s: &lt;b&gt;no face<' in card) == is_whole
        assert card.count('role="slider"') == 2 * is_whole
        assert "face-synced.mp4" in card
    worker.played = {}


def test_what_is_painted_over_the_first_picture_is_the_mask_of_the_job(
    service: Service, worker: PretendedWorker, opened: Opened, clip: tuple[Path, Path]
) -> None:
    """Nothing painted is no mask, and another video has none."""
    opened.give(clip)
    opened.fire("keep", "expand")
    shown = Path(opened.of("keep-editor")["value"]["background"]["path"])
    height, width = cv2.imread(str(shown)).shape[:2]
    layer = np.zeros((height // 2, width // 2, 4), np.uint8)
    for painted in (0, 10):
        layer[:painted, :] = 200
        sent = cv2.imencode(".png", layer)[1].tobytes()
        files = {"files": ("layer.png", sent)}
        path = opened.client.post("/gradio_api/upload", files=files).json()[0]
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        editor = {"background": None, "layers": [file], "composite": None, "id": None}
        opened.of("keep-editor")["value"] = editor
        opened.fire("keep-painted", "click")
        assert bool(opened.of("option-keep_mask")["value"]) == bool(painted)
    opened.fire("anyway", "click")
    task = until(lambda: worker.tasks)[0]
    assert Path(str(task.options.keep_mask)).name == "painted mask.png"
    kept = opened.of("option-keep_mask")["value"]["path"]
    mask = cv2.imread(kept, cv2.IMREAD_GRAYSCALE)
    assert mask is not None
    info = probe(clip[0])
    assert mask.shape == (info.height_px, info.width_px)
    assert mask.mean() == pytest.approx(255 * 20 / height, abs=1)
    assert mask[:10].all()
    opened.of("video")["value"] = None
    opened.fire("video", "change")
    assert opened.of("option-keep_mask")["value"] is None


def test_a_part_is_done_again_and_undone(
    service: Service,
    worker: PretendedWorker,
    plain: httpx.Client,
    clip: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result takes the place of the former one in the list, until that is wanted back."""
    opened = Opened(plain, "again")
    browser = dict(plain.cookies).popitem()[1]
    former = submitted(service, clip, browser)
    opened.fire("history", "input")
    assert (opened.of("redo")["visible"], opened.of("undo")["visible"]) == (True, False)
    opened.of("redo-from")["value"] = 0.1
    opened.fire("redo-begin", "click")
    assert "not a begin and a later end" in opened.of("message")["value"]
    opened.of("redo-until")["value"] = 0.3
    opened.fire("redo-begin", "click")  # the pretended result says of itself nothing
    assert "is not a readable media file" in opened.of("message")["value"]
    monkeypatch.setattr("latentsync_trt.serve.intake.check_redo", repr)  # which checks nothing
    for preset in ("draft", "source"):
        opened.of("redo-preset")["value"] = preset
        opened.fire("redo-begin", "click")
        again = service.jobs.newest(1)[0].id
        until(lambda job=again: service.jobs.status(job).state == "done")
        opened.fire("history", "input")
        (label, shown), *_ = opened.of("history")["choices"]
        assert (shown, "0.1–0.3 s again" in label) == (again, True)
        assert opened.of("undo")["visible"]
    painted, left = (task.options for task in worker.tasks[-2:])
    assert (painted.preset, painted.keep_source, left.keep_source) == ("draft", False, True)
    listed = [number for _, number in opened.of("history")["choices"]]
    assert former not in listed
    for _ in range(2):
        opened.fire("undo", "click")
    assert opened.of("history")["choices"][0][1] == former
    assert opened.of("message")["value"] == opened.of("speech-error")["value"]
    assert opened.of("undo")["visible"] is False


@pytest.mark.integration
def test_each_person_has_their_own_speech(
    service: Service, worker: PretendedWorker, opened: Opened, tmp_path: Path
) -> None:
    """Also after a reload; not beside one for all, nor with another video."""
    opened.upload("video", write_video(tmp_path / "two.mp4", together([280] * 10, [820] * 10)))
    assert not opened.of("person-speech")["visible"]
    for number in (0, 1):
        opened.of("option-face")["value"] = f"index:{number}"
        opened.fire("option-face", "change")
        person = opened.of("person-speech")
        assert (person["visible"], person["value"]) == (True, None)
        opened.upload("person-speech", write_sound(tmp_path / f"{number}.wav", 0.4))
    assert "Person 1: 1.wav" in opened.of("voices-note")["value"]
    opened.upload("speech", write_sound(tmp_path / "all.wav", 0.4))
    opened.fire("anyway", "click")
    assert "for all and for single people" in opened.of("message")["value"]
    opened.of("speech")["value"] = None
    reloaded = Opened(opened.client, "reloaded", opened.form())
    reloaded.fire("video", "change")
    reloaded.fire("anyway", "click")
    task = until(lambda: worker.tasks)[0]
    assert (task.audio, task.options.face) == (None, "largest")
    voices = [(each.face, Path(each.voice).name) for each in task.options.speaker]
    assert voices == [(0, "0.wav"), (1, "1.wav")]
    assert task.options.faces is not None
    opened.of("video")["value"] = None
    opened.fire("video", "change")
    assert opened.of("voices")["value"] == ""


def pids() -> set[int]:
    """Of the children of this process."""
    return {child.pid for child in psutil.Process().children()}


def children_are_idle() -> bool:
    before_s = busy_s()
    time.sleep(0.5)
    return busy_s() - before_s < 0.1


def busy_s() -> float:
    """Of the children of this process together."""
    seconds = 0.0
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:2])
    return seconds


@pytest.mark.integration
def test_searches_that_die_or_take_long(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    """One that dies leaves the choice to the job; one that takes long stalls no other, and ends
    with its browser and where that begins another.
    """
    (tmp_path / "large.gif").write_bytes(gif(1500, 20_000))
    worker = PretendedWorker()
    service = Service(tmp_path / "page", [worker], Limits())
    with (
        ThreadPoolExecutor(2) as pool,
        shown(tmp_path / "page", service) as address,
        httpx.Client(base_url=address, trust_env=False, timeout=600) as client,
        httpx.Client(base_url=address, trust_env=False, timeout=600) as another,
    ):
        slow = Opened(client, "slow")
        other = Opened(another, "other")
        killing = pool.submit(kill_new_children, 2, pids())
        other.upload("video", clip[0])
        killing.result()
        assert "a job takes the largest face" in other.of("video-error")["value"]
        other.upload("speech", clip[1])
        other.fire("anyway", "click")
        assert until(lambda: worker.tasks)[0].options.faces is None
        other.upload(
            "video", another_clip := write_video(tmp_path / "another.mp4", first_person(10))
        )

        def begun(tab: Opened) -> Future[None]:
            search = pool.submit(tab.upload, "video", tmp_path / "large.gif")
            until(lambda: "…" in str(tab.of("people-note").get("value")))
            return search

        search = begun(slow)
        other.upload("video", clip[0])
        assert len(other.of("faces")["value"]) == 1
        assert not search.done()
        Opened(client, "tab").upload("video", another_clip)
        search.result()
        assert "another video" in slow.of("people-note")["value"]
        until(children_are_idle)
        leaving = Opened(client, "leaving")
        search = begun(leaving)
        leaving.leaves.set()
        with pytest.raises(ConnectionAbortedError):
            search.result()
        until(children_are_idle)


def test_before_shows_the_moments_of_the_result(
    service: Service,
    worker: PretendedWorker,
    plain: httpx.Client,
    clip: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    """Also where the result begins later in the video, or plays it back and forth."""
    video = write_video(tmp_path / "numbered.mp4", numbered(20))
    plain.get("/")
    browser = dict(plain.cookies).popitem()[1]
    for delay_s, lasts_s, numbers in (
        (-0.4, 0.2, range(10, 15)),
        (0.0, 1.6, [*range(20), *range(18, -1, -1), 0]),
        (0.0, 0.8, range(20)),
    ):
        worker.played = {"picture_delay_s": delay_s, "duration_s": lasts_s}
        job = submitted(service, (video, clip[1]), browser)
        shown = tmp_path / "before.mp4"
        shown.write_bytes(plain.get(f"/v1/jobs/{job}/before").content)
        assert [number_of(frame) for frame in decoded(shown)] == [*numbers]
    assert shown.read_bytes() == video.read_bytes()
    worker.played = {}


def test_forged_requests_leave_no_traceback(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    for event in opened.client.get("/config").json()["dependencies"]:
        if event["backend_fn"] and event["inputs"] and not event["queue"]:
            value: Any = {"path": "/etc/passwd"} if event["id"] % 2 else None
            data = [value] * len(event["inputs"])
            assert opened.send(fn_index=event["id"], data=data, event_data=value) in (200, 500)
    assert {opened.send(fn_index=number, data=[]) for number in (-1, 999)} == {404}
    assert capsys.readouterr().err == ""


def test_a_copy_takes_the_place_of_what_browsers_cannot_play(
    service: Service, worker: PretendedWorker, opened: Opened, tmp_path: Path
) -> None:
    photo = tmp_path / "my photo.png"
    cv2.imwrite(str(photo), first_person(1)[0][..., ::-1])
    opened.upload("video", photo)
    assert opened.of("video")["value"]["path"].endswith("my photo.png.preview.mp4")
    opened.upload("speech", write_sound(tmp_path / "voice.wav", 0.4))
    opened.fire("anyway", "click")
    assert Path(until(lambda: worker.tasks)[0].video).name == "my photo.png"


def test_cancel_answers_at_once_and_another_bundle_is_named_in_the_task(
    service: Service, worker: PretendedWorker, opened: Opened, clip: tuple[Path, Path]
) -> None:
    opened.give(clip)
    worker.go.clear()
    worker.deaf = True
    for chosen in [name for name, _ in opened.of("bundle")["choices"]]:
        opened.of("bundle")["value"] = chosen
        opened.fire("bundle", "change")
        opened.fire("anyway", "click")
    assert opened.of("demo-note")["visible"] is False
    until(lambda: worker.tasks)
    opened.of("history")["value"] = service.jobs.newest(2)[1].id
    opened.fire("cancel", "click")
    assert "Canceling…" in opened.of("progress")["value"]
    assert opened.of("cancel")["interactive"] is False
    worker.go.set()
    until(lambda: len(worker.tasks) == 2)
    worker.deaf = False
    assert [task.bundle and Path(task.bundle).name for task in worker.tasks] == [None, "other"]


def test_every_option_has_a_control() -> None:
    """None of them, nor a message, has words of the command line."""
    import gradio as gr

    from latentsync_trt.web import parts

    async def make_controls() -> dict[str, Any]:
        with gr.Blocks(analytics_enabled=False):
            return parts.controls([parts.PRESET, *parts.SHOWN, *parts.FOLDED])

    controls = asyncio.run(make_controls())
    unset = {"faces", "overwrite", "resume", "speaker", "turns", "preview_s"}
    unset |= {"redo", "keep_source", "backup"}
    assert {spec.name for spec in fields(SyncOptions)} - controls.keys() == unset
    assert not [
        control.info for control in controls.values() if "--" in str(getattr(control, "info", ""))
    ]
    assert "--" not in parts.html.message("--no-mark, --preview, --video-bitrate")
    untouched = {name: control.value for name, control in controls.items()}
    assert parts.changed(untouched) == ({}, {})
    assert untouched["finish"] == "match"
    given = {"crf": "20", "mark": False, "report": True, "codec": "hevc", "finish": "plain"}
    assert parts.changed({**untouched, **given, "mix": "a.wav"}) == (given, {"mix": "a.wav"})
