"""Runs the nodes of integrations/comfyui in a real ComfyUI on the CPU, with the built-in bundle, clip and speech.

    python scripts/run_comfyui.py --comfyui ~/ComfyUI --python ~/ComfyUI/.venv/bin/python --out comfyui-run

The Python of ComfyUI needs this package. Prints the times, and leaves the results in the folder `--out`.
"""

import argparse
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psutil

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.cli.demo import look_at
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import SPEECH, camera_frames
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import write_pictures

NODES = Path(__file__).parents[1] / "integrations" / "comfyui"
WAIT_S = 900.0


def main() -> None:
    """Runs all steps; ends with an exception at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True, help="Checkout of ComfyUI.")
    parser.add_argument("--python", default=sys.executable, help="The Python that runs it.")
    parser.add_argument("--out", type=Path, default=Path("comfyui-run"), help="Folder of the results.")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as base, server(given.comfyui, given.python, Path(base), given.out) as comfyui:
        comfyui.run_all(given.out)


class ComfyUI:
    """The HTTP API of a running ComfyUI, and its process."""

    def __init__(self, address: str, process: psutil.Popen, base: Path) -> None:
        self._address, self._process, self._base = address, process, base

    def run_all(self, out: Path) -> None:
        """Video, again, frames, an interruption, freed memory, again."""
        clip = self._base / "input" / "clip.mp4"
        frames = sum(1 for _ in read_frames(clip))
        (out / "out.mp4").write_bytes(self.result(self.timed("video, first", "video", seed=1)))
        print("lips:", look_at(out, clip, None, demo_folder(), lambda _: None))
        self.timed("video, model kept", "video", seed=2)
        (out / "frames.mp4").write_bytes(self.result(self.timed("frames", "frames", seed=1)))
        for name in ("out.mp4", "frames.mp4"):
            found = sum(1 for _ in read_frames(out / name))
            assert found == frames, f"{name}: {found} pictures instead of {frames}"
            sound_s = float(audio_duration_s(out / name))
            assert abs(sound_s - frames / 25) < 0.1, f"{name}: {sound_s} s of sound"
        self.interrupted()
        log = out / "comfyui.log"
        assert log.read_text().count("LatentSync: opened") == 1, "the model was not kept between the runs"
        self.post("/free", {"unload_models": True})
        self.wait(lambda: "LatentSync: closed" in log.read_text(), "the model is closed")
        self.timed("video, opened again", "video", seed=4)

    def interrupted(self) -> None:
        """Interrupts a run as soon as it writes, and looks for what it leaves behind."""
        temp = self._base / "temp"
        before = set(temp.rglob("*latentsync*"))
        prompt = self.queue("video", 3)
        self.wait(lambda: set(temp.glob(".latentsync-latentsync-*")), "the run begins")
        start_s = time.perf_counter()
        self.post("/interrupt", {})
        status = self.history(prompt)["status"]
        print(f"interrupted: after {time.perf_counter() - start_s:.1f} s")
        assert status["messages"][-1][0] == "execution_interrupted", status
        left = set(temp.rglob("*latentsync*")) - before
        assert not left, f"left behind: {left}"

    def timed(self, what: str, workflow: str, seed: int) -> dict[str, Any]:
        """The history of a workflow that is run to its end; prints its time."""
        start_s, cpu_s = time.perf_counter(), self.cpu_s
        history = self.history(self.queue(workflow, seed))
        event, details = history["status"]["messages"][-1]
        assert event == "execution_success", details.get("exception_message", event)
        print(f"{what}: {time.perf_counter() - start_s:.1f} s, of the CPU {self.cpu_s - cpu_s:.1f} s")
        return history

    @property
    def cpu_s(self) -> float:
        """CPU time of ComfyUI so far."""
        return float(sum(self._process.cpu_times()[:2]))

    def queue(self, workflow: str, seed: int) -> str:
        """Queues a workflow; returns its number."""
        prompt = json.loads((NODES / "api_workflows" / f"{workflow}.json").read_text(encoding="utf-8"))
        prompt["5"]["inputs"]["seed"] = seed
        return str(json.loads(self.post("/prompt", {"prompt": prompt}))["prompt_id"])

    def history(self, prompt: str) -> dict[str, Any]:
        """How a workflow ended."""
        path = f"/history/{prompt}"
        self.wait(lambda: prompt in json.loads(self.get(path)), "the workflow ends")
        return dict(json.loads(self.get(path))[prompt])

    def result(self, history: dict[str, Any]) -> bytes:
        """The saved video of a workflow."""
        saved = next(one for node in history["outputs"].values() for one in node["images"] if one["type"] == "output")
        return self.get(f"/view?{urlencode(saved)}")

    def get(self, path: str) -> bytes:
        return bytes(urlopen(self._address + path, timeout=WAIT_S).read())

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        request = Request(self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return bytes(urlopen(request, timeout=WAIT_S).read())

    def wait(self, is_done: Callable[[], Any], what: str) -> None:
        """Waits until `is_done`."""
        end_s = time.perf_counter() + WAIT_S
        while not is_done():
            assert self._process.poll() is None, "ComfyUI has ended; see comfyui.log"
            assert time.perf_counter() < end_s, f"waited {WAIT_S:g} s until {what}; see comfyui.log"
            time.sleep(0.1)


@contextmanager
def server(checkout: Path, python: str, base: Path, out: Path) -> Iterator[ComfyUI]:
    """ComfyUI with our nodes in a folder of its own, and the built-in clip and speech as its inputs."""
    for name in ("models", "input", "user"):
        (base / name).mkdir()
    shutil.copytree(NODES, base / "custom_nodes" / "latentsync-trt")
    write_pictures(base / "input" / "clip.mp4", camera_frames(audio_duration_s(SPEECH)))
    shutil.copy(SPEECH, base / "input" / "speech.flac")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "main.py", *f"--cpu --disable-api-nodes --listen 127.0.0.1 --port {port}".split()]
    command += ["--base-directory", str(base), "--database-url", f"sqlite:///{base / 'comfyui.db'}"]
    start_s = time.perf_counter()
    with (out / "comfyui.log").open("wb") as log:
        process = psutil.Popen(command, cwd=checkout, stdout=log, stderr=log)
        comfyui = ComfyUI(f"http://127.0.0.1:{port}", process, base)
        try:
            comfyui.wait(lambda: b"To see the GUI" in (out / "comfyui.log").read_bytes(), "ComfyUI is ready")
            print(f"ComfyUI: ready after {time.perf_counter() - start_s:.1f} s")
            yield comfyui
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
