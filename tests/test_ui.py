"""The page `latentsync-trt ui`, without a browser: its endpoint for `gradio_client`, its limits and its files."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from shutil import copyfile
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from latentsync_trt import SyncOptions
from latentsync_trt.cli import main
from latentsync_trt.media.demo_clip import SPEECH
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.service import Service
from tests.clips import write_face, write_sound
from tests.serving import RESULT, PretendedWorker, answering, until

pytest.importorskip("gradio")
from gradio_client import Client, handle_file

# Gradio counts its calls with pandas.
pytestmark = pytest.mark.filterwarnings("ignore:.*no_silent_downcasting", "ignore:The copy keyword")

KEY = "a-key-for-this-test"
LIMITS = Limits(max_upload_mb=3.0, max_clip_s=2.0)
FILES = "result", "source", "report"

Sync = Callable[..., tuple[str, str | None]]


@contextmanager
def shown(folder: Path, worker: PretendedWorker, key: str | None = None) -> Iterator[tuple[str, Service]]:
    """The address of a page, and its service."""
    from latentsync_trt.web.app import page_app

    service = Service(folder, [worker], LIMITS)
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


@pytest.fixture(scope="module")
def sync(page: tuple[str, Service], clip: tuple[Path, Path]) -> Sync:
    """Calls the endpoint; by default with `clip`."""
    client = Client(page[0], verbose=False)

    def call(video: Path = clip[0], speech: Path | None = clip[1], **given: Any) -> tuple[str, str | None]:
        sent = {"video": handle_file(video), "speech": None if speech is None else handle_file(speech)}
        options = {"preset": "fast", "face": "largest", "options": {}, **given}
        found: tuple[str, str | None] = client.predict(**sent, **options, api_name="/sync")
        return found

    return call


@pytest.fixture
def plain(page: tuple[str, Service]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=page[0], trust_env=False, timeout=60) as client:
        yield client


def test_the_endpoint(page: tuple[str, Service], sync: Sync) -> None:
    result, report = sync(face="index:1", options={"guidance": 2.0, "report": True})
    assert Path(result).read_bytes() == RESULT
    assert report is not None
    assert "page" in Path(report).read_text()
    task = page[1]._ledger.row(page[1].jobs(1)[0].id).task
    assert (task.options.preset, task.options.face, task.options.guidance) == ("fast", "index:1", 2.0)
    assert list(Client(page[0], verbose=False).view_api(return_format="dict")["named_endpoints"]) == ["/sync"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speech": None}, "speech: is missing; choose or record one"),
        ({"face": "index:x"}, "index:x"),
        ({"options": [2]}, "options: is not an object"),
        ({"options": {"guidanc": 2}}, "guidanc: no such option; did you mean guidance?"),
        ({"options": {"crf": 99}}, "--crf 99"),
        ({"options": {"c2pa": "/etc/passwd"}}, "c2pa: cannot be named in options"),
    ],
)
def test_wrong_requests(page: tuple[str, Service], sync: Sync, given: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        sync(**given)
    assert all(job.state == "done" for job in page[1].jobs(100))


def test_files_that_are_refused(
    page: tuple[str, Service], sync: Sync, plain: httpx.Client, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    text, long = tmp_path / "video.mp4", write_face(tmp_path / "long.mp4", 55)
    text.write_text("no video")
    with pytest.raises(Exception, match=r"video\.mp4: is not a readable media file") as refused:
        sync(text)
    assert "/" not in str(refused.value)
    with pytest.raises(Exception, match="video: lasts longer than 2 s, the most here; send a shorter one"):
        sync(long)
    assert plain.post("/gradio_api/upload", files={"files": bytes(4_000_000)}).status_code == 413
    assert {path.name for path in page[1]._jobs.iterdir()} == {job.id for job in page[1].jobs(100)}


def test_no_other_files_and_addresses(page: tuple[str, Service], sync: Sync, plain: httpx.Client) -> None:
    sync()
    job = page[1].jobs(1)[0].id
    secret = page[1].result(job)
    for path in ("/etc/passwd", secret, f"{secret.parent}/../{job}/{secret.name}", "http://127.0.0.1:1/x", "."):
        assert plain.get(f"/gradio_api/file={path}").status_code == 403, path
    for path in (f"{job}/result", f"{job}/source", f"{'0' * 32}/result", "../x", ""):
        assert plain.get(f"/v1/jobs/{path}").status_code == 404, path
    assert plain.get("/docs").status_code == 404
    for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
        assert plain.get("/config", headers=headers).status_code == 403


def test_uploads_without_a_job_are_bounded(plain: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from latentsync_trt.web import app

    assert plain.post("/gradio_api/upload", files={"files": b"x"}).status_code == 200
    monkeypatch.setattr(app, "_size_bytes", lambda folder: int(app._MOST_UPLOADS * LIMITS.max_upload_mb * 1e6) + 1)
    assert plain.post("/gradio_api/upload", files={"files": b"x"}).status_code == 507


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/etc/hostname", "../../../etc/hostname", "http://127.0.0.1:1/x.mp4"])
def test_paths_in_place_of_uploads(plain: httpx.Client, path: str, stream: bool) -> None:
    video = {"path": path, "is_stream": stream, "meta": {"_type": "gradio.FileData"}}
    asked = plain.post("/gradio_api/call/sync", json={"data": [video, video, "fast", "largest", {}]}).json()["event_id"]
    answer = plain.get(f"/gradio_api/call/sync/{asked}").text
    assert "event: error" in answer
    assert "readable" not in answer


def test_other_browsers_get_nothing(
    page: tuple[str, Service], plain: httpx.Client, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    from latentsync_trt.web import jobs

    service, sent = page[1], {"video": str(copyfile(clip[0], tmp_path / "a.html")), "audio": str(clip[1])}
    assert "default-src 'self'" in plain.get("/").headers["content-security-policy"]
    job = jobs.submit(service, sent, {"report": True}, browser=dict(plain.cookies).popitem()[1])
    until(lambda: service.job(job.id).state == "done")
    own = {name: plain.get(f"/v1/jobs/{job.id}/{name}") for name in FILES}
    assert (own["result"].content, own["source"].content) == (RESULT, clip[0].read_bytes())
    for name in ("source", "report"):
        assert own[name].headers["content-security-policy"] == "sandbox"
    with httpx.Client(base_url=page[0], trust_env=False) as other:
        other.get("/")
        assert {other.get(f"/v1/jobs/{job.id}/{name}").status_code for name in FILES} == {404}


@pytest.mark.integration
def test_the_people_of_a_video(page: tuple[str, Service], clip: tuple[Path, Path]) -> None:
    from latentsync_trt.web import jobs
    from latentsync_trt.web.jobs import find_people

    service, sent, noted = page[1], {"video": str(clip[0]), "audio": str(clip[1])}, list[int]()
    found = find_people(str(clip[0]), LIMITS, lambda progress: noted.append(progress.done))
    assert noted[-1] == 25
    assert [(picture.shape, round(seen_s, 1)) for picture, seen_s in found.portraits] == [((160, 160, 3), 1.0)]
    for people in (found, None):
        job = jobs.submit(service, sent, {}, people=people)
        assert (service._ledger.row(job.id).task.options.faces is not None) is (people is not None)


def test_a_client_with_the_key_that_cancels(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    with shown(tmp_path, PretendedWorker(), KEY) as (address, service):
        assert httpx.get(f"{address}/config", trust_env=False).status_code == 401
        assert httpx.post(f"{address}/gradio_api/upload", files={"files": b"x"}, trust_env=False).status_code == 401
        with httpx.Client(base_url=address, trust_env=False) as browser:
            assert browser.post("/login", data={"username": "user", "password": KEY}).is_success
            assert browser.get("/config").is_success
            for method, path in (("GET", "/config"), ("OPTIONS", "/config"), ("POST", "/gradio_api/upload")):
                answer = browser.request(method, path, headers={"Origin": "https://attacker.example"})
                assert answer.status_code == 403
                assert "access-control-allow-origin" not in answer.headers
        client = Client(address, verbose=False, auth=("user", KEY))
        job = client.submit(*map(handle_file, clip), "fast", "largest", {}, api_name="/sync")
        until(lambda: bool(service.jobs(1)) and service.jobs(1)[0].done > 0)
        job.cancel()
        until(lambda: service.jobs(1)[0].state == "canceled")
        wrong = [{"username": "user", "password": str(number)} for number in range(12)]
        with httpx.Client(base_url=address, trust_env=False) as guesser:
            assert [guesser.post("/login", data=each).status_code for each in wrong] == [400] * 10 + [429] * 2


def test_the_built_in_clip(plain: httpx.Client) -> None:
    config = plain.get("/config").json()
    button = next(part["id"] for part in config["components"] if part["props"].get("elem_id") == "demo")
    event = next(each["id"] for each in config["dependencies"] if [button, "click"] in each["targets"])
    plain.post("/gradio_api/queue/join", json={"fn_index": event, "data": [], "session_hash": "a"})
    answer = plain.get("/gradio_api/queue/data?session_hash=a").text
    files = [plain.get(f"/gradio_api/file={path}").content for path in re.findall(r'"path": ?"([^"]+)"', answer)]
    assert (len(files), SPEECH.read_bytes() in files) == (2, True)


def test_every_option_has_a_control() -> None:
    import gradio as gr

    from latentsync_trt.web import parts as options

    async def made() -> dict[str, Any]:
        with gr.Blocks(analytics_enabled=False):
            return {**options.shown_controls(), **options.folded_controls()}

    controls = asyncio.run(made())
    names = {spec.name for spec in fields(SyncOptions)}
    assert names - controls.keys() == {"preset", "faces", "resume", "speaker", "turns"}
    untouched = {name: control.value for name, control in controls.items()}
    assert options.changed(untouched) == ({}, {})
    given = {"crf": "20", "mark": False, "report": True, "codec": "hevc"}
    assert options.changed({**untouched, **given, "mix": "a.wav"}) == (given, {"mix": "a.wav"})
    assert controls["codec"].choices[1][0] == "h264"
    assert controls["guidance"].info.startswith("Classifier-free guidance scale")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latentsync_trt.batch.workers.make_workers", lambda *_, **__: [PretendedWorker()])

    for extra in ("--share",), ("--host", "0.0.0.0"):
        words = ["ui", "--bundle", "demo", "--folder", str(tmp_path), *extra]
        refused = CliRunner().invoke(main, words, env={"LATENTSYNC_TRT_API_KEY": None})
        assert refused.exit_code == 2
        assert f"{' '.join(extra)}: other machines reach it; set $LATENTSYNC_TRT_API_KEY" in refused.output
    assert not list(tmp_path.iterdir())
