"""Runs the nodes of integrations/comfyui in a real ComfyUI on the CPU, with the built-in bundle,
clip and speech.

    python scripts/run_comfyui.py --comfyui ~/ComfyUI --python ~/ComfyUI/.venv/bin/python --out
    comfyui-run

The Python of ComfyUI needs this package. Prints the times, and leaves the results in the folder
`--out`.
"""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import read_manifest
from latentsync_trt.measure.demo_pictures import write_demo_pictures
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import SPEECH, SpokenClip, camera_frames
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import write_pictures

NODES = Path(__file__).parents[1] / "integrations" / "comfyui"
WAIT_S = 900.0


def main() -> None:
    """Runs all steps; ends with an exception at the first that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comfyui", type=Path, required=True, help="Checkout of ComfyUI.")
    parser.add_argument("--python", default=sys.executable, help="The Python that runs it.")
    parser.add_argument(
        "--out", type=Path, default=Path("comfyui-run"), help="Folder of the results."
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as base:
        comfyui = ComfyUI(arguments.comfyui, arguments.python, Path(base), arguments.out)
        try:
            comfyui.run_all()
        finally:
            comfyui.process.terminate()
            comfyui.process.wait()


class ComfyUI:
    """A ComfyUI with our nodes in the folder `base`, and the built-in clip and speech as its
    inputs.
    """

    def __init__(self, checkout: Path, python: str, base: Path, out: Path) -> None:
        for name in ("models", "input", "user"):
            (base / name).mkdir()
        shutil.copytree(NODES, base / "custom_nodes" / "latentsync-trt")
        self._clip = base / "input" / "clip.mp4"
        write_pictures(self._clip, camera_frames(audio_duration_s(SPEECH)))
        shutil.copy(SPEECH, base / "input" / "speech.flac")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            python,
            "main.py",
            *f"--cpu --disable-api-nodes --listen 127.0.0.1 --port {port}".split(),
        ]
        command += [
            "--base-directory",
            str(base),
            "--database-url",
            f"sqlite:///{base / 'comfyui.db'}",
        ]
        self._address = f"http://127.0.0.1:{port}"
        self._base = base
        self._out = out
        self._log = out / "comfyui.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=log)

    def run_all(self) -> None:
        """Video, again, frames, an interruption, other settings, freed memory, again."""
        self.wait(lambda: self.logged("To see the GUI"), "ComfyUI is ready")
        self.check("out.mp4", self.run("video, first", "video", seed=1))
        clip = SpokenClip(self._clip, SPEECH, self._clip.name)
        resolution_px = read_manifest(demo_folder()).resolution_px
        lips = write_demo_pictures(self._out / "out.mp4", clip, resolution_px)
        print("lips:", lips)
        self.run("video, model kept", "video", seed=2)
        self.check("frames.mp4", self.run("frames", "frames", seed=1))
        self.interrupt()
        assert self.logged("LatentSync: opened") == 1, "the model was not kept between the runs"
        self.run("other settings", "video", seed=2, low_memory=True)
        assert self.logged("LatentSync: closed") == 1, (
            "the model with other settings was not closed"
        )
        self.post("/free", {"unload_models": True})
        self.wait(lambda: self.logged("LatentSync: closed") == 2, "the model is closed")
        self.run("video, opened again", "video", seed=4, low_memory=True)

    def run(
        self, what: str, workflow: str, seed: int, *, low_memory: bool = False
    ) -> dict[str, Any]:
        """The history of a workflow that is run to its end; prints its time."""
        start_s = time.perf_counter()
        history = self.history(self.queue(workflow, seed, low_memory=low_memory))
        event, details = history["status"]["messages"][-1]
        assert event == "execution_success", details.get("exception_message", event)
        print(f"{what}: {time.perf_counter() - start_s:.1f} s")
        return history

    def check(self, name: str, history: dict[str, Any]) -> None:
        """Fetches the video that a workflow saved; it has as many pictures and as much sound as the
        clip.
        """
        saved = next(
            one
            for node in history["outputs"].values()
            for one in node["images"]
            if one["type"] == "output"
        )
        (self._out / name).write_bytes(self.get(f"/view?{urlencode(saved)}"))
        frames, saved_frames = (
            sum(1 for _ in read_frames(each)) for each in (self._clip, self._out / name)
        )
        assert saved_frames == frames, f"{name}: {saved_frames} pictures instead of {frames}"
        sound_s = float(audio_duration_s(self._out / name))
        assert abs(sound_s - frames / 25) < 0.1, f"{name}: {sound_s} s of sound"

    def interrupt(self) -> None:
        """Interrupts a run as soon as it writes, and looks for what it leaves behind."""
        temp = self._base / "temp"
        before = set(temp.rglob("*latentsync*"))
        prompt = self.queue("video", seed=3)
        self.wait(lambda: any(temp.glob(".latentsync-latentsync-*")), "the run begins")
        start_s = time.perf_counter()
        self.post("/interrupt", {})
        status = self.history(prompt)["status"]
        print(f"interrupted: after {time.perf_counter() - start_s:.1f} s")
        assert status["messages"][-1][0] == "execution_interrupted", status
        left = set(temp.rglob("*latentsync*")) - before
        assert not left, f"left behind: {left}"

    def queue(self, workflow: str, seed: int, *, low_memory: bool = False) -> str:
        """Queues a workflow; returns its number."""
        prompt = json.loads(
            (NODES / "api_workflows" / f"{workflow}.json").read_text(encoding="utf-8")
        )
        prompt["3"]["inputs"]["low_memory"], prompt["5"]["inputs"]["seed"] = low_memory, seed
        return str(json.loads(self.post("/prompt", {"prompt": prompt}))["prompt_id"])

    def history(self, prompt: str) -> dict[str, Any]:
        """How a workflow ended."""
        self.wait(lambda: prompt in json.loads(self.get(f"/history/{prompt}")), "the workflow ends")
        return dict(json.loads(self.get(f"/history/{prompt}"))[prompt])

    def get(self, path: str) -> bytes:
        return bytes(urlopen(self._address + path, timeout=WAIT_S).read())

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        request = Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return bytes(urlopen(request, timeout=WAIT_S).read())

    def logged(self, text: str) -> int:
        """How often ComfyUI's log has `text`."""
        return self._log.read_text(encoding="utf-8", errors="replace").count(text)

    def wait(self, is_done: Callable[[], Any], what: str) -> None:
        """Waits until `is_done`."""
        end_s = time.perf_counter() + WAIT_S
        while not is_done():
            assert self.process.poll() is None, f"ComfyUI has ended; see {self._log}"
            assert time.perf_counter() < end_s, f"waited {WAIT_S:g} s until {what}; see {self._log}"
            time.sleep(0.1)


if __name__ == "__main__":
    main()
