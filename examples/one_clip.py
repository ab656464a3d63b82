"""Lip-sync one clip, with progress and the numbers of the report.

python one_clip.py                                            the built-in clip and small model
python one_clip.py in.mp4 speech.wav --bundle 1.6-512-fp16    your own, with an exported model
"""

import argparse
import sys

from latentsync_trt import LatentSyncError, LipSync, Progress, SyncOptions, demo_clip


def show(progress: Progress) -> None:
    """Called when a stage begins, and after every frame."""
    print(
        f"\r{progress.stage}: {progress.done} of {progress.total or '?'}".ljust(40),
        end="",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", nargs="?", help="default: the built-in clip")
    parser.add_argument("audio", nargs="?", help="the speech; default: the sound of the video")
    parser.add_argument(
        "--bundle", default="demo", help="a path, a name below checkpoints/, or demo"
    )
    parser.add_argument("--output", default="one_clip.mp4")
    args = parser.parse_args()
    video, audio = (args.video, args.audio or args.video) if args.video else demo_clip()

    with LipSync.from_bundle(
        args.bundle, on_notice=lambda text: print(f"\rnote: {text}", file=sys.stderr)
    ) as lip_sync:
        report = lip_sync.sync(
            video, audio, args.output, SyncOptions(preset="balanced"), on_progress=show
        )

    print(
        f"\n{report.output}: {report.frames} frames, "
        f"{report.duration_s:.2f} s, with {report.bundle}"
    )
    print(f"face in {report.frames_with_face} frames; measured: {report.quality}")
    print(
        f"{report.provider}: {report.wall_s:.1f} s, "
        f"{report.frames_per_s:.1f} frames/s after start-up"
    )
    for gap in report.untouched:
        print(f"{gap.start_s:.2f} to {gap.end_s:.2f} s stay as they were: {gap.reason}")


if __name__ == "__main__":
    try:
        main()
    except LatentSyncError as error:  # it says what failed, where, and what to do
        sys.exit(f"\nerror: {error}")
