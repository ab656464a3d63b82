"""Makes what `latentsync-trt demo` is fed: a public-domain portrait and a sentence of synthetic speech.

    python scripts/make_demo_assets.py        # needs espeak-ng and the dev extra

The portrait is NASA's of Eileen Collins, as scikit-image ships it. See NOTICE for origins.
"""

import shutil
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import av
import cv2
import numpy as np
import skimage.data

ASSETS = Path(__file__).resolve().parents[1] / "latentsync_trt" / "assets" / "demo"
SENTENCE = "My lips follow these words. Papa, mama, and the boats by the pier."
VOICE = "en-us+f3"
WORDS_PER_MINUTE = 165
JPEG_QUALITY = 95


def main() -> None:
    espeak = shutil.which("espeak-ng")
    if espeak is None:
        sys.exit("espeak-ng is not installed")
    ASSETS.mkdir(parents=True, exist_ok=True)
    portrait = cv2.cvtColor(skimage.data.astronaut(), cv2.COLOR_RGB2BGR)
    (_, jpeg) = cv2.imencode(".jpg", portrait, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    (ASSETS / "portrait.jpg").write_bytes(jpeg.tobytes())
    with tempfile.TemporaryDirectory() as folder:
        spoken = Path(folder) / "speech.wav"
        subprocess.run([espeak, "-v", VOICE, "-s", str(WORDS_PER_MINUTE), "-w", str(spoken), SENTENCE], check=True)
        write_flac(spoken, ASSETS / "speech.flac")


def write_flac(source: Path, target: Path) -> None:
    """Packs a mono 16-bit WAV losslessly."""
    with wave.open(str(source)) as wav:
        rate = wav.getframerate()
        samples = np.frombuffer(wav.readframes(wav.getnframes()), np.int16)
    with av.open(str(target), "w") as container:
        stream = container.add_stream("flac", rate=rate, layout="mono", format="s16")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    print(f"{target.name}: {len(samples) / rate:.2f} s at {rate} Hz, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
