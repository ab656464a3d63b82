"""A hub of models on this machine: the part of the Hugging Face hub's protocol that a download needs."""

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from huggingface_hub import constants

from latentsync_trt.export.published import LATENTSYNC, VAE

LARGE_BYTES = 1000
"""Files from this size on are stored with Git LFS, which gives them a SHA-256, and come from another address."""

BRANCH, COMMIT = "main", "0123456789abcdef0123456789abcdef01234567"

_API = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)")


class Hub(ThreadingHTTPServer):
    """`files`: repository → name → content. What a test may change:

    `cut_at`: the number of bytes of a large file after which a response ends, once for each number; with `resets` the
    connection is reset there. `commits`: by branch, or what the mirror says instead of a commit. `status`: what every
    request is answered with, if not 0.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.commits = {BRANCH: COMMIT}
        self.cut_at: list[int] = []
        self.resets = False
        self.status = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Paths and headers, in order."""

    @property
    def url(self) -> str:
        """For $HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"

    def gets(self, name: str) -> list[str]:
        """The `Range` of every request for the content of a file, "" where there is none."""
        return [headers.get("range", "") for path, headers in self.requests if path.endswith(f"/stored/{name}")]

    def model(self, name: str, revision: str) -> dict[str, Any]:
        """The answer of the API."""
        siblings = [
            {"rfilename": file, "size": len(content)} | ({"lfs": _lfs(content)} if len(content) >= LARGE_BYTES else {})
            for file, content in self.files[name].items()
        ]
        commit = self.commits.get(revision, revision)
        return {"id": name, "sha": commit, "siblings": siblings, "cardData": {"license": "openrail++"}}


def _lfs(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}


@contextmanager
def hub(files: Mapping[str, Mapping[str, bytes]], patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running hub, which $HF_ENDPOINT seems to name, and whose files are those that are pinned."""
    for repository in (*LATENTSYNC.values(), VAE):
        for name, content in files.get(repository.name, {}).items():
            patch.setitem(repository.files, name, hashlib.sha256(content).hexdigest())
    with Hub(files) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        use_endpoint(server.url, patch)
        yield server
        server.shutdown()


def use_endpoint(url: str, patch: pytest.MonkeyPatch) -> None:
    """As $HF_ENDPOINT, which is read when the hub's library is imported."""
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        api, resolve = _API.fullmatch(self.path.partition("?")[0]), _RESOLVE.fullmatch(self.path)
        if self.server.status:
            self._answer(self.server.status, b"")
        elif api and not re.fullmatch(r"main|[0-9a-f]{40}", api[2]):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif api:
            self._answer(200, json.dumps(self.server.model(api[1], api[2])).encode())
        elif resolve and len(self.server.files[resolve[1]][resolve[3]]) >= LARGE_BYTES:
            self._answer(302, b"", {"Location": f"/{resolve[1]}/stored/{resolve[3]}"})
        elif resolve:
            self._answer(200, self.server.files[resolve[1]][resolve[3]])
        else:
            owner, name, _, file = self.path[1:].split("/", 3)
            self._send(self.server.files[f"{owner}/{name}"][file])

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._begin(status, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, content: bytes) -> None:
        """A whole file, or from where the request says; ends early at `cut_at`."""
        start = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") : -1])
        part = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._begin(206 if start else 200, {"Content-Length": str(len(content) - start), **part})
        end = self.server.cut_at.pop(0) if self.server.cut_at else len(content)
        self.wfile.write(content[start:end])
        if self.server.resets and end < len(content):
            time.sleep(0.2)  # a reset throws away what was not read yet
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
