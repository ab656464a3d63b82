"""`--profile`: where the time went, as a table and as a trace."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.manifest import AUDIO_ENCODER
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.runtime.sessions.trace import TABLE_NAME, TRACE_NAME, Trace, write_profile
from latentsync_trt.types import EngineTime
from tests.clips import STAGES, write_clip
from tests.device import GRAPHS
from tests.small import small_bundle

pytestmark = pytest.mark.integration

QUICK = SyncOptions(steps=2, cache_interval=2)
WINDOWS = 2

PARTS = {AUDIO_ENCODER: "encode audio", "vae_encoder": "encode faces", "vae_decoder": "decode faces"}

CLOCKS_US = 50_000
"""ONNX Runtime starts its clock some time after the session's constructor is called: reading the graph comes first."""

TIME = EngineTime("vae_encoder", "cpu", 1.0, built=True, build_s=2.0, open_s=0.5, runs=3, first_ms=9.0, mean_ms=4.0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), 20)


def profiled(clip: tuple[Path, Path], folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Events of a run's trace."""
    with LipSync.from_bundle(small_bundle(), "cpu", RuntimeOptions(profile=folder, **options)) as lip_sync:
        lip_sync.sync(*clip, folder.parent / "out.mp4", QUICK)
        assert lip_sync.close() == (folder / TABLE_NAME, folder / TRACE_NAME)
    assert sorted(path.name for path in folder.iterdir()) == [TABLE_NAME, TRACE_NAME]
    return events_in(folder)


def events_in(folder: Path) -> list[dict[str, Any]]:
    events = json.loads((folder / TRACE_NAME).read_text(encoding="utf-8"))["traceEvents"]
    assert isinstance(events, list)
    return events


@pytest.fixture(scope="module")
def folder(clip: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of a usual run."""
    place = tmp_path_factory.mktemp("usual")
    profiled(clip, place / "profile für Ženy", engine_cache=place / "cache")
    return place / "profile für Ženy"


def process_names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def rows(folder: Path, heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its first two lines."""
    section = (folder / TABLE_NAME).read_text(encoding="utf-8").split(f"# {heading}")[1].split("\n# ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_stages_and_engines_share_one_time_line(folder: Path) -> None:
    events = events_in(folder)
    names = process_names(events)
    assert sorted(names.values()) == sorted(["stages", *GRAPHS])
    timed = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"X", "M"}
    for event in timed:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["ts"] > 0
        assert event["dur"] >= 0
        assert event["pid"] in names
    spans = [event for event in timed if names[event["pid"]] == "stages"]
    assert {event["name"] for event in spans} == STAGES | {f"open {graph}" for graph in GRAPHS}
    runs = [event for event in timed if event["name"] == "model_run"]
    # Four pictures at a time are encoded with and without mask, then decoded; of the steps one is cached.
    assert len(runs) == WINDOWS * (4 + 4 + 4 + 2) + 1  # the speech is encoded once
    for run in runs:
        stage = PARTS.get(names[run["pid"]], "denoise")
        start, end = run["ts"] + CLOCKS_US, run["ts"] + run["dur"] - CLOCKS_US
        within = [span for span in spans if span["name"] == stage and span["ts"] <= start]
        assert any(end <= span["ts"] + span["dur"] for span in within)
    loading = [event for event in timed if event["name"] == "session_initialization"]
    (opening,) = (event for event in spans if event["name"] == "open")
    assert len(loading) == len(GRAPHS)
    for event in loading:
        assert opening["ts"] <= event["ts"] + CLOCKS_US
        assert event["ts"] + event["dur"] <= opening["ts"] + opening["dur"] + CLOCKS_US


def test_the_table_has_a_line_for_every_engine(folder: Path) -> None:
    engines = {row[0]: row[1:] for row in rows(folder, "Engines")}
    assert set(engines) == set(GRAPHS)
    provider, share, build_s, opened, open_s, runs, first_ms, mean_ms = engines["denoise_step"]
    assert (provider, share, build_s, opened, runs) == ("cpu", "100.0%", "0.0", "1", str(WINDOWS))
    assert float(open_s) > 0
    assert float(first_ms) > 0
    assert float(mean_ms) > 0
    operators = rows(folder, "The 25 slowest operators")
    milliseconds = [float(row[4]) for row in operators]
    assert milliseconds == sorted(milliseconds, reverse=True)
    assert {row[0] for row in operators} <= set(GRAPHS)
    assert {row[2] for row in operators} == {"CPU"}
    assert any("Conv" in row[1] for row in operators)


def test_sessions_that_are_opened_again_are_all_there(clip: tuple[Path, Path], tmp_path: Path) -> None:
    events = profiled(clip, tmp_path / "profile", low_memory=True)
    found = sorted(process_names(events).values())
    engines = {row[0]: (int(row[4]), int(row[6])) for row in rows(tmp_path / "profile", "Engines")}
    assert found == sorted(["stages", *(graph for graph, (opened, _) in engines.items() for _ in range(opened))])
    assert engines["vae_encoder"][0] > 1
    for graph, count in (("vae_encoder", 8), ("vae_decoder", 4), ("denoise_step", 1)):
        assert engines[graph][1] == WINDOWS * count
    runs_traced = sum(event["name"] == "model_run" for event in events)
    assert runs_traced == sum(runs for _, runs in engines.values())


def test_the_command_names_both_files(tmp_path: Path) -> None:
    video, audio = map(str, write_clip(tmp_path, 4))
    arguments = ["--video", video, "--audio", audio, "-o", str(tmp_path / "out.mp4"), "--steps", "1"]
    options = ["--bundle", str(small_bundle()), "--provider", "cpu", "--profile", str(tmp_path / "profile")]
    result = CliRunner().invoke(main, ["sync", *arguments, *options])
    assert result.exit_code == 0
    for name in (TABLE_NAME, TRACE_NAME):
        assert f"profile: {tmp_path / 'profile' / name}" in result.stderr
        assert (tmp_path / "profile" / name).is_file()


def test_a_folder_that_cannot_be_created_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "profile"):
        with pytest.raises(OutputError, match="cannot be created"):
            LipSync.from_bundle(small_bundle(), "cpu", RuntimeOptions(profile=folder))


def test_a_folder_that_vanishes_is_named(clip: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    lip_sync = LipSync.from_bundle(small_bundle(), "cpu", RuntimeOptions(profile=folder))
    lip_sync.warm_up(QUICK)
    shutil.rmtree(folder)
    with pytest.raises(OutputError, match=r"profile: the profile cannot be written \("):
        lip_sync.close()


def test_a_trace_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vae_encoder.json"
    path.write_text('[{"ph": "X", "name": "model_run"')
    with pytest.raises(OutputError, match="a trace is cut short"):
        write_profile(tmp_path, [TIME], [Trace("vae_encoder", path, 0.0)], [])


def test_an_engine_that_is_opened_again_is_one_row() -> None:
    again = dataclasses.replace(TIME, built=False, open_s=1.0, runs=2, first_ms=7.0, mean_ms=5.0)
    both = TIME.merged(again)
    assert (both.built, both.open_s, both.runs, both.opened) == (True, 1.5, 5, 2)
    assert both.first_ms == TIME.first_ms
    assert both.mean_ms == pytest.approx((4.0 + 4.0 + 7.0 + 5.0) / 4)
    idle = dataclasses.replace(TIME, runs=0, first_ms=0.0, mean_ms=0.0)
    assert (idle.merged(again).first_ms, idle.merged(again).mean_ms) == (7.0, 5.0)
    assert (TIME.merged(idle).first_ms, TIME.merged(idle).mean_ms) == (9.0, 4.0)
