"""A hub of models on this machine: the part of the Hugging Face hub's protocol that a download
needs.
"""

import hashlib
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from latentsync_trt.export.published import LATENTSYNC, VAE

_ADDRESS = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.*)")


class Hub(ThreadingHTTPServer):
    """`files`: repository → name → content. What a test may change:

    `cut_at`: the number of bytes of a file after which a response ends, once for each number.
    `status`: what every request is answered with, if not 0.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.cut_at: list[int] = []
        self.status = 0
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers, in order."""

    @property
    def url(self) -> str:
        """For $HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"

    def gets(self, name: str) -> list[str]:
        """The `Range` of every request for the content of a file, "" where there is none."""
        asked = (
            headers
            for method, path, headers in self.requests
            if method == "GET" and path.endswith(name)
        )
        return [headers.get("range", "") for headers in asked]


@contextmanager
def hub(files: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """A running hub, which $HF_ENDPOINT seems to name, and whose files are those that are
    pinned.
    """
    with Hub(files) as server, at_endpoint(server.url) as patch:
        for repository in (*LATENTSYNC.values(), VAE):
            for name, content in files.get(repository.name, {}).items():
                patch.setitem(repository.files, name, hashlib.sha256(content).hexdigest())
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def at_endpoint(url: str) -> Iterator[pytest.MonkeyPatch]:
    """As $HF_ENDPOINT, which is read when the hub's library is imported. Chunks are small, as its
    retries are quick.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_TOKEN", raising=False)
        patch.setattr(constants, "ENDPOINT", url)
        patch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
        # between its retries
        patch.setattr(_http, "time", SimpleNamespace(**vars(time) | {"sleep": lambda _: None}))
        yield patch


@contextmanager
def no_hub() -> Iterator[None]:
    """An endpoint at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with at_endpoint(url):
        yield


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub = self.server
        path = self.path.partition("?")[0]
        hub.requests.append(
            (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        found = _ADDRESS.fullmatch(path)
        if hub.status or found is None:
            self._answer(hub.status or 404, {}, b"")
            return
        name, revision, file = found.groups()
        content = hub.files[name][file]
        start = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") : -1])
        facts = {"X-Repo-Commit": revision, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        if start:
            part = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        else:
            part = {}
        cut = hub.cut_at.pop(0) - start if hub.cut_at and self.command == "GET" else None
        self._answer(206 if start else 200, facts | part, content[start:], cut)

    do_HEAD = do_GET  # noqa: N815

    def _answer(
        self, status: int, headers: Mapping[str, str], body: bytes, end: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:end])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
