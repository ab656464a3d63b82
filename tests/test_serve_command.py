"""The command `serve`, as a process, with a small model on the CPU."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from latentsync_trt.cli import main
from tests.clips import decoded, write_face, write_sound
from tests.serving import PATIENCE_S, ended, until, upload_of
from tests.small import small_bundle

KEY = "a-key-for-this-test"
OPTIONS = '{"preset": "fast"}'

pytestmark = pytest.mark.integration
sends_signals = pytest.mark.skipif(
    os.name == "nt", reason="Windows delivers Ctrl-C to whole process groups only"
)


class Command:
    """A running service of the command line, and a client with its key."""

    def __init__(self, folder: Path, *words: str) -> None:
        # No pipe for stdout: a child that outlives the service would keep it open.
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "latentsync_trt",
                "serve",
                "--port",
                "0",
                "--folder",
                str(folder),
                *words,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LATENTSYNC_TRT_API_KEY": KEY},
        )
        assert self.process.stderr is not None
        self.lines = [""]
        address = None
        while address is None and self.process.poll() is None:  # after log lines of jobs that go on
            self.lines.append(self.process.stderr.readline())
            address = re.match(r"(http://\S+)/docs: ", self.lines[-1])
        assert address, self.lines
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()))
        self._reader.start()
        headers = {"Authorization": f"Bearer {KEY}"}
        self.client = httpx.Client(
            base_url=address[1], headers=headers, timeout=PATIENCE_S, trust_env=False
        )

    def end(self, number: int) -> tuple[int, list[str]]:
        """Sends a signal; returns the exit code and all lines of stderr."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.client.close()
        assert not psutil.wait_procs(children, PATIENCE_S)[1]
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code, self.lines


@pytest.fixture
def started() -> Iterator[list[Command]]:
    """For commands, which are killed after the test."""
    commands: list[Command] = []
    yield commands
    for command in commands:
        if command.process.poll() is None:
            command.end(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)


def send(client: httpx.Client, folder: Path, seconds: float) -> str:
    """Submits a clip of so many seconds."""
    video = write_face(folder / "face.mp4", round(25 * seconds))
    files = upload_of(video, write_sound(folder / "speech.wav", seconds))
    job = client.post(
        "/v1/jobs", files=files, data={"options": OPTIONS, "label": "a\u202eb"}
    ).raise_for_status()
    return str(job.json()["id"])


def test_a_job_with_the_real_model(tmp_path: Path, started: list[Command]) -> None:
    command = Command(tmp_path / "service", "--bundle", str(small_bundle()), "--provider", "cpu")
    started.append(command)
    client = command.client
    until(lambda: client.get("/healthz").status_code == 200)
    job = send(client, tmp_path, 0.4)
    done = ended(client, job)
    assert (done["state"], done["report"]["frames"], done["report"]["provider"]) == (
        "done",
        10,
        "cpu",
    )
    (tmp_path / "result.mp4").write_bytes(client.get(f"/v1/jobs/{job}/result").content)
    assert len(decoded(tmp_path / "result.mp4")) == 10
    assert "latentsync_frames_total 10.0" in client.get("/metrics").text
    log = "".join(command.lines)
    assert r"label a\u202eb" in log and "\u202e" not in log


