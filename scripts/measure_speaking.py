"""Measures how well `--face speaking` finds who speaks, in dialogues composed of people who were
filmed.

    python -m scripts.measure_speaking FOLDER [--json FILE]

The folder holds demo1_video.mp4 … demo3_video.mp4 and demo1_audio.wav … demo3_audio.wav. `right`:
of the frames with speech, how many are assigned to the face that speaks, or to no one where the
voice comes from outside; `wrong`: to another face.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.sync.faces import analyze
from latentsync_trt.sync.source_speakers import detect_speakers
from tests.dialogues import HELD_OUT, SIDE_PX, Cast, Written, compose


def score(written: Written, tracks: Tracks) -> tuple[int, int, int]:
    """Frames with speech that are right, that are wrong, and all."""
    said = np.full(len(written.speaker), -2)
    for one in tracks.turns or ():
        for span in (each for each in tracks.spans if each.person == one.person):
            for row in span.rows[(span.rows[:, 0] >= one.start_s) & (span.rows[:, 0] < one.end_s)]:
                frame = min(round(row[0] * MODEL_FPS), len(said) - 1)
                places = written.places[frame]
                left = (written.width_px - SIDE_PX * len(places)) / 2
                said[frame] = places[int(((row[1] + row[3]) / 2 - left) // SIDE_PX)]
    spoken = written.speaker != -2
    said = said[spoken]
    truth = written.speaker[spoken]
    right = (said == truth) | ((said == -2) & (truth == -1))
    return int(right.sum()), int(((said != -2) & ~right).sum()), len(truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("assets", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    total = np.zeros(3, int)
    detector = MediaPipeDetector()
    with TemporaryDirectory() as folder:
        cast = Cast(args.assets, detector)
        for dialogue in HELD_OUT:
            written = compose(cast, dialogue, Path(folder) / "dialogue.mp4")
            tracks, _ = detect_speakers(written.path, analyze(written.path, detector)[0])
            scored = score(written, tracks)
            total += scored
            row = {"scene": dialogue.name, "frames": scored[2]}
            rows.append(
                row
                | {
                    "right": round(scored[0] / scored[2], 3),
                    "wrong": round(scored[1] / scored[2], 3),
                }
            )
            print(rows[-1])
    whole = {
        "frames": int(total[2]),
        "right": round(float(total[0] / total[2]), 4),
        "wrong": round(float(total[1] / total[2]), 4),
    }
    print(whole)
    if args.json is not None:
        description = (
            "python -m scripts.measure_speaking FOLDER; 12 "
            "dialogues, none of which was used to choose a limit"
        )
        content = {
            "what": description,
            "measured_at": str(datetime.now(UTC).date()),
            **whole,
            "scenes": rows,
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
