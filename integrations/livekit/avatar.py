"""A live session as the video generator of a LiveKit agent's avatar.

    avatar = LatentSyncAvatar(session)
    runner = AvatarRunner(room, audio_recv=receiver, video_gen=avatar, options=avatar.options)

LiveKit's synchronizer sets the pace: it takes 25 pictures a second, and the sound of those in which
somebody speaks.
"""

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from latentsync_trt import LiveFrame, LiveSession
from latentsync_trt.errors import Busy
from livekit import rtc
from livekit.agents.voice.avatar import AudioSegmentEnd, AvatarOptions, VideoGenerator

_ROOM_S = 0.05


class LatentSyncAvatar(VideoGenerator):
    """Speech in, pictures and sound out; `session` stays the caller's to close."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session

    @property
    def options(self) -> AvatarOptions:
        """What `AvatarRunner` needs to know of it."""
        height, width = self._session.loop.planes[0].y.shape
        rate_hz = int(self._session.options.sound_rate_hz)
        return AvatarOptions(
            width, height, video_fps=25, audio_sample_rate=rate_hz, audio_channels=1
        )

    async def push_audio(self, frame: rtc.AudioFrame | AudioSegmentEnd) -> None:
        """Says a piece, and waits while there is no room for it; or completes the utterance."""
        if isinstance(frame, AudioSegmentEnd):
            await asyncio.to_thread(self._session.end)
            return
        samples = (
            np.asarray(frame.data, np.int16)
            .reshape(-1, frame.num_channels)
            .mean(axis=1)
            .astype(np.int16)
        )
        while True:
            try:
                await asyncio.to_thread(self._session.say, samples, frame.sample_rate)
            except Busy:
                await asyncio.sleep(_ROOM_S)
            else:
                return

    def clear_buffer(self) -> None:
        """Stops what is being said."""
        self._session.stop()

    async def __aiter__(self) -> AsyncIterator[rtc.VideoFrame | rtc.AudioFrame | AudioSegmentEnd]:
        """A picture for each frame, its sound while somebody speaks, and the end of each
        utterance.
        """
        while (frame := await asyncio.to_thread(next, self._session, None)) is not None:
            yield picture_of(frame)
            if frame.speaking:
                sound = np.clip(np.rint(frame.sound * 32768), -32768, 32767).astype(np.int16)
                yield rtc.AudioFrame(
                    sound.tobytes(), int(self._session.options.sound_rate_hz), 1, len(sound)
                )
            if frame.ends:
                yield AudioSegmentEnd()


def picture_of(frame: LiveFrame) -> rtc.VideoFrame:
    """The picture, in the clip's own planes where LiveKit knows their format."""
    planes = frame.planes
    (height, width) = frame.planes.y.shape
    if planes.bits == 8 and planes.u.shape == ((height + 1) // 2, (width + 1) // 2):
        data = b"".join(plane.tobytes() for plane in (planes.y, planes.u, planes.v))
        return rtc.VideoFrame(width, height, rtc.VideoBufferType.I420, data)
    return rtc.VideoFrame(width, height, rtc.VideoBufferType.RGB24, frame.rgb.tobytes())
