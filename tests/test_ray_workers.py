"""Workers on a Ray cluster of this machine, and clips on an S3 server: what is lost runs again."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

import psutil
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch import ray_workers as module
from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.tasks import (
    Canceled,
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    Task,
    TaskError,
    WorkerSettings,
)
from latentsync_trt.batch.workers import make_workers, plan
from latentsync_trt.errors import InputError
from tests.clips import decoded, write_clip
from tests.s3 import BUCKET, s3_server
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES, LONG_FRAMES = 8, 96  # lips of the long clip take seconds: progress is asked for every half second
FAST = SyncOptions(preset="fast")
ON_CPU = WorkerSettings(f"s3://{BUCKET}/bundles/demo", "cpu", threads=1)
NODE = {"num_cpus": 2, "object_store_memory": 80_000_000}


@dataclass
class Place:
    """A cluster whose first node takes no workers, an S3 server, and clips there."""

    cluster: Any
    s3: Any
    folder: Path

    def task(self, name: str, clip: str = "short") -> Task:
        url = f"s3://{BUCKET}"
        return Task(name, f"{url}/in/{clip}.mp4", f"{url}/in/{clip}.wav", f"{url}/{name}/out.mp4", FAST)

    def frames_of(self, name: str) -> int:
        """Frames of the output, which must be the only object of its task."""
        assert [key.rpartition("/")[2] for key in self.s3.ls(f"{BUCKET}/{name}", refresh=True)] == ["out.mp4"]
        self.s3.get_file(f"{BUCKET}/{name}/out.mp4", str(self.folder / f"{name}.mp4"))
        return len(decoded(self.folder / f"{name}.mp4"))

    def workers(self, count: int, **options: Any) -> list[WorkerHandle]:
        return make_workers(ON_CPU, count, ray=self.cluster.address, **options)


# Without a cluster


def test_without_a_cluster_the_cure_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for address in (f"ray://127.0.0.1:{taken.getsockname()[1]}", "nonsense"):
            with pytest.raises(InputError, match=rf"--ray {address}: no Ray cluster .*ray start --head"):
                make_workers(ON_CPU, ray=address)


CPUS_4, CPUS_8, GPUS_4 = {"CPU": 4.0}, {"CPU": 8.0}, {"CPU": 64.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("nodes", "provider", "expected"),
    [
        ([CPUS_4, CPUS_8, {}], "auto", (2, 0, 4)),
        ([CPUS_4, GPUS_4, GPUS_4], "auto", (8, 1, 8)),
        ([CPUS_4], "cuda", (1, 1, 1)),  # an autoscaler may add a node
        ([GPUS_4] * 9, "auto", (20, 1, 8)),
    ],
)
def test_what_workers_ask_for(nodes: list[dict[str, float]], provider: str, expected: tuple[int, int, int]) -> None:
    assert plan(nodes, provider, None, 20) == expected


# With a cluster


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("clips")
    with s3_server() as s3:
        s3.put(f"{small_bundle()}/", f"{BUCKET}/bundles/demo/", recursive=True)
        for name, frames in (("short", FRAMES), ("long", LONG_FRAMES)):
            (folder / name).mkdir()
            for path in write_clip(folder / name, frames):
                s3.put_file(str(path), f"{BUCKET}/in/{name}{path.suffix}")
        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
        cluster.add_node(**NODE)
        yield Place(cluster, s3, folder)
        ray.shutdown()
        cluster.shutdown()


def test_clips_on_s3_through_two_actors_of_which_one_is_killed(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    before, workers, events = signal.getsignal(signal.SIGTERM), place.workers(2), list[Event]()
    assert signal.getsignal(signal.SIGTERM) is before
    pids = dict[str, int]()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Moved) and event.task_id == "a" and not pids:
            pids.update((worker.name, worker.pid or 0) for worker in workers)
            psutil.Process(pids[event.worker]).kill()

    with closing(Dispatcher(workers, on_event)) as dispatcher:
        for task in (place.task("a"), place.task("b")):
            dispatcher.submit(task)
        dispatcher.wait()
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.task_id, failed.again, "\n" in failed.message) == ("a", True, False)
    assert failed.message.startswith(f"{failed.worker}: node {socket.gethostname()}: The actor ")
    assert sorted(event.task_id for event in events if isinstance(event, Finished)) == ["a", "b"]
    assert [place.frames_of(name) for name in "ab"] == [FRAMES, FRAMES]
    assert {event.worker for event in events if isinstance(event, Started)} == {"ray 0", "ray 1"}
    assert capfd.readouterr().out == ""  # it may be JSON


def test_a_version_that_differs_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__version__", "9.9")
    (other,) = place.workers(1)
    where = rf"node {socket.gethostname()}: has latentsync-trt \d\.\d\.\d, and this machine 9\.9; install the same"
    with pytest.raises(InputError, match=where):
        other.start()
    other.close()


def test_a_canceled_clip_leaves_nothing_and_its_worker_continues(place: Place, tmp_path: Path) -> None:
    (worker,) = make_workers(replace(ON_CPU, bundle="demo"), 1, ray=place.cluster.address)
    worker.start()
    video, audio = (place.folder / "short" / name for name in ("face.mp4", "speech.wav"))
    task = Task("one", str(video), str(audio), str(tmp_path / "out.mp4"), FAST)
    canceled = threading.Event()
    with pytest.raises(Canceled):
        worker.run(task, lambda _: canceled.set(), canceled)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TaskError, match=rf"node {socket.gethostname()}: .*no.mp4: no such file"):
        worker.run(replace(task, video=str(tmp_path / "no.mp4")), lambda _: None, threading.Event())
    worker.close()


def test_a_worker_that_waits_for_resources_says_which_and_can_be_closed(place: Place) -> None:
    notices = Queue[str]()
    on_gpu = replace(ON_CPU, provider="cuda")
    workers = make_workers(on_gpu, 1, ray=place.cluster.address, on_notice=notices.put)
    with closing(Dispatcher(workers, lambda _: None)) as dispatcher:
        dispatcher.submit(place.task("never"))
        assert "wait for a GPU and 1 CPU cores" in notices.get(timeout=300)
    assert notices.empty()


def command(address: str, jobs: Path, *options: str) -> "subprocess.Popen[str]":
    """`latentsync-trt batch --ray`, as a process of its own."""
    words = [str(jobs), "--ray", address, "--bundle", "demo", "--provider", "cpu", "--preset", "fast", "--json"]
    program = [sys.executable, "-m", "latentsync_trt", "batch", *words, *options]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_driver_loses_no_row_and_runs_none_twice(place: Place, tmp_path: Path) -> None:
    names = ["d1", "d2", "d3", "d4"]
    tasks, jobs = [place.task(name, "long") for name in names], tmp_path / "jobs.jsonl"
    rows = [{"video": task.video, "audio": task.audio, "output": task.output} for task in tasks]
    jobs.write_text("\n".join(map(json.dumps, rows)))
    first = command(place.cluster.address, jobs)
    assert first.stdout is not None
    wanted = ["Finished", "Moved"]  # one is done, and another one runs
    while wanted:
        event = json.loads(first.stdout.readline())
        if event.get("event") == wanted[0] and event.get("progress", {"done": 1})["done"]:
            wanted.pop(0)
    first.kill()
    first.communicate()
    done_before = [name for name in names if place.s3.exists(f"{BUCKET}/{name}/out.mp4")]
    written = {name: place.s3.info(f"{BUCKET}/{name}/out.mp4", refresh=True)["LastModified"] for name in done_before}
    assert 1 <= len(done_before) < 4
    second = command(place.cluster.address, jobs)
    out, err = second.communicate(timeout=300)
    assert (err, second.returncode) == ("", 0)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events].count("Started") == 4 - len(done_before)
    assert (events[-1]["done"], events[-1]["done_before"]) == (4 - len(done_before), len(done_before))
    assert [place.frames_of(name) for name in names] == [LONG_FRAMES] * 4
    for name, time_before in written.items():
        assert place.s3.info(f"{BUCKET}/{name}/out.mp4", refresh=True)["LastModified"] == time_before
