"""Which frames of a clip `demo` shows, and what it says of them."""

from itertools import pairwise

import numpy as np

from latentsync_trt.measure.lips import Curves
from latentsync_trt.measure.moments import speaking_moments
from latentsync_trt.media.demo_clip import SPEECH, SpokenWord, spoken_words

LOUD_DB = -10.0
QUIET_DB = -80.0
WORDS = [SpokenWord("Papa", 0.6, 1.0), SpokenWord("who", 1.0, 1.6, rounded_s=1.24)]


def talk() -> Curves:
    """Silence, then "Papa", wide open with shut lips in its middle, then round lips, silence."""
    gaps = np.full(60, 0.02, np.float32)
    levels_db = np.full((60, 3), QUIET_DB, np.float32)
    levels_db[15:40] = LOUD_DB
    gaps[16:19] = (0.2, 0.28, 0.2)
    gaps[21] = 0.015
    gaps[22:25] = 0.2
    gaps[26:38] = 0.09
    return Curves(gaps, levels_db)


def test_moments_say_what_they_show_and_what_is_spoken() -> None:
    assert speaking_moments(talk(), WORDS) == {
        17: "widest: “Papa”\n0.68 s",
        21: "shut: “Papa”\n0.84 s",
        31: "rounded: “who”\n1.24 s",
        51: "silent\n2.04 s",
    }


def test_a_clip_without_such_frames_shows_fewer() -> None:
    curves = Curves(np.full(30, np.nan, np.float32), np.full((30, 3), LOUD_DB, np.float32))
    assert speaking_moments(curves, []) == {}


def test_a_word_is_not_shown_as_rounded_while_lips_are_shut() -> None:
    shut_at_once = [SpokenWord("Papa", 0.6, 1.0, rounded_s=0.84)]
    labels = speaking_moments(talk(), shut_at_once).values()
    assert not any(label.startswith("rounded") for label in labels)


def test_a_word_after_the_end_of_the_clip_shows_nothing() -> None:
    words = [SpokenWord("boats", 9.0, 9.4, rounded_s=9.2)]
    labels = speaking_moments(talk(), words).values()
    assert not any(label.startswith("rounded") for label in labels)


def test_words_of_the_built_in_speech_follow_each_other() -> None:
    words = spoken_words(SPEECH)
    assert [word.text for word in words][:3] == ["My", "lips", "follow"]
    assert all(before.end_s <= after.start_s for before, after in pairwise(words))
    rounded = [word for word in words if word.rounded_s is not None]
    assert [word.text for word in rounded] == ["follow", "words", "boats"]
    assert all(word.start_s <= (word.rounded_s or 0) < word.end_s for word in rounded)
