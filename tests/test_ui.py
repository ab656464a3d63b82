"""The page `latentsync-trt ui`, without a browser: its endpoint for `gradio_client`, its limits and its files."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from click.testing import CliRunner

from latentsync_trt import SyncOptions
from latentsync_trt.batch.tasks import WorkerHandle, WorkerSettings
from latentsync_trt.batch.workers import make_workers
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError
from latentsync_trt.serve.limits import Limits
from latentsync_trt.serve.server import listen
from latentsync_trt.serve.service import Service
from tests.clips import decoded, write_face, write_sound
from tests.serving import RESULT, PretendedWorker, until

pytest.importorskip("gradio")

# Gradio counts its calls with pandas.
pytestmark = pytest.mark.filterwarnings("ignore:.*no_silent_downcasting", "ignore:The copy keyword")

KEY = "a-key"
LIMITS = Limits(max_upload_mb=3.0, max_clip_s=2.0)


@contextmanager
def shown(folder: Path, worker: WorkerHandle, key: str | None = None) -> Iterator[tuple[str, Service]]:
    """The address of a page, and its service."""
    from latentsync_trt.web.app import page_app

    service, listener = Service(folder, [worker], LIMITS), listen("127.0.0.1", 0)
    with page_app(service, folder, key, own_hosts=True) as app:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
        finally:
            server.should_exit = True
            thread.join()
            listener.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    worker = PretendedWorker()
    worker.go.set()
    with shown(tmp_path_factory.mktemp("page"), worker) as found:
        yield found


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("clip")
    return write_face(folder / "face.mp4", 25), write_sound(folder / "speech.wav", 1.0)


def client_of(address: str, **settings: Any) -> Any:
    from gradio_client import Client

    return Client(address, verbose=False, **settings)


def sync(client: Any, video: Path, speech: Path | None, **given: Any) -> tuple[str, str | None]:
    from gradio_client import handle_file

    found: tuple[str, str | None] = client.predict(
        video=handle_file(video),
        speech=None if speech is None else handle_file(speech),
        **{"preset": "fast", "face": "largest", "options": {}, **given},
        api_name="/sync",
    )
    return found


@pytest.mark.integration
def test_a_clip_with_the_real_model(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    worker = make_workers(WorkerSettings("demo", "cpu"), 1)[0]
    with shown(tmp_path / "page", worker) as (address, _):
        result, report = sync(client_of(address), *clip, options={"report": True})
        assert len(decoded(Path(result))) == 25
        assert report is not None
        assert "<html" in Path(report).read_text("utf-8")
    assert not (tmp_path / "page" / "uploads").exists()


def test_the_endpoint(page: tuple[str, Service], clip: tuple[Path, Path]) -> None:
    address, service = page
    client = client_of(address)
    result, report = sync(client, *clip, face="index:1", options={"guidance": 2.0})
    assert Path(result).read_bytes() == RESULT
    assert report is None
    task = service._ledger.row(service.jobs(1)[0].id).task
    assert (task.options.preset, task.options.face, task.options.guidance) == ("fast", "index:1", 2.0)
    assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/sync"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speech": None}, "speech: is missing; choose or record one"),
        ({"face": "index:x"}, "index:x"),
        ({"options": {"guidanc": 2}}, "guidanc: no such option; did you mean guidance?"),
        ({"options": {"crf": 99}}, "--crf 99: outside 0 to 63"),
        ({"options": {"c2pa_key": "/etc/passwd"}}, "c2pa_key: cannot be named in options"),
    ],
)
def test_wrong_requests(
    page: tuple[str, Service], clip: tuple[Path, Path], given: dict[str, Any], message: str
) -> None:
    client = client_of(page[0])
    with pytest.raises(Exception, match=re.escape(message)):
        sync(client, clip[0], **{"speech": clip[1], **given})
    assert all(job.state == "done" for job in page[1].jobs(100))


def test_files_that_are_refused(page: tuple[str, Service], clip: tuple[Path, Path], tmp_path: Path) -> None:
    client, text = client_of(page[0]), tmp_path / "video.mp4"
    text.write_text("no video")
    with pytest.raises(Exception, match=r"video\.mp4: is not a readable media file") as refused:
        sync(client, text, clip[1])
    assert "/" not in str(refused.value)
    with pytest.raises(Exception, match="video: lasts longer than 2 s, the most here; send a shorter one"):
        sync(client, write_face(tmp_path / "long.mp4", 55), clip[1])
    with httpx.Client(base_url=page[0], trust_env=False) as plain:
        large = plain.post("/gradio_api/upload", files={"files": bytes(4_000_000)})
        assert large.status_code == 413
    assert {path.name for path in page[1]._jobs.iterdir()} == {job.id for job in page[1].jobs(100)}


def test_no_other_files_and_addresses(page: tuple[str, Service], clip: tuple[Path, Path]) -> None:
    address, service = page
    client = client_of(address)
    sync(client, *clip)
    job = service.jobs(1)[0].id
    secret = service.result(job)
    with httpx.Client(base_url=address, trust_env=False) as plain:
        for path in ("/etc/passwd", secret, f"{secret.parent}/../{job}/{secret.name}", "http://127.0.0.1:1/x", "."):
            assert plain.get(f"/gradio_api/file={path}").status_code == 403, path
        for path in (
            f"/v1/jobs/{job}/result",
            f"/v1/jobs/{job}/source",
            f"/v1/jobs/{'0' * 32}/result",
            "/v1/jobs/../x",
        ):
            assert plain.get(path).status_code == 404, path
        assert plain.get("/v1/jobs").status_code == plain.get("/docs").status_code == 404


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/etc/hostname", "../../../etc/hostname", "http://127.0.0.1:1/x.mp4"])
def test_paths_in_place_of_uploads(page: tuple[str, Service], path: str, stream: bool) -> None:
    video = {"path": path, "is_stream": stream, "meta": {"_type": "gradio.FileData"}}
    with httpx.Client(base_url=f"{page[0]}/gradio_api/call/sync", trust_env=False) as plain:
        asked = plain.post("", json={"data": [video, video, "fast", "largest", {}]}).json()["event_id"]
        answer = plain.get(f"/{asked}").text
    assert "event: error" in answer
    assert "readable" not in answer


def test_other_browsers_get_nothing(page: tuple[str, Service], clip: tuple[Path, Path]) -> None:
    from latentsync_trt.web import jobs

    address, service = page
    with httpx.Client(base_url=address, trust_env=False) as first, httpx.Client(base_url=address) as second:
        for each in (first, second):
            assert "default-src 'self'" in each.get("/").headers["content-security-policy"]
        job = jobs.submit(service, *map(str, clip), {"report": True}, browser=dict(first.cookies).popitem()[1])
        until(lambda: service.job(job.id).state == "done")
        assert first.get(f"/v1/jobs/{job.id}/result").content == RESULT
        assert first.get(f"/v1/jobs/{job.id}/source").content == clip[0].read_bytes()
        assert first.get(f"/v1/jobs/{job.id}/report").headers["content-security-policy"] == "sandbox"
        assert {second.get(f"/v1/jobs/{job.id}/{part}").status_code for part in ("result", "source", "report")} == {404}


@pytest.mark.integration
def test_the_search_for_people(page: tuple[str, Service], clip: tuple[Path, Path], tmp_path: Path) -> None:
    from latentsync_trt.web import jobs
    from latentsync_trt.web.people import People, Searches

    service, video = page[1], str(clip[0])
    searches = Searches(LIMITS)
    left = searches.find("a browser", video)
    assert next(left) is not None
    found = list(searches.find("a browser", video))[-1]
    assert not [each for each in left if isinstance(each, People)]  # the second search ended it
    assert isinstance(found, People)
    assert [(picture.shape, round(seen_s, 1)) for picture, seen_s in found.portraits] == [((160, 160, 3), 1.0)]
    for people, sent in ((found, True), (replace(found, video="another.mp4"), False)):
        job = jobs.submit(service, video, str(clip[1]), {}, people=people)
        assert (service._ledger.row(job.id).task.options.faces is not None) is sent
    with pytest.raises(InputError, match="video: lasts longer than 2 s"):
        list(searches.find("a browser", str(write_face(tmp_path / "long.mp4", 55))))
    searches.close()


@pytest.mark.parametrize("headers", [{"Host": "attacker.example"}, {"Origin": "http://attacker.example"}])
def test_other_sites_are_refused(page: tuple[str, Service], headers: dict[str, str]) -> None:
    assert httpx.get(f"{page[0]}/config", headers=headers, trust_env=False).status_code == 403


def test_key(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    worker = PretendedWorker()
    worker.go.set()
    with shown(tmp_path, worker, KEY) as (address, _):
        assert httpx.get(f"{address}/config", trust_env=False).status_code == 401
        assert httpx.post(f"{address}/gradio_api/upload", files={"files": b"x"}, trust_env=False).status_code == 401
        assert Path(sync(client_of(address, auth=("user", KEY)), *clip)[0]).read_bytes() == RESULT


def test_a_client_that_cancels(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    from gradio_client import handle_file

    with shown(tmp_path, PretendedWorker()) as (address, service):
        job = client_of(address).submit(*map(handle_file, clip), "fast", "largest", {}, api_name="/sync")
        until(lambda: bool(service.jobs(1)) and service.jobs(1)[0].done > 0)
        job.cancel()
        until(lambda: service.jobs(1)[0].state == "cancelled")


def test_every_option_has_a_control() -> None:
    import gradio as gr

    from latentsync_trt.web import options

    async def made() -> dict[str, Any]:
        with gr.Blocks(analytics_enabled=False):
            return {**options.shown_controls(), **options.folded_controls()}

    controls = asyncio.run(made())
    names = {spec.name for spec in fields(SyncOptions)}
    assert names - controls.keys() == {"preset", "faces", "resume", "speaker", "turns"}
    untouched = {name: control.value for name, control in controls.items()}
    assert options.changed(untouched) == ({}, {})
    given = {**untouched, "crf": "20", "mark": False, "report": True, "mix": "a.wav", "codec": "hevc"}
    assert options.changed(given) == (
        {"crf": "20", "mark": False, "report": True, "codec": "hevc"},
        {"mix": Path("a.wav")},
    )
    assert controls["codec"].choices[1][0] == "h264"
    assert controls["guidance"].info.startswith("Classifier-free guidance scale")


def test_the_command(tmp_path: Path) -> None:
    words = ["ui", "--bundle", "demo", "--provider", "cpu", "--folder", str(tmp_path)]
    for extra in ("--share",), ("--host", "0.0.0.0"):
        refused = CliRunner().invoke(main, [*words, *extra], env={"LATENTSYNC_TRT_API_KEY": None})
        assert refused.exit_code == 2
        assert f"{' '.join(extra)}: other machines reach it; set $LATENTSYNC_TRT_API_KEY" in refused.output
    with listen("127.0.0.1", 0) as taken:
        refused = CliRunner().invoke(main, [*words, "--port", str(taken.getsockname()[1])])
    assert refused.exit_code == 2
    assert "cannot be used (Address already in use" in refused.output
    assert not list(tmp_path.iterdir())
