"""A service over real HTTP on this machine, with workers that only pretend."""

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn
from starlette.applications import Starlette

from latentsync_trt.batch.tasks import Task, TaskError, WorkerLost
from latentsync_trt.child_main import CallCanceled
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.app import create_app
from latentsync_trt.serve.checks import Pool
from latentsync_trt.serve.server import SETTINGS, listen
from latentsync_trt.serve.service import Service
from latentsync_trt.types import Progress

PATIENCE_S = 240.0
FRAMES = 20
RESULT = bytes(range(256)) * 40


class PretendedWorker:
    """Writes `RESULT`; holds each task at half its frames until `go` is set."""

    def __init__(self) -> None:
        self.name = "pretended"
        self.hangs = False
        self.provider = "cpu"
        self.at_once = 1
        self.go = threading.Event()
        self.tasks: list[Task] = []
        self.run_error: TaskError | None = None
        self.deaf = False
        self.quality = None
        """Whether it goes on when it is canceled, and the measures that its reports have."""
        self.played: dict[str, Any] = {}
        """What its reports say of the times of the result, and all else that they shall have."""
        self._closed = False

    def start(self) -> None:
        """Nothing is to be opened."""

    def run(
        self, task: Task, on_progress: Callable[[Progress], None], canceled: threading.Event
    ) -> dict[str, Any]:
        self.tasks.append(task)
        for stage, done in (("finding faces", FRAMES), ("reading audio", 0)):
            on_progress(Progress(stage, done, FRAMES))
        for done in range(1, FRAMES + 1):
            on_progress(Progress("lip-sync", done, FRAMES, frames_per_s=0.5))
            while done == FRAMES // 2 and not self.go.wait(0.01):
                if self._closed:
                    raise WorkerLost("closed")
                if canceled.is_set() and not self.deaf:
                    raise CallCanceled("canceled")
        if self.run_error is not None:
            raise self.run_error
        Path(task.output).write_bytes(RESULT)
        if task.options.report is not None:
            Path(task.options.report).write_text("<p>page</p>")
        times = {"wall_s": 3.0, "opened_s": 1.0, "frames_per_s": 10.0}
        times |= self.played
        return {
            "output": task.output,
            "frames": FRAMES,
            "windows": 2,
            "quality": self.quality,
            **times,
        }

    def close(self) -> None:
        self._closed = True


class KeptPool(Pool):
    """Stays open for the next service, as each child takes half a second to start."""

    def close(self) -> None:
        """Its children end with the tests."""


CHECKS = KeptPool("check of the files", 1, 1.5e9, 120.0)
atexit.register(Pool.close, CHECKS)


@contextmanager
def serving(
    folder: Path,
    worker: PretendedWorker,
    key: str | None = None,
    stall_s: float = 60.0,
    checks: Pool | None = CHECKS,
    **limits: Any,
) -> Iterator[tuple[httpx.Client, Service]]:
    """A client, without a key, and the service; with None, it has `checks` of its own."""
    service = Service(folder, [worker], Limits(**limits), checks)
    try:
        with (
            answering(create_app(service, key, own_hosts=True, stall_s=stall_s)) as address,
            httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as client,
        ):
            yield client, service
    finally:
        service.close()


@contextmanager
def answering(app: Starlette) -> Iterator[str]:
    """The address at which an application answers until the block ends."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, **SETTINGS))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def upload_of(video: Path, audio: Path) -> dict[str, tuple[str, bytes]]:
    """The files of a form."""
    return {"video": (video.name, video.read_bytes()), "audio": (audio.name, audio.read_bytes())}


def until(condition: Callable[[], Any]) -> Any:
    """Waits for a true value of `condition()`, and returns it."""
    end_s = time.monotonic() + PATIENCE_S
    pause_s = 0.01
    while not (value := condition()):
        assert time.monotonic() < end_s
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.2)
    return value


def ended(client: httpx.Client, job_id: str) -> dict[str, Any]:
    """The job, when it has ended."""

    def state() -> dict[str, Any] | None:
        job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        if job["state"] not in ("waiting", "running"):
            return job
        return None

    found: dict[str, Any] = until(state)
    return found


def kill_new_children(count: int, known: set[int]) -> None:
    """Kills children of this process that are not `known` one after the other, as soon as they
    appear.
    """
    while count:
        for child in [each for each in psutil.Process().children() if each.pid not in known]:
            child.kill()
            known.add(child.pid)
            count -= 1
        time.sleep(0.005)
