"""Live sessions: what is given at each frame, without networks and under a clock that stands
still.
"""

from itertools import pairwise

import numpy as np
import pytest

from latentsync_trt import LiveFrame
from latentsync_trt.errors import Busy, InferenceError, InputError
from latentsync_trt.live.speech_queue import SpeechQueue
from latentsync_trt.media.audio import RateConverter
from latentsync_trt.types import Float32Array
from tests.live import Held, ToyPainter, kinds, shares, take, toy_session, until_idle, voice


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("piece_s", [0.02, 0.1, 0.337, 1.0])
def test_all_speech_is_heard_once_in_order_whatever_its_pieces(
    rate_hz: int, piece_s: float
) -> None:
    painter = ToyPainter()
    speech = voice(3.21, rate_hz)
    piece = round(piece_s * rate_hz)
    heard = list[LiveFrame]()
    with toy_session(painter) as session:
        for start in range(0, len(speech), piece):
            session.say(speech[start : start + piece], rate_hz)
            heard += take(session, round(piece_s * 25))
        session.end()
        heard += until_idle(session)
    sound = np.concatenate([frame.sound for frame in heard if frame.speaking])
    spoken = [one.spoken for planned, _ in painter.windows for one in planned if one.spoken.samples]
    by_network = np.concatenate([each.heard for each in spoken])
    for converted, to_hz in ((sound, 48_000), (by_network, 16_000)):
        converter = RateConverter(rate_hz, to_hz)
        whole = np.concatenate([converter.convert(speech), converter.convert(None)])
        assert np.array_equal(converted[: len(whole)], whole)
        assert not converted[len(whole) :].any()
    assert len(sound) < 3.25 * 48_000 + 1920
    assert [frame.ends for frame in heard if frame.speaking] == [False] * (
        len(sound) // 1920 - 1
    ) + [True]


@pytest.mark.parametrize("count", [1, 3])
def test_utterances_follow_without_a_pause_and_the_mouth_fades_in_and_out_and_closes(
    count: int,
) -> None:
    with toy_session() as session:
        for _ in range(count):
            session.say(voice(10 * 0.04), 16_000)
            session.end()
        frames = [*until_idle(session), *take(session, 2)]
    assert kinds(frames) == "." + "s" * 10 * count + "q" * 5 + ".."
    assert shares(frames) == [0, 1, 2, 3, *[4] * (10 * count - 1), 3, 2, 1, 0, 0]
    assert [frame.utterance for frame in frames if frame.ends] == list(range(1, count + 1))


def test_an_utterance_that_ends_after_all_of_it_was_given_is_said_to_have_ended() -> None:
    with toy_session(sound_rate_hz="16000") as session:
        session.say(voice(0.4), 16_000)
        frames = take(session, 32)
        # a word without an end is said, too
        assert kinds(frames) == "." * 11 + "s" * 10 + "q" * 5 + "......"
        assert not any(frame.ends for frame in frames)
        session.end()
        frame = next(session)
        assert (frame.ends, frame.utterance, frame.speaking) == (True, 1, False)


def test_starved_of_speech_it_paints_what_there_is_then_silence_then_idles() -> None:
    with toy_session() as session:
        session.say(voice(12 * 0.04 + 0.02), 16_000)  # and half a frame, which waits
        frames = take(session, 21)
        assert kinds(frames) == "." + "s" * 12 + "q" * 5 + "..."
        assert session.counts.starved == 5
        session.say(voice(0.5), 16_000)
        session.end()
        later = until_idle(session)
    assert kinds(later) == "." + "s" * 13 + "q" * 5
    assert [frame.utterance for frame in later[1:14]] == [1] * 13


def test_speech_that_comes_back_during_the_painted_silence_goes_on() -> None:
    with toy_session(hop=4) as session:
        session.say(voice(4 * 0.04 + 0.13), 16_000)
        first = take(session, 9)  # 7 of speech; the window of silence has four of the five frames
        assert kinds(first) == "." + "s" * 7 + "q"
        session.say(voice(0.6), 16_000)
        session.end()
        later = until_idle(session)
    assert kinds(later) == "qqq" + "s" * 16 + "q" * 5
    assert shares([*first, *later])[6:17] == [4, 4, 4, 4, 3, 2, 3, 4, 4, 4, 4]


def test_slow_painting_repeats_the_picture_and_loses_nothing() -> None:
    painting = Held()
    speech = voice(2.0)
    with toy_session(painting=painting, hop=8) as session:
        session.say(speech, 16_000)
        session.end()
        frames = []
        for tick in range(140):  # a window of 8 takes 12 frames
            if tick % 12 == 11:
                painting.release()
            frames += take(session, 1)
        assert session.idle
    assert session.counts.late == kinds(frames).count("L") > 10
    assert kinds(frames).count("s") == 50
    for before, frame in pairwise(frames):
        if frame.late:
            assert frame.planes is before.planes
            assert not frame.sound.any()
    sound = np.concatenate([frame.sound for frame in frames if frame.speaking])[::3]
    assert np.corrcoef(sound, speech)[0, 1] > 0.5  # in order, apart from what 48 kHz leave of 8 kHz


