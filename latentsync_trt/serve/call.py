"""A call: one viewer's WebRTC connection around a session, which it drives at 25 frames a
second.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiortc
import numpy as np
from aiortc.codecs import h264
from aiortc.mediastreams import MediaStreamError
from starlette.websockets import WebSocket, WebSocketDisconnect

from latentsync_trt.audio.vad import ENTER, LEAVE, STEP, STEP_S, VoiceActivity
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import Busy, LatentSyncError
from latentsync_trt.live.frame import FRAME_S, LiveFrame
from latentsync_trt.live.session import LiveSession
from latentsync_trt.media.audio import SPEECH_RATE_HZ, RateConverter, SampleQueue, sound_frame
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.pictures import LazyRgb, PictureMaker
from latentsync_trt.types import Float32Array, Frame

MARK = "AI-generated video: the mouth follows speech (latentsync-trt)"
"""In the description of each session."""

_log = logging.getLogger(__name__)

_PACKETS_PER_FRAME = 2
"""Of sound, 20 ms each."""
_WAITING = 10
"""Frames that may wait for a viewer; older ones are dropped, picture and sound."""
_BEHIND_S = 0.5
"""What is given at once after a longer hold-up; frames go on from there."""
_BEFORE_S = 0.2
"""Said of what was heard before speech was certain."""
_PAUSE_S = 0.6
"""After so long without speech, the utterance is complete."""

# aiortc's own are for talking heads of 640×480. It has no setting for them: they are constants of
# its module, and a sender makes its encoder itself.
h264.DEFAULT_BITRATE = 3_000_000
h264.MIN_BITRATE = 1_000_000
h264.MAX_BITRATE = 12_000_000


def start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Runs a coroutine, which is kept among `tasks` until it ends: the event loop itself keeps
    none.
    """
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def tell(socket: WebSocket, **values: Any) -> None:
    """Sends an object to a socket, whose viewer may have left."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_json(values)


class _Track(aiortc.MediaStreamTrack):
    """Frames in the order of `put`."""

    def __init__(self, kind: str, most: int) -> None:
        super().__init__()
        self.kind = kind
        self._queue: asyncio.Queue[Any] = asyncio.Queue(most)

    def put(self, frame: Any) -> None:
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(frame)

    async def recv(self) -> Any:
        return await self._queue.get()


class Call:
    """Open until `close`, which closes the session, too.

    `sockets`: told when an utterance has been heard, and closed with the call.
    """

    def __init__(
        self, session: LiveSession, *, stun: str | None = None, on_close: Callable[[], object]
    ) -> None:
        """`stun`: a STUN server, as `stun:host:port`; without one, only addresses of this machine
        are offered.
        """
        self.session = session
        self.sockets = set[WebSocket]()
        self._on_close = on_close
        self._tasks = set[asyncio.Task[None]]()
        self._closing = asyncio.Lock()
        self._runs = False
        self._closed = False
        servers = [] if stun is None else [aiortc.RTCIceServer(urls=stun)]
        self._peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=servers))
        self._video = _Track("video", _WAITING)
        self._audio = _Track("audio", _WAITING * _PACKETS_PER_FRAME)
        encoder = replace(
            choose_encoder(SyncOptions(codec="h264"), session.loop.info), pixel_format="yuv420p"
        )
        self._maker = PictureMaker(session.loop.info, encoder)
        self._peer.on("connectionstatechange", self._on_state)

    async def answer(self, sdp: str) -> str:
        """The answer to a viewer's offer; raises ValueError if that is none."""
        for track in (self._video, self._audio):
            self._peer.addTrack(track)
        codecs = aiortc.RTCRtpSender.getCapabilities("video").codecs
        video, audio = self._peer.getTransceivers()
        video.setCodecPreferences(sorted(codecs, key=lambda codec: codec.mimeType != "video/H264"))
        await self._peer.setRemoteDescription(aiortc.RTCSessionDescription(sdp, "offer"))
        # what a viewer films would be decoded and kept, and so would other tracks
        video.direction = "sendonly"
        for other in self._peer.getTransceivers()[2:]:
            other.direction = "inactive"
        if audio.receiver.track is not None:
            start(self._listen(audio.receiver.track), self._tasks)
        await self._peer.setLocalDescription(await self._peer.createAnswer())
        return str(self._peer.localDescription.sdp).replace("\r\ns=-", f"\r\ns={MARK}", 1)

    async def close(self) -> None:
        """Ends the call; returns when it has ended, also if another task ends it already."""
        async with self._closing:
            if self._closed:
                return
            self._closed = True
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            for socket in list(self.sockets):
                with suppress(RuntimeError):  # it is being closed
                    await socket.close()
            try:
                await self._peer.close()
                await asyncio.to_thread(self.session.close)
            finally:
                self._on_close()

    async def _on_state(self) -> None:
        if self._peer.connectionState == "connected" and not self._runs:
            self._runs = True
            start(self._run(), self._tasks)
        elif self._peer.connectionState in ("failed", "closed"):
            await self.close()

    async def _listen(self, track: aiortc.MediaStreamTrack) -> None:
        """Says what the viewer says."""
        microphone = None
        with suppress(MediaStreamError):
            while True:
                sound: Any = await track.recv()
                samples = sound.to_ndarray().reshape(-1, sound.layout.nb_channels).mean(
                    axis=1
                ) / np.float32(32768)
                microphone = microphone or Microphone(self.session, sound.sample_rate)
                await asyncio.to_thread(microphone.hear, samples.astype(np.float32))

    async def _run(self) -> None:
        """Gives a frame every 40 ms: its picture and its sound at the same time."""
        due_s = time.monotonic()
        try:
            while (given := await asyncio.to_thread(self._next)) is not None:
                self._give(*given)
                due_s = max(due_s + float(FRAME_S), time.monotonic() - _BEHIND_S)
                await asyncio.sleep(due_s - time.monotonic())
        except LatentSyncError:
            _log.exception("a live session failed")
        finally:
            await self.close()

    def _next(self) -> tuple[LiveFrame, Any] | None:
        """The next frame and its picture to encode."""
        for live in self.session:
            frame = Frame(
                live.index, live.time_s, FRAME_S, live.time_s, LazyRgb(live.planes), live.planes
            )
            picture = self._maker.frame(frame)
            picture.pts = live.index
            picture.time_base = FRAME_S
            return live, picture
        return None

    def _give(self, frame: LiveFrame, picture: Any) -> None:
        self._video.put(picture)
        size = len(frame.sound) // _PACKETS_PER_FRAME
        rate_hz = int(self.session.options.sound_rate_hz)
        for part in range(_PACKETS_PER_FRAME):
            at = frame.index * len(frame.sound) + part * size
            self._audio.put(sound_frame(frame.sound[part * size :][:size], rate_hz, at))
        for socket in self.sockets if frame.ends else ():
            start(tell(socket, type="finished", utterance=frame.utterance), self._tasks)


class Microphone:
    """Says to a session what is speech, in utterances. Not thread-safe."""

    def __init__(self, session: LiveSession, rate_hz: int) -> None:
        self._session = session
        self._rate_hz = rate_hz
        self._network = VoiceActivity()
        self._converter = RateConverter(rate_hz, SPEECH_RATE_HZ)
        self._held = SampleQueue()
        self._before = SampleQueue()
        self.speaks = False
        self._pause_s = 0.0

    def hear(self, samples: Float32Array) -> None:
        """The next piece, mono `(n,)` float32. What finds no room in the session is lost."""
        self._before.add(samples)
        self._held.add(self._converter.convert(samples))
        if count := self._held.size // STEP:
            steps = self._held.take(count * STEP).reshape(count, STEP)
            for chance in self._network.chances(steps).tolist():
                self._pause_s = 0.0 if chance >= LEAVE else self._pause_s + STEP_S
                self.speaks = self.speaks or chance >= ENTER
        if not self.speaks:
            self._before.take(max(0, self._before.size - round(_BEFORE_S * self._rate_hz)))
            return
        with suppress(Busy):
            self._session.say(self._before.take(self._before.size), self._rate_hz)
        if self._pause_s > _PAUSE_S:
            self.speaks = False
            self._session.end()
