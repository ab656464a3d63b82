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
"""A sentence in the description of each session."""

_log = logging.getLogger(__name__)

_PACKETS_PER_FRAME = 2
"""Packets of sound for each frame, 20 ms each."""
_MOST_WAITING = 10
"""Frames that may wait for a viewer; older ones are dropped, picture and sound."""
_MOST_BEHIND_S = 0.5
"""Frames that are sent at once after a hold-up; the clock goes on from there after a longer one."""
_BEFORE_SPEECH_S = 0.2
"""Sound that is given to the session from before speech was certain."""
_UTTERANCE_PAUSE_S = 0.6
"""An utterance is complete after so long without speech."""

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


async def send_json(socket: WebSocket, **values: Any) -> None:
    """Sends an object to a socket, whose viewer may have left."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_json(values)


class _FrameTrack(aiortc.MediaStreamTrack):
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
    """A connection that is open until `close`, which closes the session, too."""

    def __init__(
        self, session: LiveSession, *, stun: str | None = None, on_close: Callable[[], object]
    ) -> None:
        """`stun`: a STUN server, as `stun:host:port`; without one, only addresses of this machine
        are offered.
        """
        self.session = session
        self.sockets = set[WebSocket]()
        """They are told when an utterance is complete, and are closed with the call."""
        self._on_close = on_close
        self._tasks = set[asyncio.Task[None]]()
        self._closing = asyncio.Lock()
        self._runs = False
        self._closed = False
        servers = [] if stun is None else [aiortc.RTCIceServer(urls=stun)]
        self._peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=servers))
        self._video = _FrameTrack("video", _MOST_WAITING)
        self._audio = _FrameTrack("audio", _MOST_WAITING * _PACKETS_PER_FRAME)
        encoder = replace(
            choose_encoder(SyncOptions(codec="h264"), session.loop.info), pixel_format="yuv420p"
        )
        self._maker = PictureMaker(session.loop.info, encoder)
        self._peer.on("connectionstatechange", self._on_state)

    async def answer(self, sdp: str) -> str:
        """Returns the answer to a viewer's offer; raises ValueError if that is none."""
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
        """Gives what the viewer says to the session."""
        microphone: Microphone | None = None
        with suppress(MediaStreamError):
            while True:
                sound: Any = await track.recv()
                channels = sound.to_ndarray().reshape(-1, sound.layout.nb_channels)
                samples = channels.mean(axis=1) / np.float32(32768)
                if microphone is None:
                    microphone = Microphone(self.session, sound.sample_rate)
                await asyncio.to_thread(microphone.hear, samples.astype(np.float32))

    async def _run(self) -> None:
        """Gives a frame every 40 ms: its picture and its sound at the same time."""
        due_s = time.monotonic()
        try:
            while True:
                following = await asyncio.to_thread(self._next)
                if following is None:
                    return
                self._send(*following)
                due_s = max(due_s + float(FRAME_S), time.monotonic() - _MOST_BEHIND_S)
                await asyncio.sleep(due_s - time.monotonic())
        except LatentSyncError:
            _log.exception("a live session failed")
        finally:
            await self.close()

    def _next(self) -> tuple[LiveFrame, Any] | None:
        """Returns the next frame and its picture to encode; None at the end of the session."""
        live = next(self.session, None)
        if live is None:
            return None
        rgb = LazyRgb(live.planes)
        frame = Frame(live.index, live.time_s, FRAME_S, live.time_s, rgb, live.planes)
        picture = self._maker.frame(frame)
        picture.pts = live.index
        picture.time_base = FRAME_S
        return live, picture

    def _send(self, frame: LiveFrame, picture: Any) -> None:
        self._video.put(picture)
        size = len(frame.sound) // _PACKETS_PER_FRAME
        rate_hz = int(self.session.options.sound_rate_hz)
        for part in range(_PACKETS_PER_FRAME):
            begin = part * size
            packet = frame.sound[begin : begin + size]
            time = frame.index * len(frame.sound) + begin
            self._audio.put(sound_frame(packet, rate_hz, time))
        if not frame.ends:
            return
        for socket in self.sockets:
            start(send_json(socket, type="finished", utterance=frame.utterance), self._tasks)


class Microphone:
    """Gives the speech in a viewer's sound to a session, in utterances. Not thread-safe."""

    def __init__(self, session: LiveSession, rate_hz: int) -> None:
        self._session = session
        self._rate_hz = rate_hz
        self._network = VoiceActivity()
        self._converter = RateConverter(rate_hz, SPEECH_RATE_HZ)
        self._unjudged = SampleQueue()
        """At 16 kHz, until it suffices for a step of the detector."""
        self._unsaid = SampleQueue()
        self.speaks = False
        self._pause_s = 0.0

    def hear(self, samples: Float32Array) -> None:
        """Takes the next piece, mono `(n,)` float32. What finds no room in the session is lost."""
        self._unsaid.add(samples)
        self._unjudged.add(self._converter.convert(samples))
        self._judge()
        if not self.speaks:
            kept = round(_BEFORE_SPEECH_S * self._rate_hz)
            self._unsaid.take(max(0, self._unsaid.size - kept))
            return
        with suppress(Busy):
            self._session.say(self._unsaid.take(self._unsaid.size), self._rate_hz)
        if self._pause_s > _UTTERANCE_PAUSE_S:
            self.speaks = False
            self._session.end()

    def _judge(self) -> None:
        """Finds out whether someone speaks, and for how long no one has."""
        count = self._unjudged.size // STEP
        if not count:
            return
        steps = self._unjudged.take(count * STEP).reshape(count, STEP)
        for chance in self._network.chances(steps).tolist():
            if chance >= ENTER:
                self.speaks = True
            if chance >= LEAVE:
                self._pause_s = 0.0
            else:
                self._pause_s += STEP_S
