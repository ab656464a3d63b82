"""Lip-sync two people, each to a recording of their own; everyone else in the picture stays as they
are.

python several_speakers.py    (two people made of the built-in clip)
python several_speakers.py in.mp4 --speaker 0=ann.wav 1=ben.wav --bundle 1.6-512-fp16

`latentsync-trt faces in.mp4` shows who has which number. Each recording is as long as the video;
where its speaker is silent, the mouth is shut.
"""

import argparse
import wave

import av
import numpy as np

from latentsync_trt import LipSync, SyncOptions, demo_clip


def two_people() -> tuple[str, list[str]]:
    """The built-in clip beside its mirror image; Ann says the first sentence, Ben the second."""
    one, speech = demo_clip()
    with av.open(str(one)) as source, av.open("two_people.mp4", "w") as result:
        stream = result.add_stream("libx264", rate=25, options={"crf": "16"})
        stream.width = 2 * source.streams.video[0].width
        stream.height = source.streams.video[0].height
        for frame in source.decode(video=0):
            rgb = frame.to_ndarray(format="rgb24")
            result.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.hstack([rgb, rgb[:, ::-1]]), format="rgb24")
                )
            )
        result.mux(stream.encode(None))
    decoded = list(av.open(str(speech)).decode(audio=0))
    samples = np.concatenate([frame.to_ndarray()[0] for frame in decoded])
    first = np.arange(len(samples)) < 0.41 * len(samples)
    for name, part in (("ann.wav", first), ("ben.wav", ~first)):
        with wave.open(name, "wb") as sound:
            sound.setparams((1, 2, decoded[0].rate, 0, "NONE", ""))
            sound.writeframes((samples * part).tobytes())
    return "two_people.mp4", ["0=ann.wav", "1=ben.wav"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("video", nargs="?", help="default: two people made of the built-in clip")
    parser.add_argument(
        "--speaker",
        nargs="+",
        default=[],
        metavar="N=FILE",
        help="number of a person and a recording",
    )
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--output", default="several_speakers.mp4")
    args = parser.parse_args()
    video, speakers = (args.video, args.speaker) if args.video else two_people()
    with LipSync.from_bundle(args.bundle) as lip_sync:
        report = lip_sync.sync(
            video, None, args.output, SyncOptions(preset="fast", speaker=tuple(speakers))
        )
    print("\n".join(f"person {lips.person}: {lips}" for lips in report.quality.lips))
