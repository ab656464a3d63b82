"""Workers on a Ray cluster of this machine, and clips on an S3 server: what is lost runs again."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

import psutil
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.ray_workers import ClusterPlan, plan_cluster
from latentsync_trt.batch.tasks import (
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    Task,
    WorkerSettings,
)
from latentsync_trt.batch.workers import make_workers
from latentsync_trt.errors import InputError
from tests.clips import decoded, write_clip
from tests.s3 import BUCKET, s3_server
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES = 20
FAST = SyncOptions(preset="fast", steps=2)
ON_CPU = WorkerSettings(f"s3://{BUCKET}/bundles/demo", "cpu", threads=1)
NODE = {"num_cpus": 2, "object_store_memory": 80_000_000}


@dataclass
class Place:
    """A cluster whose first node takes no workers, an S3 server, and clips there."""

    cluster: Any
    s3: Any
    folder: Path

    def task(self, name: str) -> Task:
        url = f"s3://{BUCKET}"
        return Task(
            name, f"{url}/in/face.mp4", f"{url}/in/speech.wav", f"{url}/{name}/out.mp4", FAST
        )

    def frames_of(self, name: str) -> int:
        """Frames of the output, which must be the only object of its task."""
        assert [key.rpartition("/")[2] for key in self.s3.ls(f"{BUCKET}/{name}", refresh=True)] == [
            "out.mp4"
        ]
        self.s3.get_file(f"{BUCKET}/{name}/out.mp4", str(self.folder / f"{name}.mp4"))
        return len(decoded(self.folder / f"{name}.mp4"))


# Without a cluster


def test_without_a_cluster_the_cure_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="ray start --head"):
            make_workers(ON_CPU, ray=address)


CPUS_4 = {"CPU": 4.0}
CPUS_8 = {"CPU": 8.0}
GPUS_4 = {"CPU": 64.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("nodes", "provider", "expected"),
    [
        ([CPUS_4, CPUS_8, {}], "auto", (2, 0, 4)),
        ([CPUS_4], "cuda", (1, 1, 1)),  # an autoscaler may add a node
        ([CPUS_4, *[GPUS_4] * 9], "auto", (20, 1, 8)),
    ],
)
def test_what_workers_ask_for(
    nodes: list[dict[str, float]], provider: str, expected: tuple[int, int, int]
) -> None:
    assert plan_cluster(nodes, provider, None, 20) == ClusterPlan(*expected)


# With a cluster


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("clips")
    with s3_server() as s3:
        s3.put(f"{small_bundle()}/", f"{BUCKET}/bundles/demo/", recursive=True)
        for path in write_clip(folder, FRAMES):
            s3.put_file(str(path), f"{BUCKET}/in/{path.name}")
        cluster = Cluster(
            initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False}
        )
        cluster.add_node(**NODE)
        yield Place(cluster, s3, folder)
        ray.shutdown()
        cluster.shutdown()


def test_of_clips_on_s3_one_loses_its_actor_one_is_canceled_and_one_fails(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    events = list[Event]()
    killed = set[str]()
    node = socket.gethostname()
    workers = make_workers(ON_CPU, 2, ray=place.cluster.address)
    assert signal.getsignal(signal.SIGTERM) is before

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Moved) and event.task_id == "lost" and not killed:
            killed.add(event.worker)
            psutil.Process(next(each.pid for each in workers if each.name == event.worker)).kill()
        elif isinstance(event, Moved) and event.task_id == "canceled":
            dispatcher.cancel("canceled")

    with closing(Dispatcher(workers, on_event)) as dispatcher:
        for name in ("lost", "canceled", "whole"):
            dispatcher.submit(place.task(name))
        dispatcher.submit(replace(place.task("fails"), video=f"s3://{BUCKET}/none.mp4"))
        dispatcher.wait()
    lost, failed = sorted(
        (each for each in events if isinstance(each, Failed)), key=lambda each: not each.again
    )
    assert (lost.task_id, lost.message.count("\n")) == ("lost", 0)
    assert lost.message.startswith(f"{lost.worker}: node {node}: The actor ")
    assert (failed.task_id, failed.usage) == ("fails", True)
    assert f"node {node}: s3://{BUCKET}/none.mp4: cannot be read" in failed.message
    assert sorted(each.task_id for each in events if isinstance(each, Finished)) == [
        "lost",
        "whole",
    ]
    assert [place.frames_of(name) for name in ("lost", "whole")] == [FRAMES] * 2
    assert not place.s3.exists(f"{BUCKET}/canceled")
    assert {each.worker for each in events if isinstance(each, Started)} == {"ray 0", "ray 1"}
    assert capfd.readouterr().out == ""  # it may be JSON


def test_a_worker_that_waits_for_resources_says_which_and_can_be_closed(place: Place) -> None:
    notices = Queue[str]()
    on_gpu = replace(ON_CPU, provider="cuda")
    workers = make_workers(on_gpu, 1, ray=place.cluster.address, on_notice=notices.put)
    with closing(Dispatcher(workers, lambda _: None)) as dispatcher:
        dispatcher.submit(place.task("never"))
        assert "a GPU and 1 CPU cores" in notices.get(timeout=300)
    assert notices.empty()


@pytest.mark.slow
def test_a_killed_driver_loses_no_row_and_runs_none_twice(place: Place, tmp_path: Path) -> None:
    names = ["d1", "d2", "d3"]
    jobs = tmp_path / "jobs.jsonl"
    tasks = [place.task(name) for name in names]
    rows = [{"video": task.video, "audio": task.audio, "output": task.output} for task in tasks]
    jobs.write_text("\n".join(map(json.dumps, rows)))
    options = [
        "--ray",
        place.cluster.address,
        "--bundle",
        ON_CPU.bundle,
        "--provider",
        "cpu",
        "--json",
    ]
    command = [sys.executable, "-m", "latentsync_trt", "batch", str(jobs), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        while json.loads(first.stdout.readline())["event"] != "Finished":
            pass
        first.kill()

    def written() -> dict[str, Any]:
        outputs = [f"{BUCKET}/{name}/out.mp4" for name in names]
        return {
            path: place.s3.info(path, refresh=True)["LastModified"]
            for path in outputs
            if place.s3.exists(path)
        }

    before = written()
    second = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (second.stderr, second.returncode) == ("", 0)
    *_, last = map(json.loads, second.stdout.splitlines())
    assert (last["done"], last["done_before"]) == (3 - len(before), len(before))
    assert [place.frames_of(name) for name in names] == [FRAMES] * 3
    assert before.items() <= written().items()
