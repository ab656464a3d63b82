"""A microphone, which never is silent, as utterances: speech is said, and what is between is not."""

from collections import deque

import numpy as np

from latentsync_trt.audio.vad import ENTER, LEAVE, STEP, STEP_S, VoiceActivity
from latentsync_trt.errors import Busy
from latentsync_trt.live.session import LiveSession
from latentsync_trt.media.audio import SPEECH_RATE_HZ, RateConverter
from latentsync_trt.types import Float32Array

_BEFORE_S = 0.2
"""Said of what was heard before speech was certain."""

_PAUSE_S = 0.6
"""After so long without speech, the utterance is complete."""


class Microphone:
    """Passes on to a session what somebody says; open until `close`. Not thread-safe."""

    def __init__(self, session: LiveSession, rate_hz: int) -> None:
        self._session, self._rate_hz = session, rate_hz
        self._network, self._converter = VoiceActivity(), RateConverter(rate_hz, SPEECH_RATE_HZ)
        self._held, self._before = np.zeros(0, np.float32), deque[Float32Array]()
        self.speaks, self._pause_s = False, 0.0

    def hear(self, samples: Float32Array) -> None:
        """The next piece, mono `(n,)` float32. What finds no room in the session is lost."""
        self._before.append(samples)
        self._held = np.concatenate([self._held, self._converter.convert(samples)])
        count = len(self._held) // STEP
        if count:
            steps, self._held = np.split(self._held, [count * STEP])
            for chance in self._network.chances(steps.reshape(count, STEP)).tolist():
                self._pause_s = 0.0 if chance >= LEAVE else self._pause_s + STEP_S
                self.speaks = self.speaks or chance >= ENTER
        if not self.speaks:
            while sum(map(len, self._before)) - len(self._before[0]) >= _BEFORE_S * self._rate_hz:
                self._before.popleft()
            return
        try:
            while self._before:
                self._session.say(self._before.popleft(), self._rate_hz)
        except Busy:
            self._before.clear()
        if self._pause_s > _PAUSE_S:
            self.speaks = False
            self._session.end()

    def close(self) -> None:
        self._network.close()