def test_a_part_is_done_again(tmp_path: Path, started: list[Command]) -> None:
    """As a new job, whose report is that of the whole; the former one keeps its result."""
    command = Command(tmp_path / "service", "--bundle", str(small_bundle()), "--provider", "cpu")
    started.append(command)
    client = command.client
    job = send(client, tmp_path, 2.4)
    before = ended(client, job)
    address = f"/v1/jobs/{job}/redo"
    for wrong, problem in (
        ({"seed": 7}, "redo: is missing"),
        ({"redo": ["1:2"], "codec": "hevc"}, "codec: cannot differ"),
        ({"redo": ["4:5"]}, "lasts 2.40 s"),
    ):
        refused = client.post(address, json=wrong)
        assert (refused.status_code, problem in refused.json()["error"]) == (422, True)
    answer = client.post(address, json={"redo": ["2.1:2.3"], "seed": 7}).raise_for_status()
    after = ended(client, answer.json()["id"])
    assert (after["state"], after["redo_of"], after["files"]) == ("done", job, before["files"])
    pictures = []
    for each in (before, after):
        assert (each["report"]["frames"], each["report"]["duration_s"]) == (60, 2.4)
        path = tmp_path / "result.mp4"
        path.write_bytes(client.get(f"/v1/jobs/{each['id']}/result").content)
        pictures.append(decoded(path))
    same = [np.array_equal(first, second) for first, second in zip(*pictures, strict=True)]
    assert all(same[:50])
    assert not all(same[50:])
    assert after["report"]["redone"] == [[2.0, 2.4]]
    assert after["report"]["painted"] == before["report"]["painted"]
    client.delete(f"/v1/jobs/{job}").raise_for_status()
    kept = {"redo": ["0.2:0.6"], "keep_source": True}
    again = client.post(f"/v1/jobs/{after['id']}/redo", json=kept).raise_for_status()
    left = ended(client, again.json()["id"])
    assert (left["state"], left["error"]) == ("done", None)
    assert len(left["report"]["painted"]) == 2


@pytest.mark.slow
@sends_signals
def test_a_service_that_was_killed_goes_on(tmp_path: Path, started: list[Command]) -> None:
    words = "--bundle", str(small_bundle()), "--provider", "cpu"
    started.append(Command(tmp_path / "service", *words))
    jobs = [send(started[0].client, tmp_path, seconds) for seconds in (3.0, 0.5)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        client = started[-1].client
        until(lambda client=client: client.get(f"/v1/jobs/{jobs[0]}").json()["done"])
        code, lines = started[-1].end(number)
        if number == signal.SIGTERM:
            stopped = "stopped; jobs that have not ended go on when it is started again\n"
            told = [line for line in lines if line and not re.search(r" job |/docs: ", line)]
            assert (code, told) == (143, ["stopping…\n", stopped])
        started.append(Command(tmp_path / "service", *words))
        assert started[-1].client.get(f"/v1/jobs/{jobs[1]}").json()["state"] == "waiting"
    for job in jobs:
        assert ended(started[-1].client, job)["state"] == "done"
        assert started[-1].client.get(f"/v1/jobs/{job}/result").status_code == 200


@pytest.mark.slow
@sends_signals
def test_on_ray(tmp_path: Path, started: list[Command]) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    words = "--bundle", str(small_bundle()), "--provider", "cpu", "--ray", cluster.address
    try:
        started.append(Command(tmp_path / "service", *words))
        client = started[0].client
        assert client.get("/v1/jobs", headers={"Authorization": "Bearer wrong"}).status_code == 401
        jobs = [send(client, tmp_path, seconds) for seconds in (3.0, 0.5)]
        until(lambda: client.get(f"/v1/jobs/{jobs[0]}").json()["done"])
        started[0].end(signal.SIGKILL)
        started.append(Command(tmp_path / "service", *words))
        for job in jobs:
            assert ended(started[1].client, job)["state"] == "done"
            assert (
                started[1]
                .client.get(f"/v1/jobs/{job}/result", headers={"Range": "bytes=0-9"})
                .status_code
                == 206
            )
        assert started[1].end(signal.SIGTERM)[0] == 143
    finally:
        cluster.shutdown()


def refused(folder: Path, *words: str, key: str = "", command: str = "serve") -> str:
    """The error of a service that does not start."""
    arguments = [command, "--bundle", "demo", "--folder", str(folder), *words]
    result = CliRunner().invoke(main, arguments, env={"LATENTSYNC_TRT_API_KEY": key})
    assert (result.exit_code, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_services_that_cannot_start(tmp_path: Path) -> None:
    for command in ("serve", "ui"):
        opened = refused(tmp_path, "--host", "0.0.0.0", command=command)
        assert "set $LATENTSYNC_TRT_API_KEY" in opened
    assert "leave --no-key out" in refused(tmp_path, "--no-key", key=KEY)
    assert "can be guessed" in refused(tmp_path, key="abcdef")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another" in refused(tmp_path, "--port", str(taken.getsockname()[1]))
    (tmp_path / "file").touch()
    assert "is a file" in refused(tmp_path / "file")
    assert not (tmp_path / "jobs").exists()
