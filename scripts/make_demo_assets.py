"""Makes the inputs of `latentsync-trt demo`: a public-domain portrait, synthetic speech, the
times of its words, and the mouth that speaks it.

    python scripts/make_demo_assets.py        # needs the dev extra

The portrait is NASA's of Eileen Collins, from scikit-image; the voice is espeak-ng's, from the
package espeakng-loader, whose version determines every sample. See NOTICE for origins.
"""

import sys
from itertools import pairwise
from pathlib import Path

import av
import cv2
import numpy as np
import skimage.data

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.config import MODEL_FPS  # noqa: E402
from latentsync_trt.media.demo_clip import ASSETS, SENTENCE, WORDS_FILE  # noqa: E402
from scripts.train_demo.score import SPOKEN_MOUTH_FILE  # noqa: E402
from scripts.train_demo.speech import Speaker, Utterance, Voice  # noqa: E402
from scripts.train_demo.visemes import MouthTrack, Phoneme, mouth_track  # noqa: E402

VOICE = Voice("en-us", "f3", 165)
"""Held out: scripts/train_demo uses neither this voice nor this sentence for training."""

PAUSE_S = 0.34
"""Silence before and after the sentence, long enough to see the mouth closed."""

ROUNDED = 0.5
"""Lips whose rounding is as much look round."""

JPEG_QUALITY = 95


def main() -> None:
    ASSETS.mkdir(parents=True, exist_ok=True)
    portrait = cv2.cvtColor(skimage.data.astronaut(), cv2.COLOR_RGB2BGR)
    (_, jpeg) = cv2.imencode(".jpg", portrait, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    (ASSETS / "portrait.jpg").write_bytes(jpeg.tobytes())
    spoken = Speaker().say(SENTENCE, VOICE)
    samples, track = with_pauses(spoken)
    write_flac(samples, spoken.rate_hz, ASSETS / "speech.flac")
    write_track(track, SPOKEN_MOUTH_FILE)
    write_words(spoken, track, WORDS_FILE)


def with_pauses(spoken: Utterance) -> tuple[np.ndarray, MouthTrack]:
    """Samples int16 `(n,)`, a whole number of frames, with a pause at both ends, and the mouth that
    belongs to them.
    """
    pause = round(PAUSE_S * spoken.rate_hz)
    frames = -(-(len(spoken.samples) + 2 * pause) * MODEL_FPS // spoken.rate_hz)
    samples = np.zeros(frames * spoken.rate_hz // MODEL_FPS, np.int16)
    samples[pause : pause + len(spoken.samples)] = np.rint(spoken.samples * 32768).clip(
        -32768, 32767
    )
    offset_s = pause / spoken.rate_hz
    phonemes = [
        Phoneme(p.symbol, p.start_s + offset_s, p.end_s + offset_s) for p in spoken.phonemes
    ]
    return samples, mouth_track(phonemes, frames / MODEL_FPS)


def write_flac(samples: np.ndarray, rate_hz: int, target: Path) -> None:
    """Writes mono int16 samples."""
    with av.open(str(target), "w") as container:
        stream = container.add_stream("flac", rate=rate_hz, layout="mono", format="s16")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = rate_hz
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    print(
        f"{target.name}: {len(samples) / rate_hz:.2f} s "
        f"at {rate_hz} Hz, {target.stat().st_size} bytes"
    )


def write_words(spoken: Utterance, track: MouthTrack, target: Path) -> None:
    """One line per word, in the format of `spoken_words`."""
    end_s = len(spoken.samples) / spoken.rate_hz + PAUSE_S
    words = [(word, start_s + PAUSE_S) for word, start_s in spoken.words]
    words.append(("", end_s))
    lines = ["start_s,word,rounded_s"]
    for (word, start_s), (_, next_s) in pairwise(words):
        rounded = when_rounded(track, start_s, next_s)
        lines.append(f"{start_s:.2f},{word},{rounded}")
    lines.append(f"{end_s:.2f},,")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print(f"{target.name}: {len(spoken.words)} words")


def when_rounded(track: MouthTrack, start_s: float, end_s: float) -> str:
    """When, in seconds, round lips are seen best in this part; "" if they are not round there."""
    times_s = np.arange(len(track)) / MODEL_FPS
    is_round = (times_s >= start_s) & (times_s < end_s) & (track.rounding >= ROUNDED)
    if not is_round.any():
        return ""
    best = np.argmax(np.where(is_round, track.rounding * track.opening, -1))
    return f"{times_s[best]:.2f}"


def write_track(track: MouthTrack, target: Path) -> None:
    """One line per frame, in the format of `spoken_mouth`."""
    lines = [
        f"{opening:.4f},{shut:d},{silent:d}"
        for opening, shut, silent in zip(track.opening, track.shut, track.silent, strict=True)
    ]
    target.write_text(
        "\n".join(["opening,shut,silent", *lines]) + "\n", encoding="ascii", newline="\n"
    )
    print(f"{target.name}: {len(track)} frames, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
