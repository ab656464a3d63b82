"""Parts of a video in the making: joined to the exact stamps, and gone on with after an end at any
moment.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import pytest
from hypothesis import given
from hypothesis import strategies as some

from latentsync_trt import SyncOptions
from latentsync_trt.errors import MediaError, OutputError
from latentsync_trt.files import GO_ON, KEPT_NAME, work_folder_of
from latentsync_trt.media import parts
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.parts import FinishedParts, ResumeRequest
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.types import Frame
from tests.clips import number_of, numbered

NTSC = Fraction(30000, 1001)
UNEVEN = (1001, 2002, 1001, 500, 333, 4000, 1001, 1001, 2002, 77)
WORK = ResumeRequest({"clip.mp4": "5 bytes", "--crf": "16"})


@pytest.fixture(autouse=True, scope="module")
def _short_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_S", Fraction(1, 2))
        yield


def stamps_of(periods: Iterable[int]) -> list[int]:
    return list(accumulate(periods, initial=0))


def frames(stamps: list[int], time_base: Fraction) -> Iterator[Frame]:
    """Numbered frames at `stamps`, of which the last one is the end."""
    for index, ((start, end), rgb) in enumerate(
        zip(pairwise(stamps), numbered(len(stamps) - 1), strict=True)
    ):
        yield Frame(
            index, start * time_base, (end - start) * time_base, start * time_base, rgb, None
        )


def writer_of(
    output: Path, time_base: Fraction, work: ResumeRequest | None = None, **options: Any
) -> VideoWriter:
    info = picture_info(96, 64, rgb=False)
    info = replace(info, time_base=time_base, frames_per_s=NTSC, sample_aspect_ratio=Fraction(4, 3))
    return VideoWriter(output, info, choose_encoder(SyncOptions(**options), info), resume=work)


def write(
    output: Path,
    stamps: list[int],
    time_base: Fraction,
    work: ResumeRequest | None = None,
    **options: Any,
) -> int:
    """Writes all frames; returns how many an earlier run had written."""
    with writer_of(output, time_base, work, **({"codec": "ffv1"} | options)) as writer:
        for frame in frames(stamps, time_base):
            writer.write(frame)
        return writer.frames_done


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out.mp4", {"codec": "h264", "encoder": "x264:slow"}),  # the most reordering
        ("out.mkv", {"codec": "h264"}),
        ("out.mp4", {"codec": "av1"}),
        ("out.mov", {"codec": "prores"}),
    ],
)
def test_parts_become_one_stream(
    tmp_path: Path, name: str, options: dict[str, Any], *, uneven: bool
) -> None:
    """Of every codec, with the stamps of the frames, ascending decoding stamps, and the end of the
    last picture.
    """
    time_base = Fraction(1, 30000)
    output = tmp_path / name
    stamps = stamps_of(UNEVEN[index % 10] if uneven else 1001 for index in range(90))
    write(output, stamps, time_base, **options)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with av.open(str(output)) as container:
        stream = container.streams.video[0]
        unit = stream.time_base
        assert unit == (time_base if output.suffix != ".mkv" else Fraction(1, 1000))
        packets = [packet for packet in container.demux(stream) if packet.size]
        shown = sorted(packet.pts * unit for packet in packets if packet.pts is not None)
        assert (
            max(abs(at - stamp * time_base) for at, stamp in zip(shown, stamps[:-1], strict=True))
            < unit
        )
        decoded = [packet.dts for packet in packets if packet.dts is not None]
        assert decoded == sorted(set(decoded))
        if stream.duration:
            end_s = stream.duration * unit
        else:
            end_s = Fraction(container.duration or 0, av.time_base)
        assert abs(end_s - stamps[-1] * time_base) < unit
        if not uneven:
            assert stream.average_rate == NTSC
    with av.open(str(output)) as container:
        numbers = [
            number_of(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)
        ]
    assert numbers == list(range(90))


def content(path: Path) -> list[tuple[int | None, bytes]]:
    with av.open(str(path)) as container:
        return [(frame.pts, frame.to_ndarray().tobytes()) for frame in container.decode(video=0)]


@given(some.lists(some.integers(1, 400), min_size=1, max_size=25), some.data())
def test_a_run_that_ends_at_any_moment_goes_on_to_the_same_frames(
    periods: list[int], data: some.DataObject
) -> None:
    """The folder is copied between any two frames, as a killed process leaves it, once or several
    times.
    """
    time_base = Fraction(1, 1000)
    stamps = stamps_of(periods)
    with TemporaryDirectory() as temporary:
        output = Path(temporary) / "whole.mkv"
        write(output, stamps, time_base, WORK)
        expected = content(output)
        kept: Path | None = None
        for run in range(data.draw(some.integers(1, 3), label="ends")):
            killed_at = data.draw(some.integers(0, len(periods)), label="frame")
            output = Path(temporary) / f"{run}" / "out.mkv"
            output.parent.mkdir()
            if kept is not None:
                shutil.copytree(kept, work_folder_of(output))
            with writer_of(output, time_base, replace(WORK, resume=True), codec="ffv1") as writer:
                for frame in frames(stamps, time_base):
                    if frame.index == killed_at:
                        break
                    if frame.index >= writer.frames_done:
                        writer.write(frame)
                kept = Path(temporary) / f"kept{run}"
                shutil.copytree(work_folder_of(output), kept)
                for frame in frames(stamps, time_base):
                    writer.write(frame) if frame.index >= killed_at else None
            assert content(output) == expected


FIFTIETH = Fraction(1, 50)


def interrupted(output: Path, count: int = 40, codec: str = "ffv1") -> Path:
    """The folder that an interrupted run of `output` has kept: parts of 25 frames, and an open
    one.
    """
    with (
        pytest.raises(KeyboardInterrupt) as error,
        writer_of(output, FIFTIETH, WORK, codec=codec) as writer,
    ):
        for frame in frames(list(range(count + 1)), FIFTIETH):
            writer.write(frame)
        raise KeyboardInterrupt
    assert getattr(error.value, "__notes__", []) == [GO_ON]
    return work_folder_of(output)


@pytest.mark.parametrize("codec", ["ffv1", "h264", "hevc"])
@pytest.mark.parametrize("count", [1, 10])
def test_the_open_part_is_kept_where_a_run_stops(tmp_path: Path, codec: str, count: int) -> None:
    """Also of the first half minute. A run that begins anew and is stopped, too, does not replace
    it.
    """
    output = tmp_path / "out.mkv"
    stamps = list(range(41))
    folder = interrupted(output, count, codec=codec)
    interrupted(output, 1, codec=codec)
    assert FinishedParts.read(folder).frames == count  # type: ignore[union-attr]
    assert write(output, stamps, FIFTIETH, replace(WORK, resume=True), codec=codec) == count
    with av.open(str(output)) as container:
        pictures = container.decode(video=0)
        assert [number_of(frame.to_ndarray(format="rgb24")) for frame in pictures] == list(
            range(40)
        )


def test_nothing_is_kept_where_an_input_has_to_be_changed(tmp_path: Path) -> None:
    with (
        pytest.raises(MediaError) as error,
        writer_of(tmp_path / "out.mkv", FIFTIETH, WORK, codec="ffv1") as writer,
    ):
        for frame in frames(list(range(5)), FIFTIETH):
            writer.write(frame)
        raise MediaError("clip.mp4: breaks off")
    assert not hasattr(error.value, "__notes__")
    assert list(tmp_path.iterdir()) == []


def names(folder: Path) -> list[str]:
    return sorted(path.suffix or path.name for path in folder.iterdir())


def test_a_run_that_does_not_go_on_keeps_the_parts_until_it_has_its_own(tmp_path: Path) -> None:
    output = tmp_path / "out.mkv"
    folder = interrupted(output)
    before = (folder / KEPT_NAME).read_bytes()
    writer = writer_of(output, FIFTIETH, WORK, codec="ffv1")
    (notice,) = (text for text in writer.notices if "--resume" in text)
    assert "0:00:00 of an interrupted run" in notice
    with writer:
        for frame in frames(list(range(61)), FIFTIETH):
            assert ((folder / KEPT_NAME).read_bytes() == before) == (frame.index <= 25)
            writer.write(frame)
    assert names(tmp_path) == [".mkv"]
    assert len(content(output)) == 60


@pytest.mark.parametrize("damage", ["not JSON", "a file elsewhere", "a link", "a part is cut"])
def test_what_is_damaged_is_made_anew(tmp_path: Path, damage: str) -> None:
    output = tmp_path / "out.mkv"
    folder = interrupted(output, 60)
    listing = folder / KEPT_NAME
    (first, second, _) = FinishedParts.read(folder).parts  # type: ignore[union-attr]
    if damage == "not JSON":
        listing.write_text(listing.read_text()[:-20])
    elif damage == "a file elsewhere":
        said = json.loads(listing.read_text())
        said["parts"][0]["file"] = f"../{folder.name}/{first.file}"
        listing.write_text(json.dumps(said))
    elif damage == "a link":
        (folder / first.file).rename(tmp_path / "elsewhere")
        (folder / first.file).symlink_to(tmp_path / "elsewhere")
    else:
        (folder / second.file).write_bytes((folder / second.file).read_bytes()[:-1])
    done = write(output, list(range(61)), FIFTIETH, replace(WORK, resume=True))
    assert done == (25 if damage == "a part is cut" else 0)
    assert len(content(output)) == 60
    (tmp_path / "elsewhere").unlink(missing_ok=True)
    assert names(tmp_path) == [".mkv"]


@pytest.mark.skipif(os.name == "nt", reason="needs a right on Windows")
def test_parts_and_result_of_a_linked_output_lie_where_the_link_leads(tmp_path: Path) -> None:
    """On the disk that has the room for them; what was private stays so."""
    link = tmp_path / "out.mkv"
    real = tmp_path / "large" / "real.mkv"
    real.parent.mkdir()
    real.touch(0o600)
    link.symlink_to(real)
    assert interrupted(link).parent == real.parent
    assert write(link, list(range(41)), FIFTIETH, replace(WORK, resume=True)) > 0
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert len(content(real)) == 40
    assert names(real.parent) == [".mkv"]


def test_two_runs_cannot_write_one_output(tmp_path: Path) -> None:
    output = tmp_path / "out.mkv"
    with (
        pytest.raises(OutputError, match="another run is writing it"),
        writer_of(output, FIFTIETH, WORK),
    ):
        writer_of(output, FIFTIETH, WORK).__enter__()
    assert list(tmp_path.iterdir()) == []
