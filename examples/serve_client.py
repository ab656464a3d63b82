"""Send a clip to a running `latentsync-trt serve`, follow the job, and fetch the result. Needs `pip
install httpx`.

In another terminal, after `pip install ".[serve]"`: latentsync-trt serve --bundle demo

python serve_client.py
python serve_client.py in.mp4 speech.wav --url https://lips.example.com

The key is read from $LATENTSYNC_TRT_API_KEY.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import httpx

from latentsync_trt import demo_clip


def checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        sys.exit(f"error: {answer.status_code}: {answer.read().decode()}")
    return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("video", nargs="?", help="default: the built-in clip")
    parser.add_argument("audio", nargs="?", help="the speech; default: the sound of the video")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--output", type=Path, default=Path("serve_client.mp4"))
    args = parser.parse_args()
    video, audio = (args.video, args.audio or args.video) if args.video else demo_clip()
    key = os.environ.get("LATENTSYNC_TRT_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=f"{args.url}/v1/", headers=headers, timeout=60) as client:
        with Path(video).open("rb") as picture, Path(audio).open("rb") as speech:
            files = {"video": picture, "audio": speech}
            form = {"options": json.dumps({"preset": "fast"})}
            job = checked(client.post("jobs", data=form, files=files)).json()
        while job["state"] in ("waiting", "running"):
            print(
                job["state"],
                job["stage"] or "",
                job["done"],
                "of",
                job["total"] or "?",
                file=sys.stderr,
            )
            time.sleep(1)
            job = checked(client.get(f"jobs/{job['id']}")).json()
        if job["state"] != "done":
            sys.exit(f"error: {job['state']}: {job['error']}")
        with (
            client.stream("GET", f"jobs/{job['id']}/result") as answer,
            args.output.open("wb") as output,
        ):
            output.writelines(checked(answer).iter_bytes())
        checked(client.delete(f"jobs/{job['id']}"))
    print(f"{args.output}: {job['report']['frames']} frames in {job['report']['wall_s']:.1f} s")
