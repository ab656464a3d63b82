"""Files by path and URL: a real S3 server and a real HTTP server, both on loopback."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from latentsync_trt.batch import remote_files
from latentsync_trt.batch.worker import fetch_bundle
from latentsync_trt.errors import BundleError, MediaError, OutputError
from tests.bundles import make_bundle
from tests.s3 import BUCKET, s3_server
from tests.serving import until

pytestmark = pytest.mark.integration

CONTENT = bytes(range(256)) * 400
REFUSAL = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
SECRET = "X-Signature=geheim"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A file system of an S3 server; its address is in the environment."""
    with s3_server() as system:
        yield system


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT in ways that the path names."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        what = self.path.partition("?")[0].rpartition("/")[2].partition(".")[0]
        status = {"missing": 404, "forbidden": 403}.get(what, 200)
        content = CONTENT if status == 200 else REFUSAL
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut = what == "cut"
        self.wfile.write(content[: 1000 if cut else None])
        self.close_connection = cut or self.command == "PUT"

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Nothing on the console."""


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients may leave early
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file to deliver."""
    path = tmp_path / "made" / "made.mp4"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


# Names


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/..%2F..%2Fetc", "_.._etc"),
        ("s3://bucket/" + "ä" * 300 + ".mp4", "ä" * 56 + ".mp4"),
    ],
)
def test_names_of_fetched_files(url: str, name: str) -> None:
    assert remote_files.url_file_name(url) == name


# S3


def test_s3_there_and_back(s3: Any, made: Path, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/there/clip.mp4"
    assert not remote_files.exists(url)
    remote_files.deliver(made, url)
    assert remote_files.exists(url)
    fetched = remote_files.fetch(url, tmp_path)
    assert (fetched, fetched.read_bytes()) == (tmp_path / "clip.mp4", CONTENT)
    made.write_bytes(CONTENT[::-1])
    remote_files.deliver(made, url)
    assert s3.cat(f"{BUCKET}/there/clip.mp4") == CONTENT[::-1]
    assert s3.ls(f"{BUCKET}/there", refresh=True) == [f"{BUCKET}/there/clip.mp4"]


def test_s3_that_refuses(
    s3: Any, http: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": http})
    denied = r"\(PermissionError Access Denied\); check address, credentials"
    with pytest.raises(OutputError, match=rf"^s3://b/forbidden.mp4: .*written {denied}"):
        remote_files.deliver(made, "s3://b/forbidden.mp4")
    with pytest.raises(MediaError, match=rf"^s3://b/forbidden.mp4: .*read {denied}"):
        remote_files.fetch("s3://b/forbidden.mp4", tmp_path)


LARGE_BYTES = 110 * 2**20
"""Uploaded in three parts."""


UPLOAD = (
    "import sys; from latentsync_trt.batch.remote_files "
    "import *; deliver(Path(sys.argv[1]), sys.argv[2])"
)


def test_an_upload_that_is_killed_leaves_no_object(s3: Any, made: Path) -> None:
    os.truncate(made, LARGE_BYTES)
    url = f"s3://{BUCKET}/killed/large.mkv"
    with subprocess.Popen([sys.executable, "-c", UPLOAD, str(made), url]) as child:
        until(lambda: uploads(s3))
        child.kill()
    assert not remote_files.exists(url)
    for upload in uploads(s3):
        s3.call_s3(
            "abort_multipart_upload", Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"]
        )


def uploads(s3: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = s3.call_s3("list_multipart_uploads", Bucket=BUCKET).get(
        "Uploads", []
    )
    return found


# HTTP


def test_http_is_read(http: str, tmp_path: Path) -> None:
    url = f"{http}/clips/a%20clip.mp4?{SECRET}"
    fetched = remote_files.fetch(url, tmp_path)
    assert (fetched.name, fetched.read_bytes()) == ("a clip.mp4", CONTENT)
    assert (remote_files.exists(url), remote_files.exists(f"{http}/missing.mp4")) == (True, False)


@pytest.mark.parametrize("name", ["forbidden", "cut"])
def test_http_says_what_failed_without_secrets(http: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(MediaError, match=rf"^{http}/{name}.mp4: cannot be read") as caught:
        remote_files.fetch(f"{http}/{name}.mp4?{SECRET}", tmp_path)
    assert "geheim" not in str(caught.value)


# Other stores


def test_a_store_without_whole_writes_gets_a_rename(made: Path) -> None:
    memory = fsspec.filesystem("memory")
    remote_files.deliver(made, "memory://out/clip.mp4")
    assert memory.cat("/out/clip.mp4") == CONTENT
    assert memory.find("/out") == ["/out/clip.mp4"]


# Bundles


@pytest.fixture
def uploaded(s3: Any, tmp_path: Path) -> str:
    """A bundle on the S3 server: threads that read one file of fsspec's memory share its
    position.
    """
    s3.put(str(make_bundle(tmp_path / "small").folder), f"{BUCKET}/bundles/", recursive=True)
    return f"s3://{BUCKET}/bundles/small"


def test_several_workers_download_a_bundle_once(uploaded: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        folder, *others = pool.map(fetch_bundle, [uploaded] * 3, [tmp_path / "cache"] * 3)
    assert others == [folder] * 2
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in (tmp_path / "small").iterdir()
    }
    weights = next(folder.glob("*.weights"))
    weights.write_bytes(b"damaged")
    assert fetch_bundle(uploaded, tmp_path / "cache") == folder
    assert weights.stat().st_size > 100
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == [folder]


def test_a_damaged_bundle_is_refused(uploaded: str, tmp_path: Path, s3: Any) -> None:
    weights = next(name for name in s3.find(f"{BUCKET}/bundles") if name.endswith(".weights"))
    content = s3.cat(weights)
    s3.pipe(weights, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BundleError, match=rf"^{uploaded}: .* SHA-256 differs"):
        fetch_bundle(uploaded, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    with pytest.raises(MediaError, match=rf"^s3://{BUCKET}/none/manifest.json: "):
        fetch_bundle(f"s3://{BUCKET}/none", tmp_path)
