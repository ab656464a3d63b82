"""The adapter to LiveKit agents, with LiveKit's own types."""

import asyncio
from typing import Any

import numpy as np
import pytest

pytest.importorskip("livekit.agents", reason="needs livekit-agents, which brings more than the other tests need")

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
    return LiveSession(painter, loop, LiveOptions(**options), executors=(Inline(), Inline()))


def piece(seconds: float, rate_hz: int = 24_000, channels: int = 1) -> rtc.AudioFrame:
    samples = np.repeat((voice(seconds, rate_hz) * 32767).astype(np.int16), channels)
    return rtc.AudioFrame(samples.tobytes(), rate_hz, channels, len(samples) // channels)


def test_pictures_sound_and_ends_are_livekits() -> None:
    async def converse() -> list[Any]:
        with opened(sound_rate_hz="24000") as session:
            avatar, found = LatentSyncAvatar(session), list[Any]()
            assert (avatar.options.video_width, avatar.options.video_height) == (64, 48)
            assert (avatar.options.video_fps, avatar.options.audio_sample_rate) == (25, 24_000)
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
    assert {(frame.width, frame.height, frame.type) for frame in pictures} == {(64, 48, rtc.VideoBufferType.I420)}
    assert bytes(pictures[0].data)[: 64 * 48] == bytes([220]) * 64 * 48  # painted
    assert len(pictures) == len(sounds) == 20
    assert sum(frame.duration for frame in sounds) == pytest.approx(0.8)
    assert all(isinstance(kind, rtc.VideoFrame) for kind in found[::2][:20])


def test_without_speech_there_is_no_sound_and_clearing_stops() -> None:
    async def converse() -> None:
        with opened() as session:
            avatar = LatentSyncAvatar(session)
            frames = aiter(avatar)
            assert isinstance(await anext(frames), rtc.VideoFrame)
            assert isinstance(await anext(frames), rtc.VideoFrame)
            await avatar.push_audio(piece(2.0))
            await avatar.push_audio(AudioSegmentEnd())
            heard = [await anext(frames) for _ in range(6)]
            assert sum(isinstance(frame, rtc.AudioFrame) for frame in heard) == 3
            avatar.clear_buffer()
            later = [await anext(frames) for _ in range(10)]
            assert all(isinstance(frame, rtc.VideoFrame) for frame in later)
            assert session.idle

    asyncio.run(converse())


def test_a_full_buffer_makes_the_agent_wait() -> None:
    async def converse() -> None:
        with opened(buffer_s=1.0) as session:
            avatar = LatentSyncAvatar(session)
            await avatar.push_audio(piece(0.9))
            waiting = asyncio.create_task(avatar.push_audio(piece(0.9)))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            frames = aiter(avatar)
            while not waiting.done():
                await anext(frames)
            await waiting

    asyncio.run(converse())