def test_stop_fades_sound_in_20_ms_and_the_mouth_in_three_frames() -> None:
    with toy_session() as session:
        session.say(np.full(16_000, 0.5, np.float32), 16_000)
        session.end()
        before = take(session, 11)
        assert session.stop() == pytest.approx(0.4)
        after = take(session, 6)
        assert session.idle
    assert shares([*before[-1:], *after]) == [4, 3, 2, 1, 0, 0, 0]
    assert not any(frame.speaking or frame.ends for frame in after)
    fade = after[0].sound
    assert fade[0] == pytest.approx(0.5, abs=1e-3)
    assert np.all(np.diff(fade[:960]) < 0)
    assert not fade[960:].any()
    assert not any(frame.sound.any() for frame in after[1:])


def test_stop_while_it_paints_speaks_and_fades() -> None:
    painting = Held()
    with toy_session(painting=painting) as session:
        session.say(voice(1.0), 16_000)
        assert session.stop() == 0  # the first window is being painted
        assert kinds(take(session, 2)) == ".."
        painting.release()  # and was not wanted any more
        assert session.idle
        assert kinds(take(session, 3)) == "..."
        session.say(voice(1.0), 16_000)
        painting.release()
        assert kinds(take(session, 5)) == ".ssss"
        assert session.stop() == pytest.approx(0.16)  # it speaks, and paints the second window
        assert session.stop() == 0  # it fades
        assert kinds(take(session, 4)) == "qqq."
        painting.release()
        assert session.idle


def test_more_speech_than_the_buffer_holds_is_refused_whole() -> None:
    with toy_session(buffer_s=1.0) as session:
        assert session.say(voice(0.9), 16_000) == pytest.approx(0.9, abs=0.05)
        with pytest.raises(Busy, match="--buffer-s"):
            session.say(voice(0.9), 16_000)
        session.end()
        assert kinds(until_idle(session)).count("s") == 23


@pytest.mark.parametrize(
    ("samples", "rate_hz"),
    [
        (np.zeros(160, np.float32), 7_999),
        (np.zeros((160, 2), np.int16), 16_000),
        (np.zeros(160, np.float64), 16_000),
        (np.full(160, np.nan, np.float32), 16_000),
    ],
)
def test_speech_that_cannot_be_used_is_refused(samples: Float32Array, rate_hz: int) -> None:
    with toy_session() as session, pytest.raises(InputError, match="say: "):
        session.say(samples, rate_hz)


def test_16_bit_samples_keep_their_values() -> None:
    speech = SpeechQueue(16_000, 60.0, lambda: 0.0)
    speech.say(np.arange(640, dtype=np.int16), 16_000)
    assert np.array_equal(speech.take().sound * 32768, np.arange(640))


def test_an_error_of_painting_is_raised_and_ends_the_session() -> None:
    session = toy_session(ToyPainter(InferenceError("the graph failed")))
    session.say(voice(1.0), 16_000)
    with pytest.raises(InferenceError, match="the graph failed"):
        take(session, 2)
    assert not list(session)


@pytest.mark.parametrize("slower", [1.0, 1.1])
@pytest.mark.parametrize(
    ("hop", "paint_ms", "piece_ms"), [(16, 400, 20), (8, 230, 20), (8, 120, 40), (4, 120, 10)]
)
def test_by_microphone_nothing_is_late_and_the_delay_is_hop_look_ahead_and_painting(
    hop: int, paint_ms: int, piece_ms: int, slower: float
) -> None:
    """Also where every third painting takes a tenth longer than was measured."""
    clock_ms = 0
    done_ms = 0
    painter = ToyPainter()
    painting = Held()
    session = toy_session(
        painter, painting, lambda: clock_ms / 1000, paint_s=paint_ms / 1000, hop=hop
    )
    frames = list[LiveFrame]()
    speech = voice(8.0)
    piece = 16 * piece_ms
    with session:
        for clock_ms in range(0, 10_000, 5):
            if painting.waiting and not done_ms:
                done_ms = clock_ms + paint_ms * (slower if len(painter.windows) % 3 == 2 else 1)
            if done_ms and clock_ms >= done_ms:
                painting.release()
                done_ms = 0
            if clock_ms % piece_ms == 0 and clock_ms < 8000:
                session.say(speech[16 * clock_ms : 16 * clock_ms + piece], 16_000)
            if clock_ms == 8000:
                session.end()
            if clock_ms % 40 == 15:
                frames += take(session, 1)
    assert session.counts.late == session.counts.starved == 0
    assert session.counts.spoken == 200
    sizes = [len(planned) for planned, _ in painter.windows]
    assert set(sizes[:-2]) == {hop}
    assert min(ahead for _, ahead in painter.windows[:-2]) >= 16 * (160 - 40)
    delays_ms = [1000 * frame.delay_s for frame in frames if frame.delay_s is not None]
    assert max(delays_ms) <= hop * 40 + 160 + 1.1 * paint_ms + 80
    assert max(delays_ms) - min(delays_ms[: 200 - hop]) <= piece_ms + 40
