"""Dub one video with several recordings. The model is loaded once; a recording that fails does not
stop the others.

python many_clips.py                                            the built-in clip, twice
python many_clips.py in.mp4 english.wav spanish.wav --bundle 1.6-512-fp16 --output dubbed

Several GPUs or machines: `latentsync-trt batch`, which also goes on where it was interrupted.
"""

import argparse
import sys
from pathlib import Path

from latentsync_trt import LatentSyncError, LipSync, SyncOptions, demo_clip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", nargs="?", help="default: the built-in clip")
    parser.add_argument(
        "recordings", nargs="*", metavar="audio", help="recordings, each for a video of its own"
    )
    parser.add_argument(
        "--bundle", default="demo", help="a path, a name below checkpoints/, or demo"
    )
    parser.add_argument("--output", type=Path, default=Path("many_clips"), help="folder")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    video = args.video
    recordings = args.recordings or [args.video]
    if video is None:
        video, speech = demo_clip(args.output)
        recordings = [speech, speech]

    failed = 0
    with LipSync.from_bundle(args.bundle) as lip_sync:
        for number, audio in enumerate(recordings, start=1):
            output = args.output / f"{number}-{Path(audio).stem}.mp4"
            try:
                report = lip_sync.sync(video, audio, output, SyncOptions(preset="fast"))
            except LatentSyncError as error:
                failed += 1
                print(f"{output}: failed: {error}", file=sys.stderr)
            else:
                print(f"{output}: {report.frames} frames in {report.wall_s:.1f} s")
    if failed:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
