"""Jobs of the HTTP service whose files are named by URL."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from latentsync_trt.serve import admission
from tests.clips import write_face, write_sound
from tests.serving import PretendedWorker, ended, serving

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


pytestmark = pytest.mark.integration

DRIPS = 100
"""Bytes, ten a second: until then the service must have given up."""


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder; /to/PLACE redirects to the same server at the address PLACE.

    /drip/head and /drip/body send that part byte by byte.
    """

    def do_GET(self) -> None:
        if self.path.startswith("/drip/"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: " + b"\r\n\r\n" * self.path.endswith("body"))
            with suppress(OSError):
                for _ in range(DRIPS):
                    self.wfile.write(b"a")
                    time.sleep(0.1)
                self.wfile.write(b"\r\n\r\n")
            self.close_connection = True
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", f"http://{self.path[4:]}:{self.server.server_address[1]}/face.mp4")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server of a clip, at all addresses of this machine."""
    folder = tmp_path_factory.mktemp("web")
    write_face(folder / "face.mp4", 5)
    write_sound(folder / "speech.wav", 0.2)
    (folder / "large.wav").write_bytes(bytes(3_000_000))
    with ThreadingHTTPServer(("", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def worker() -> PretendedWorker:
    made = PretendedWorker()
    made.go.set()
    return made


def test_files_by_url(tmp_path: Path, worker: PretendedWorker, port: int) -> None:
    web = f"http://127.0.0.1:{port}"
    with serving(tmp_path, worker, allow_urls=True, allow_private_urls=True, max_upload_mb=2) as (client, _):
        texts = {"video_url": f"{web}/face.mp4?token=secret", "audio_url": f"{web}/speech.wav"}
        form = {name: (None, text) for name, text in texts.items()}
        sent = client.post("/v1/jobs", files=form)
        assert sent.status_code == 201, sent.text
        assert ended(client, sent.json()["id"])["state"] == "done"
        assert [Path(worker.tasks[0].video).name, Path(worker.tasks[0].audio or "").name] == ["video.mp4", "audio.wav"]
        for name, status, problem in (("large", 413, "more than 2 MB"), ("missing", 415, "no such file")):
            refused = client.post("/v1/jobs", files=form | {"audio_url": (None, f"{web}/{name}.wav")})
            assert refused.status_code == status and problem in refused.json()["error"]
        assert "secret" not in refused.text
    assert len(list((tmp_path / "jobs").iterdir())) == 1


@pytest.mark.parametrize(("part", "words"), [("head", "TimeoutError"), ("body", "less than 10 kB/s")])
def test_addresses_that_drip_end(
    tmp_path: Path, worker: PretendedWorker, port: int, monkeypatch: pytest.MonkeyPatch, part: str, words: str
) -> None:
    monkeypatch.setattr(admission, "STALL_S", 0.5)
    with serving(tmp_path, worker, allow_urls=True, allow_private_urls=True) as (client, _):
        refused = client.post("/v1/jobs", files={"video_url": (None, f"http://127.0.0.1:{port}/drip/{part}")})
    assert refused.is_client_error and words in refused.json()["error"]
    assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/face.mp4",
        "http://localhost:{port}/face.mp4",
        "http://[::ffff:127.0.0.1]:{port}/face.mp4",
        "http://0.0.0.0:{port}/face.mp4",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "simplecache::file:///etc/passwd",
        "https://example.com/a.mp4::file:///etc/passwd",
    ],
)
def test_addresses_that_are_refused(tmp_path: Path, worker: PretendedWorker, port: int, url: str) -> None:
    with serving(tmp_path, worker, allow_urls=True) as (client, _):
        refused = client.post("/v1/jobs", files={"video_url": (None, url.format(port=port))})
    assert refused.status_code == 422, refused.text
    assert "not on the public Internet" in refused.text or "is no address that begins with" in refused.text
    assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        *((host, False) for host in ("10.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192")),
        *((host, False) for host in ("::1", "::127.0.0.1", "fe80::1%eth0", "fec0::1", "fd00:ec2::254", "ff02::1")),
        *((host, False) for host in ("::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2002:7f00:1::1")),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", False),  # Teredo of a client at 10.0.0.1
    ],
)
def test_addresses_within_addresses_count(host: str, public: bool) -> None:
    assert admission._is_public(host) == public


def test_a_redirect_leads_no_further(
    tmp_path: Path, worker: PretendedWorker, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_is_public", lambda host: host == "127.0.0.1")
    with serving(tmp_path, worker, allow_urls=True) as (client, _):
        for place, error in (("127.0.0.1", "no speech"), ("127.0.0.2", "not on the public Internet")):
            form = {"video_url": (None, f"http://127.0.0.1:{port}/to/{place}")}
            assert error in client.post("/v1/jobs", files=form).json()["error"]
