"""How a video is played: at its own times or another rate, and what follows its end."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise
from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.media.playback import HELD_S, LONGEST_PERIOD_S, Playback, VideoPasses, played
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import Timed, stamp_packet
from tests.clips import number_of, numbered, write_video

durations = st.lists(st.fractions(Fraction(1, 100), 1, max_denominator=100), min_size=1, max_size=8)


@dataclass(frozen=True)
class Film:
    """Pictures 0, 1, … that last so long."""

    durations_s: list[Fraction]

    @property
    def period_s(self) -> Fraction:
        return min(sum(self.durations_s, Fraction(0)) / len(self.durations_s), Fraction(1, 10))

    def forward(self) -> Iterator[Timed[int]]:
        time_s = Fraction(0)
        for number, duration_s in enumerate(self.durations_s):
            yield Timed(time_s, duration_s, number)
            time_s += duration_s

    def backward(self) -> Iterator[Timed[int]]:
        yield from [*self.forward()][-2::-1]


def shown_once(
    film: Film, extend: Extend, duration_s: Fraction, delay_s: Fraction
) -> list[tuple[Fraction, int]]:
    """When each picture begins, picture by picture; a held one every period."""
    count = len(film.durations_s)
    shown = list[tuple[Fraction, int]]()
    at_s = delay_s
    step = 0
    while at_s < duration_s:
        if extend == "pingpong":
            phase = step % max(2 * count - 2, 1)
            number = min(phase, 2 * count - 2 - phase)
            turns = step and phase in (0, count - 1)
        else:
            number = step % count
            turns = step % count == count - 1
        shown.append((at_s, number))
        at_s += film.durations_s[number]
        ends = (turns or count == 1) if extend == "pingpong" else turns
        if ends and (count == 1 or duration_s - at_s < HELD_S):
            while at_s < duration_s:
                shown.append((at_s, number))
                at_s += film.period_s
        step += 1
    return shown


@given(
    durations,
    st.sampled_from(["pingpong", "loop"]),
    st.fractions(0, 9, max_denominator=50),
    st.fractions(0, 2, max_denominator=100),
)
def test_every_end_is_extended_as_told(
    durations_s: list[Fraction], extend: Extend, duration_s: Fraction, delay_s: Fraction
) -> None:
    film = Film(durations_s)
    frames = list(played(film, Playback(None, duration_s, extend, delay_s)))
    assert all(one.end_s == following.time_s for one, following in pairwise(frames))
    starts_s = {picture.item: picture.time_s for picture in film.forward()}
    assert all(frame.item.time_s == starts_s[frame.item.item] for frame in frames)
    if not duration_s:
        assert frames == []
        return
    changes = [list(same) for _, same in groupby(frames, lambda frame: frame.item.item)]
    expected = [
        next(same)
        for _, same in groupby(shown_once(film, extend, duration_s, delay_s), lambda one: one[1])
    ]
    assert [(same[0].time_s, same[0].item.item) for same in changes] == [(0, 0), *expected[1:]]
    assert all(frame.duration_s <= LONGEST_PERIOD_S + 2 * film.period_s for frame in frames)
    assert duration_s <= frames[-1].end_s <= duration_s + film.period_s
    assert all(frame.duration_s >= film.period_s for same in changes for frame in same[1:])


@given(durations, st.fractions(0, 2, max_denominator=100), st.fractions(1, 9, max_denominator=50))
def test_a_constant_rate_shows_what_is_on_screen(
    durations_s: list[Fraction], delay_s: Fraction, duration_s: Fraction
) -> None:
    film = Film(durations_s)
    frames = list(played(film, Playback(Fraction(25), duration_s, "pingpong", delay_s)))
    assert [frame.time_s for frame in frames] == [
        Fraction(k, 25) for k in range(-(-duration_s * 25 // 1))
    ]
    shown = shown_once(film, "pingpong", duration_s + 1, delay_s)
    for frame in frames[:-13]:  # whether the last ones are held depends on the duration
        middle_s = frame.time_s + Fraction(1, 50)
        assert frame.item.item == next(
            (number for start_s, number in reversed(shown) if start_s < middle_s), 0
        )


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi"])
@pytest.mark.parametrize("fps", [Fraction(24000, 1001), 25, Fraction(60000, 1001)])
def test_a_constant_rate_keeps_its_exact_times(
    tmp_path: Path, suffix: str, fps: Fraction | int
) -> None:
    clip = write_video(
        tmp_path / f"clip.{suffix}", numbered(20), fps, options={"bf": "0", "preset": "ultrafast"}
    )
    frames = list(read_frames(clip))
    info = probe(clip)
    expected = [(number, number / Fraction(fps), number / Fraction(fps)) for number in range(20)]
    assert [(number_of(frame.rgb), frame.time_s, frame.source_s) for frame in frames] == expected
    assert {frame.duration_s for frame in frames} == {1 / Fraction(fps)}
    assert info.frames_per_s == fps and info.time_base is not None
    assert suffix == "ts" or (1 / Fraction(fps) / info.time_base).denominator == 1


def without_rate(clip: Path) -> Path:
    """Makes the duration of a picture in a Matroska file's header a part without meaning (Void)."""
    content = bytearray(clip.read_bytes())
    at = content.index(b"\x23\xe3\x83")
    id_bytes = 3
    length = content[at + id_bytes] & 0x7F
    content[at : at + id_bytes + 1 + length] = bytes(
        [0xEC, 0x80 | (length + 2), *bytes(length + 2)]
    )
    clip.write_bytes(content)
    return clip


