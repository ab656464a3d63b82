"""Parts of a result are done again: everything else stays byte for byte, and the result stays
where that fails.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import av
import c2pa
import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError, NoFaceError, OutputError
from latentsync_trt.files import work_folder
from latentsync_trt.media import encoder_choice, redo
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.earlier_result import EarlierResult
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.recipe import Ingredients, Recipe
from latentsync_trt.media.redo import PartReplacer, contents_of
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.redo_spans import RedoSpan
from latentsync_trt.spans import FramesToDo, merged_ranges, without
from latentsync_trt.types import Frame, VideoInfo
from tests.certificates import p256, write_pair
from tests.clips import (
    copied,
    decoded,
    number_of,
    numbered,
    write_clip,
    write_face,
    write_sound,
)

MADE_OF = Ingredients({"--video": "file 1"}, {})
FRAMES = 60
GOP_FRAMES = 10
"""Between two keyframes, as `short_gops` sets it for 25 frames/s."""
UNEVEN = (1001, 2002, 1001, 500, 333, 4000, 1001, 1001, 2002, 77)
OPTIONS = SyncOptions(steps=1, guidance=1.0, codec="ffv1")


@pytest.fixture(autouse=True)
def _short_gops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_choice, "KEYFRAMES_S", Fraction(GOP_FRAMES, 25))


def packets_of_streams(path: Path) -> dict[int, list[tuple[int | None, int, bytes]]]:
    """Time, duration and bytes of the packets of each stream."""
    packets: dict[int, list[tuple[int | None, int, bytes]]] = {}
    with av.open(str(path)) as container:
        for packet in container.demux():
            if packet.size:
                each = (packet.pts, packet.duration, bytes(packet))
                packets.setdefault(packet.stream.index, []).append(each)
    return packets


def tags_of(path: Path) -> list[object]:
    """Tags of the file and of its streams, and chapters."""
    with av.open(str(path)) as container:
        tags = {name: text for name, text in container.metadata.items() if "LATENTSYNC" not in name}
        streams = [
            (stream.type, stream.language, stream.disposition, stream.time_base)
            for stream in container.streams
        ]
        return [tags, streams, container.chapters()]


def info_at(time_base: Fraction, rate: Fraction) -> VideoInfo:
    info = picture_info(96, 64, rgb=False)
    return replace(info, time_base=time_base, frames_per_s=rate)


def frames(stamps: list[int], time_base: Fraction, *, inverted: bool = False) -> Iterator[Frame]:
    """Numbered frames at `stamps`, of which the last one is the end."""
    for index, ((start, end), rgb) in enumerate(
        zip(pairwise(stamps), numbered(len(stamps) - 1), strict=True)
    ):
        picture = 255 - rgb if inverted else rgb
        times = (start * time_base, (end - start) * time_base, start * time_base)
        yield Frame(index, *times, picture, None)


def done_again(
    output: Path, info: VideoInfo, options: SyncOptions, pictures: Iterable[Frame], *spans: RedoSpan
) -> FramesToDo:
    earlier = EarlierResult.read(output)
    parts = [earlier.between_keyframes(earlier.frames_at(span)) for span in spans]
    todo = FramesToDo(write=merged_ranges(parts))
    encoder = choose_encoder(options, info)
    contents = contents_of(earlier, encoder, info, FileExtras(mark=True))
    with PartReplacer(earlier, contents, todo) as writer:
        for frame in pictures:
            writer.write(frame)
    return todo


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out.mp4", {"codec": "h264", "encoder": "x264:slow"}),  # the most reordering
        ("out.mkv", {"codec": "h264"}),
        ("out.mov", {"codec": "hevc", "encoder": "x265:ultrafast"}),
        ("out.mkv", {"codec": "hevc", "encoder": "x265:ultrafast"}),
        ("out.mp4", {"codec": "av1"}),
        ("out.mov", {"codec": "prores"}),
        ("out.mkv", {"codec": "ffv1"}),
    ],
)
def test_packets_outside_stay_as_they_are(
    tmp_path: Path, name: str, options: dict[str, Any], *, uneven: bool
) -> None:
    """Of every codec and container, with even and uneven times, sound, another track and tags; two
    spans, of which one is in the first part.
    """
    output = tmp_path / name
    time_base = Fraction(1, 30000)
    steps = (UNEVEN[index % 10] if uneven else 1001 for index in range(FRAMES))
    stamps = list(accumulate(steps, initial=0))
    info = info_at(time_base, Fraction(30000, 1001))
    chosen = SyncOptions(**options)
    track = write_sound(tmp_path / "track.m4a", 2, codec="aac", rate_hz=48_000)
    source = tmp_path / "source.mkv"
    copied(source, write_face(tmp_path / "face.mp4", 3, halved=True), track, track)
    speech = write_sound(tmp_path / "speech.wav", 3, rate_hz=44_100)
    sound = (SoundPiece(speech),)
    extras = FileExtras(sound, source, mark=True, ingredients=MADE_OF)
    with VideoWriter(output, info, choose_encoder(chosen, info), extras) as writer:
        for frame in frames(stamps, time_base):
            writer.write(frame)
    before = packets_of_streams(output)
    tags = tags_of(output)
    assert len(before) == 3
    spans = (
        RedoSpan(Fraction(0), Fraction(1, 20)),
        RedoSpan(stamps[33] * time_base, stamps[34] * time_base),
    )
    todo = done_again(output, info, chosen, frames(stamps, time_base, inverted=True), *spans)
    after = packets_of_streams(output)
    assert tags_of(output) == tags
    assert len(todo.write) < FRAMES / 2
    assert 0 in todo.write
    assert 33 in todo.write
    for index in (1, 2):
        if output.suffix == ".mov":  # which does not keep PCM's packets apart
            assert b"".join(each[2] for each in after[index]) == b"".join(
                each[2] for each in before[index]
            )
        else:
            assert after[index] == before[index]
    times = [sorted(packet[:2] for packet in each[0]) for each in (before, after)]
    assert np.abs(np.subtract(*times)).max(axis=0).tolist() <= [0, int(output.suffix == ".mkv")]
    same = [one == other for one, other in zip(before[0], after[0], strict=True)]
    assert all(equal for index, equal in enumerate(same) if index not in todo.write)
    numbers = [number_of(rgb) for rgb in decoded(output)]
    assert numbers == [255 - i if i in todo.write else i for i in range(FRAMES)]
    assert EarlierResult.read(output).recipe.ingredients == MADE_OF  # and once more


@pytest.mark.parametrize(
    ("name", "speech", "codec"),
    [
        ("out.mp4", "speech.m4a", "aac"),
        ("out.mov", "speech.mp3", "libmp3lame"),
        ("out.mkv", "speech.opus", "libopus"),
        ("out.mp4", "speech.flac", "flac"),
    ],
)
@pytest.mark.parametrize("at_s", [Fraction(0), Fraction(1, 3), Fraction(-1, 5)])
def test_sound_stays_as_it_is(
    tmp_path: Path, name: str, speech: str, codec: str, at_s: Fraction
) -> None:
    """Copied or encoded, with an encoder's delay, later than the picture or cut at its start."""
    output = tmp_path / name
    recording = write_sound(tmp_path / speech, 2.5, codec=codec, rate_hz=48_000)
    info = info_at(Fraction(1, 25), Fraction(25))
    extras = FileExtras((SoundPiece(recording, at_s),), mark=True, ingredients=MADE_OF)
    stamps = list(range(FRAMES + 1))
    with VideoWriter(output, info, choose_encoder(SyncOptions(), info), extras) as writer:
        for frame in frames(stamps, Fraction(1, 25)):
            writer.write(frame)
    before = packets_of_streams(output)
    pictures = frames(stamps, Fraction(1, 25), inverted=True)
    done_again(output, info, SyncOptions(), pictures, RedoSpan(Fraction(1), Fraction(11, 10)))
    after = packets_of_streams(output)
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize("name", ["out.mp4", "out.mov", "out.mkv"])
def test_a_result_that_was_edited_is_refused(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    info = info_at(Fraction(1, 25), Fraction(25))
    encoder = choose_encoder(SyncOptions(), info)
    stamps = list(range(FRAMES + 1))
    with VideoWriter(output, info, encoder, FileExtras(mark=True, ingredients=MADE_OF)) as writer:
        for frame in frames(stamps, Fraction(1, 25)):
            writer.write(frame)
    recipe = Recipe.read(output)
    assert recipe is not None
    assert recipe.end_s == Fraction(FRAMES, 25)
    EarlierResult.read(output)
    edited = tmp_path / f"edited{output.suffix}"
    content = output.read_bytes()
    with av.open(str(output)) as container:
        packet = bytes(next(container.demux(video=0)))
    edited.write_bytes(content.replace(packet[-20:], bytes(20)))
    with pytest.raises(InputError, match=r"another program has changed its picture.*--overwrite"):
        EarlierResult.read(edited)
    edited.write_bytes(content[: len(content) // 2])
    with pytest.raises(LatentSyncError):
        EarlierResult.read(edited)
    copied(edited, output)  # without the box
    if output.suffix != ".mkv":
        with pytest.raises(InputError, match="does not say what it was made of"):
            EarlierResult.read(edited)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A face that is away in the third of six parts."""
    folder = tmp_path_factory.mktemp("clip")
    blank = range(2 * GOP_FRAMES, 3 * GOP_FRAMES)
    face = write_face(folder / "face.mp4", FRAMES, blank=blank, halved=True)
    return face, write_sound(folder / "speech.wav", FRAMES / 25)


@pytest.fixture(scope="module")
def first_result(clip: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a usual run makes of it, with keyframes as in FFV1."""
    output = tmp_path_factory.mktemp("first") / "out.mkv"
    from tests.small import small_bundle

    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        lip_sync.sync(*clip, output, OPTIONS)
    return output


@pytest.fixture
def result(first_result: Path, tmp_path: Path) -> Path:
    return shutil.copy2(first_result, tmp_path / "out.mkv")


@pytest.mark.integration
def test_the_same_seed_gives_the_same_packets(
    clip: tuple[Path, Path], result: Path, lip_sync: LipSync
) -> None:
    """As windows, fades and what carries over between frames are those of the whole run."""
    before = packets_of_streams(result)
    shown = list[tuple[int, int | None]]()
    report = lip_sync.sync(
        *clip,
        result,
        replace(OPTIONS, redo="1.5:1.6"),  # type: ignore[arg-type]
        on_progress=lambda at: shown.append((at.done, at.total)),
    )
    assert packets_of_streams(result) == before
    assert report.frames == report.frames_with_face == 12
    assert report.duration_s == FRAMES / 25
    assert report.redone == ((36 / 25, 48 / 25),)
    assert shown[-1] == (12, 12)
    assert any("encoded anew from 1.44 to 1.92 s" in notice for notice in report.notices)


@pytest.mark.integration
def test_another_seed_changes_only_its_part(
    clip: tuple[Path, Path], result: Path, lip_sync: LipSync
) -> None:
    options = replace(OPTIONS, redo=["1.5-1.6"], seed=7, backup=True)  # type: ignore[arg-type]
    before = decoded(result)
    report = lip_sync.sync(*clip, result, options)
    after = decoded(result)
    same = [np.array_equal(*each) for each in zip(before, after, strict=True)]
    assert [index for index, equal in enumerate(same) if not equal] == [*range(36, 48)]
    kept = result.with_name("out-before.mkv")
    assert all(np.array_equal(*each) for each in zip(before, decoded(kept), strict=True))
    assert any("--seed (not given → 7)" in notice for notice in report.notices)
    assert sorted(path.name for path in result.parent.iterdir()) == ["out-before.mkv", "out.mkv"]


@pytest.mark.integration
def test_the_source_is_left(clip: tuple[Path, Path], result: Path, lip_sync: LipSync) -> None:
    """In the span, with a fade around it; also where it has no face."""
    spans = ["0.9:1.1", "1.64:1.76"]
    options = replace(OPTIONS, redo=spans, keep_source=True)  # type: ignore[arg-type]
    before = decoded(result)
    lip_sync.sync(*clip, result, options)
    after = decoded(result)
    source = decoded(clip[0])
    for index in range(41, 44):
        assert np.array_equal(after[index], source[index])
        assert not np.array_equal(before[index], source[index])
    change = [np.abs(after[i].astype(int) - source[i]).sum() for i in range(36, 42)]
    assert change == sorted(change, reverse=True)
    assert np.array_equal(after[35], before[35])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "outside": ({"redo": "3:4"}, r"--redo 3.0:4.0: .*out.mkv lasts 2.40 s"),
    "ends late": ({"redo": "2:9"}, "lasts 2.40 s"),
    "other options": ({"offset": 40.0}, r"something else: --offset \(not given → 40.0\)"),
    "other encoder": ({"codec": "h264"}, r"--codec \(ffv1 → h264\).*encoder"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_changes_nothing(
    clip: tuple[Path, Path],
    result: Path,
    lip_sync: LipSync,
    changes: dict[str, Any],
    message: str,
) -> None:
    before = result.read_bytes()
    options = replace(OPTIONS, **{"redo": "1:1.2", **changes})
    with pytest.raises(InputError, match=message):
        lip_sync.sync(*clip, result, options)
    assert result.read_bytes() == before
    assert [path.name for path in result.parent.iterdir()] == ["out.mkv"]


@pytest.mark.integration
def test_a_part_without_a_face_stays(
    clip: tuple[Path, Path], result: Path, lip_sync: LipSync
) -> None:
    before = result.read_bytes()
    options = replace(OPTIONS, redo=("0.9:1", "1.6:1.7"))  # type: ignore[arg-type]
    with pytest.raises(NoFaceError, match=r"no face is painted from 0.90 to 1.00 s"):
        lip_sync.sync(*clip, result, options)
    assert result.read_bytes() == before


@pytest.mark.integration
def test_a_full_disk_leaves_the_result(
    clip: tuple[Path, Path], result: Path, lip_sync: LipSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = result.read_bytes()
    monkeypatch.setattr(redo, "make_whole", full)
    with pytest.raises(OutputError, match="No space left"):
        lip_sync.sync(*clip, result, replace(OPTIONS, redo="1.5:1.6"))  # type: ignore[arg-type]
    assert result.read_bytes() == before
    assert [path.name for path in result.parent.iterdir()] == ["out.mkv"]


def test_two_runs_do_not_write_it_at_once(
    clip: tuple[Path, Path], result: Path, lip_sync: LipSync
) -> None:
    if sys.platform == "win32":
        pytest.skip("locks of one process do not exclude it there")
    options = replace(OPTIONS, redo="1.5:1.6")  # type: ignore[arg-type]
    with work_folder(result), pytest.raises(OutputError, match="another run is writing it"):
        lip_sync.sync(*clip, result, options)


def test_other_inputs_and_results_are_refused(
    clip: tuple[Path, Path], result: Path, lip_sync: LipSync, tmp_path: Path
) -> None:
    options = replace(OPTIONS, redo="1.5:1.6")  # type: ignore[arg-type]
    other = write_sound(tmp_path / "speech.wav", 3)
    with pytest.raises(
        InputError, match=r"recordings \(file \w+ → file \w+\); .* files, by name, size and time"
    ):
        lip_sync.sync(clip[0], other, result, options)
    with pytest.raises(InputError, match=r"none.mkv: does not exist"):
        lip_sync.sync(*clip, tmp_path / "none.mkv", options)
    plain = copied(tmp_path / "plain.mkv", clip[0])
    with pytest.raises(InputError, match="does not say what it was made of"):
        lip_sync.sync(*clip, plain, options)
    recipe = Recipe.read(result)
    assert recipe is not None
    assert not {"face.mp4", "speech.wav"} & set(recipe.to_json().decode().split())


@pytest.mark.integration
def test_a_signed_result_is_signed_anew(tmp_path: Path, lip_sync: LipSync) -> None:
    """Of .mp4, of which the signature covers what the file says it was made of."""
    clip = write_clip(tmp_path, 30, halved=True)
    output = tmp_path / "out.mp4"
    pem = write_pair(tmp_path, p256()).pem
    options = replace(OPTIONS, codec=None, c2pa=pem)
    lip_sync.sync(*clip, output, options)
    before = packets_of_streams(output)
    lip_sync.sync(*clip, output, replace(options, redo="0.5:0.6", seed=7))  # type: ignore[arg-type]
    assert packets_of_streams(output)[1] == before[1]
    assert EarlierResult.read(output).recipe.frames == 30
    with c2pa.Reader(str(output)) as reader:
        assert reader.get_validation_state() in ("Valid", "Trusted")


def test_ranges_of_frames() -> None:
    frames = merged_ranges([range(8, 10), range(2, 4), range(3, 6)])
    assert frames.ranges == (range(2, 6), range(8, 10))
    assert [index for index in range(12) if index in frames] == [2, 3, 4, 5, 8, 9]
    assert len(frames) == 6
    assert frames.between(4, 9) == 3
    assert without(range(2, 10), [range(3), range(5, 6)]) == [range(3, 5), range(6, 10)]


def test_options_exclude_each_other() -> None:
    assert SyncOptions(redo=["5:6", "2-4", (3.5, 4.5)]).redo == (  # type: ignore[arg-type]
        RedoSpan(Fraction(2), Fraction(9, 2)),
        RedoSpan(Fraction(5), Fraction(6)),
    )
    for texts in ("5", "6:5", "5:5", "1:2:3", "a:b", [5, 6]):
        with pytest.raises(InputError, match=r"--redo .*: not a begin and a later end"):
            SyncOptions(redo=texts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--keep-source: says nothing without --redo"):
        SyncOptions(keep_source=True)
    with pytest.raises(InputError, match="--redo and --resume exclude each other"):
        SyncOptions(redo="1:2", resume=True)  # type: ignore[arg-type]
