"""A face that speaks while the speech is still being made: a WAV file in pieces, as a
text-to-speech engine gives it.

python live.py                                              the built-in clip and small model
python live.py idle.mp4 speech.wav --bundle 1.5-256-fp16    your own, with an exported model

Frames are taken every 40 ms, and painting must keep up: that needs a GPU. Here they are saved; how
they go to a call is shown by `latentsync-trt live`, integrations/livekit and docs/live.md.
"""

import argparse
import sys
import time
from fractions import Fraction

import av
import numpy as np

from latentsync_trt import LatentSyncError, LipSync, LiveFrame, LiveOptions, LiveSession, demo_clip
from latentsync_trt.media.audio import read_audio_blocks

RATE_HZ = 24_000
PIECE = RATE_HZ // 5  # 200 ms, every second frame: 2.5 times as fast as it is spoken


class Recorder:
    """Writes frames to a file."""

    def __init__(self, path: str, session: LiveSession) -> None:
        height, width = session.loop.planes[0].y.shape
        self._container = av.open(path, "w")
        self._video = self._container.add_stream(
            "libx264", rate=25, width=width, height=height, pix_fmt="yuv420p"
        )
        self._audio = self._container.add_stream("aac", rate=48_000, layout="mono")

    def add(self, frame: LiveFrame) -> None:
        picture = av.VideoFrame.from_ndarray(frame.rgb, "rgb24")
        sound = av.AudioFrame.from_ndarray(frame.sound[None], "flt", "mono")
        sound.sample_rate = 48_000
        sound.pts = frame.index * 1920
        sound.time_base = Fraction(1, 48_000)
        picture.pts = frame.index
        picture.time_base = Fraction(1, 25)
        self._container.mux([*self._video.encode(picture), *self._audio.encode(sound)])

    def close(self) -> None:
        self._container.mux([*self._video.encode(None), *self._audio.encode(None)])
        self._container.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", nargs="?", help="one face in one shot; default: the built-in clip")
    parser.add_argument("audio", nargs="?", help="the speech; default: the built-in sentence")
    parser.add_argument(
        "--bundle", default="demo", help="a path, a name below checkpoints/, or demo"
    )
    parser.add_argument("--output", default="live.mp4")
    args = parser.parse_args()
    video, audio = (args.video, args.audio) if args.video and args.audio else demo_clip()
    speech = np.concatenate(list(read_audio_blocks(audio, RATE_HZ)))

    with (
        LipSync.from_bundle(args.bundle) as lip_sync,
        lip_sync.stream(video, LiveOptions()) as live,
    ):
        recorder = Recorder(args.output, live)
        said = 0
        begun_s = time.perf_counter()
        for frame in live:
            recorder.add(frame)
            time.sleep(max(0.0, begun_s + float(frame.time_s) - time.perf_counter()))
            if said < len(speech) and frame.index % 2:
                live.say(speech[said : said + PIECE], RATE_HZ)
                said += PIECE
                if said >= len(speech):
                    live.end()
            elif said >= len(speech) and live.idle:
                break
        recorder.close()
    print(f"{args.output}: {live.counts}")


if __name__ == "__main__":
    try:
        main()
    except LatentSyncError as error:  # it says what failed, where, and what to do
        sys.exit(f"\nerror: {error}")