@pytest.mark.parametrize(
    ("times", "rate", "frames"),
    [
        ([0, 7000], 25, 176),
        ([index * 17 + index * 7 % 11 for index in range(40)], 59, 40),
        # half a second is held
        ([0, 2, *(500 + index * 40 + index * 7 % 11 for index in range(13))], 25, 26),
    ],
)
def test_a_rate_that_no_header_states_is_that_of_the_pictures(
    tmp_path: Path, times: list[int], rate: int, frames: int
) -> None:
    """As in recordings of browsers and screens, for which FFmpeg has 1000 frames/s."""
    clip = without_rate(write_video(tmp_path / "clip.mkv", numbered(len(times)), times=times))
    info = probe(clip)
    assert info.frames_per_s is not None
    assert abs(info.frames_per_s - rate) < 1
    assert len(list(read_frames(clip))) == frames


def test_raw_dv_of_a_camcorder_has_the_rate_of_its_pictures(tmp_path: Path) -> None:
    """FFmpeg has its unit of time as the mean rate, 60000 frames/s."""
    clip = write_video(tmp_path / "clip.avi", numbered(5, 576, 720), codec="dvvideo", options={})
    with av.open(str(clip)) as container:
        raw = b"".join(bytes(packet) for packet in container.demux(video=0))
    clip = tmp_path / "clip.dv"
    clip.write_bytes(raw)
    assert probe(clip).frames_per_s == 25
    assert len(list(read_frames(clip))) == 5


def packed_as_by_divx(source: Path, target: Path) -> Path:
    """The MPEG-4 of an AVI with one B picture between two others, each packed with the one before;
    a packet of six bytes follows, which says that nothing is new.
    """
    with av.open(str(source)) as opened, av.open(str(target), "w") as container:
        copy = container.add_stream_from_template(opened.streams.video[0])
        pictures = [bytes(packet) for packet in opened.demux(video=0) if packet.size]
        packets = [b"\0\0\1\xb2DivX503b1393p" + pictures[0]]
        for reference, between in zip(pictures[1::2], pictures[2::2], strict=True):
            packets += [reference + between, b"\0\0\1\xb6\x51\xcf"]
        for index, content in enumerate(packets):
            packet = av.Packet(content)
            packet.is_keyframe = index == 0
            stamp_packet(packet, copy, index, MODEL_FPS)
            container.mux(packet)
    return target


def test_no_picture_of_divx_is_lost(tmp_path: Path) -> None:
    """FFmpeg's stamps of such pictures go back and forth."""
    options = {"bf": "1", "g": "100", "qscale": "1"}
    plain = write_video(tmp_path / "plain.avi", numbered(15), codec="mpeg4", options=options)
    clip = packed_as_by_divx(plain, tmp_path / "packed.avi")
    frames = list(read_frames(clip))
    assert [number_of(frame.rgb) for frame in frames] == list(range(15))
    assert [frame.time_s * MODEL_FPS for frame in frames] == list(range(15))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip.mp4", {"g": "10"}),
        ("clip.ts", {"g": "10"}),
        ("clip.h264", {"g": "10"}),  # no stamps
        ("intra.mp4", {"x264-params": "intra-refresh=1:keyint=10"}),  # one keyframe
    ],
)
def test_any_file_is_played_backwards(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    clip = write_video(
        tmp_path / name, numbered(60), 30, options={"preset": "veryfast", "crf": "8", **options}
    )
    assert probe(clip).frames_per_s == 30
    video = VideoPasses(clip, chunk_bytes=9 * 96 * 64 * 3 // 2)
    frames = list(played(video, Playback(None, Fraction(125, 30), "pingpong")))
    pictures = [frame.item.item.to_ndarray(format="rgb24") for frame in frames]
    numbers = [number_of(picture) for picture in pictures]
    assert numbers == [*range(60), *range(58, -1, -1), *[0] * 6]
    for number, frame, picture in zip(numbers, frames, pictures, strict=True):
        assert (picture == pictures[number]).all()
        assert frame.item.time_s == frames[number].item.time_s
