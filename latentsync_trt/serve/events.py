"""What operators and clients are told of jobs: their status, log lines, and calls of an address (webhooks)."""

import asyncio
import hmac
import json
import logging
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

from latentsync_trt.batch.job_store import State
from latentsync_trt.batch.remote_files import shown
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.paths import PrintableLines
from latentsync_trt.serve.admission import public_socket

WEBHOOK_VARIABLE = "LATENTSYNC_TRT_WEBHOOK_SECRET"
_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)
"""Of a secret, as Standard Webhooks have it."""

DELAYS_S = 0.0, 5.0, 60.0, 600.0, 3600.0, 6 * 3600.0
"""Before each attempt, after the one before."""
_ANSWER_S = 15.0
_GONE = 410

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The body of answers about a job.

    `label`, `files`: the client's names for the job, and for its files by field. `position`: in the queue, 1 = next.
    `done` of `total` frames (None = unknown) have passed `stage`.
    `frames_per_s`: while it runs, or of the whole run. Times are seconds since 1970. `report`: that of the run.
    """

    id: str
    state: State
    label: str
    files: dict[str, str]
    created_s: float
    started_s: float | None
    ended_s: float | None
    attempts: int
    position: int | None
    worker: str | None
    stage: str | None
    done: int
    total: int | None
    frames_per_s: float | None
    seconds_left: float | None
    error: str | None
    report: dict[str, Any] | None


def log_step(job_id: str, step: str, **facts: object) -> None:
    """Logs that a job has come to a step; `facts` as words, and as fields of JSON."""
    known = {name: value for name, value in facts.items() if value not in (None, "", {})}
    said = "".join(f", {name} {' '.join(str(value).split())}" for name, value in known.items())
    _log.info("job %s: %s%s", job_id, step, said, extra={"fields": {"job": job_id, "step": step, **known}})


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The record as an object on one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat()
        content = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content | getattr(record, "fields", {}), default=str)


def log_to_stderr(form: Literal["text", "json"]) -> None:
    """Makes this process log steps of jobs, and warnings of all libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if form == "json" else PrintableLines("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("latentsync_trt").setLevel(logging.INFO)


def read_secret(text: str) -> bytes:
    """The key of signatures; raises `InputError` unless `text` is whsec_ and 24 to 64 bytes in base64."""
    with suppress(ValueError):
        secret = b64decode(text.removeprefix(_PREFIX), validate=True)
        if text.startswith(_PREFIX) and len(secret) in _SECRET_BYTES:
            return secret
    cure = 'echo "whsec_$(openssl rand -base64 32)" makes one'
    raise InputError(f"${WEBHOOK_VARIABLE}: is not {_PREFIX} and 24 to 64 bytes in base64; {cure}")


def headers_of(secret: bytes, message_id: str, body: bytes, at_s: int) -> dict[str, str]:
    """What proves sender and time of a message: https://www.standardwebhooks.com."""
    digest = hmac.digest(secret, f"{message_id}.{at_s}.".encode() + body, sha256)
    signature = f"v1,{b64encode(digest).decode()}"
    signed = {"webhook-id": message_id, "webhook-timestamp": str(at_s), "webhook-signature": signature}
    return {"content-type": "application/json", **signed}


class Webhooks:
    """Calls addresses, in a thread of its own, until they answer with 2xx or all `DELAYS_S` have passed.

    Args:
        private: whether addresses may be in the service's own network.
    """

    def __init__(self, secret: bytes, *, private: bool) -> None:
        self._secret, self._private = secret, private
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="webhooks", daemon=True).start()

    def close(self) -> None:
        """Stops; what was not delivered is the next service's."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)

    async def _stop(self) -> None:
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        self._loop.stop()

    def send(self, job: JobStatus, url: str, on_end: Callable[[], None]) -> None:
        """Tells the end of a job, whose id is the message's; `on_end`: called when that has worked, or is given up."""
        content = {"type": f"job.{job.state}", "timestamp": datetime.now(UTC).isoformat(), "data": asdict(job)}
        asyncio.run_coroutine_threadsafe(self._deliver(job.id, url, json.dumps(content).encode(), on_end), self._loop)

    async def _deliver(self, job_id: str, url: str, body: bytes, on_end: Callable[[], None]) -> None:
        for attempt, delay_s in enumerate(DELAYS_S, 1):
            await asyncio.sleep(delay_s)
            problem, final = await self._post(job_id, url, body)
            log_step(job_id, "webhook failed" if problem else "webhook sent", attempt=attempt, reason=problem)
            if final:
                break
        on_end()

    async def _post(self, job_id: str, url: str, body: bytes) -> tuple[str, bool]:
        """Why the address was not reached, empty if it was, and whether it needs no other attempt."""
        import aiohttp

        connector = aiohttp.TCPConnector(socket_factory=None if self._private else public_socket)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        headers = headers_of(self._secret, job_id, body, int(time.time()))
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                worked = 200 <= answer.status < 300
                return "" if worked else f"answered {answer.status}", worked or answer.status == _GONE
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LatentSyncError) as error:
            return shown(str(error)) or type(error).__name__, isinstance(error, LatentSyncError)
