"""Are the frames that a run on the CPU writes bit-identical to the recorded ones?

python scripts/demo_frames.py [--record]

Lip-syncs the first 2.04 s of the built-in clip in five settings and compares the SHA-256 of the
decoded frames with those in benchmarks/demo-frames.json; `--record` writes them there.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import av

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.media.demo_clip import SPEECH, demo_clip

RECORD = Path(__file__).parents[1] / "benchmarks" / "demo-frames.json"
SPEECH_S = 2.04
SETTINGS = {
    "fast": SyncOptions(finish="plain", silence="model", preset="fast", codec="ffv1"),
    "balanced": SyncOptions(finish="plain", silence="model", preset="balanced", codec="ffv1"),
    "draft without guidance": SyncOptions(
        finish="plain", silence="model", preset="draft", guidance=1.0, codec="ffv1"
    ),
    "draft, low memory": SyncOptions(finish="plain", silence="model", preset="draft", codec="ffv1"),
    "draft, h264": SyncOptions(finish="plain", silence="model", preset="draft", codec="h264"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"Write {RECORD.name}.")
    arguments = parser.parse_args()
    hashes = {}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        video, _ = demo_clip(folder)
        speech = folder / "speech.wav"
        cut_speech(speech)
        for name, options in SETTINGS.items():
            runtime = RuntimeOptions(low_memory="low memory" in name)
            output = folder / "out.mkv"
            with LipSync.from_bundle("demo", "cpu", runtime) as lip_sync:
                lip_sync.sync(video, speech, output, options)
            hashes[name] = hash_of_frames(output)
            output.unlink()
            print(f"{name}: {hashes[name]}")
    if arguments.record:
        RECORD.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
        return
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    different = [name for name in SETTINGS if hashes[name] != recorded.get(name)]
    if different:
        sys.exit(f"different from {RECORD}: {', '.join(different)}")


def cut_speech(path: Path) -> None:
    """Writes the first `SPEECH_S` seconds of the built-in speech."""
    with av.open(str(SPEECH)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream("pcm_s16le", rate=source.streams.audio[0].rate, layout="mono")
        left = round(SPEECH_S * stream.rate)
        for frame in source.decode(audio=0):
            samples = frame.to_ndarray()[:, :left]
            left -= samples.shape[1]
            cut = av.AudioFrame.from_ndarray(samples, format=frame.format.name, layout="mono")
            cut.rate = stream.rate
            target.mux(stream.encode(cut))
            if not left:
                break
        target.mux(stream.encode(None))


def hash_of_frames(path: Path) -> str:
    """Returns the SHA-256 of all planes of all frames."""
    digest = hashlib.sha256()
    with av.open(str(path)) as file:
        for frame in file.decode(video=0):
            digest.update(frame.to_ndarray().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
