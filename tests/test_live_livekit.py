"""The adapter to LiveKit agents, with LiveKit's own types."""

import asyncio
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "livekit.agents", reason="needs livekit-agents, which brings more than the other tests need"
)

from livekit import rtc
from livekit.agents.voice.avatar import AudioSegmentEnd

from integrations.livekit.avatar import LatentSyncAvatar
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.session import LiveSession
from latentsync_trt.media.pictures import picture_info
from tests.live import Inline, PictureLoop, PicturePainter, voice


def opened(**options: Any) -> LiveSession:
    loop: Any = PictureLoop(picture_info(64, 48, rgb=False))
    painter: Any = PicturePainter(loop)
    return LiveSession(
        painter, LiveOptions(**options), executors=(Inline(), Inline()), now=lambda: 0.0
    )


def piece(seconds: float, rate_hz: int = 24_000, channels: int = 1) -> rtc.AudioFrame:
    samples = np.repeat((voice(seconds, rate_hz) * 32767).astype(np.int16), channels)
    return rtc.AudioFrame(samples.tobytes(), rate_hz, channels, len(samples) // channels)


def test_pictures_sound_and_ends_are_livekits() -> None:
    async def converse() -> list[Any]:
        with opened(sound_rate_hz="24000") as session:
            avatar = LatentSyncAvatar(session)
            found = list[Any]()
            await avatar.push_audio(piece(0.5))
            await avatar.push_audio(piece(0.3, channels=2))
            await avatar.push_audio(AudioSegmentEnd())
            async for frame in avatar:
                found.append(frame)
                if isinstance(frame, AudioSegmentEnd):
                    return found
        raise AssertionError("no end")

    found = asyncio.run(converse())
    pictures = [frame for frame in found if isinstance(frame, rtc.VideoFrame)]
    sounds = [frame for frame in found if isinstance(frame, rtc.AudioFrame)]
    assert {(frame.width, frame.height, frame.type) for frame in pictures} == {
        (64, 48, rtc.VideoBufferType.I420)
    }
    assert bytes(pictures[1].data)[: 64 * 48] == bytes([220]) * 64 * 48  # painted
    assert (len(pictures), len(sounds)) == (1 + 20, 20)  # the first is of the idle clip
    assert sum(frame.duration for frame in sounds) == pytest.approx(0.8)
    assert all(isinstance(kind, rtc.VideoFrame) for kind in found[1::2][:20])


def test_without_speech_there_is_no_sound_and_clearing_stops() -> None:
    async def converse() -> None:
        with opened() as session:
            avatar = LatentSyncAvatar(session)
            frames = aiter(avatar)
            assert all([isinstance(await anext(frames), rtc.VideoFrame) for _ in range(2)])
            await avatar.push_audio(piece(2.0))
            await avatar.push_audio(AudioSegmentEnd())
            assert sum([isinstance(await anext(frames), rtc.AudioFrame) for _ in range(7)]) == 3
            avatar.clear_buffer()
            assert all([isinstance(await anext(frames), rtc.VideoFrame) for _ in range(10)])
            assert session.idle

    asyncio.run(converse())


def test_an_agent_waits_while_the_buffer_is_full() -> None:
    async def converse() -> float:
        with opened(buffer_s=1.0) as session:
            avatar = LatentSyncAvatar(session)
            heard_s = 0.0

            async def speak() -> None:
                for each in (piece(0.9), piece(0.9), AudioSegmentEnd()):
                    await avatar.push_audio(each)

            speaking = asyncio.create_task(speak())
            async for frame in avatar:
                heard_s += frame.duration if isinstance(frame, rtc.AudioFrame) else 0.0
                if isinstance(frame, AudioSegmentEnd):
                    break
            await speaking
            return heard_s

    assert asyncio.run(converse()) == pytest.approx(1.8, abs=0.05)
