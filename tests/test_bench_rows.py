"""Rows as files, their comparison, and the report."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bench.changes import find_changes
from latentsync_trt.bench.report import stacked_bars, write_report
from latentsync_trt.bench.rows import (
    Arithmetic,
    BundleFacts,
    Memory,
    Quality,
    Results,
    Row,
    Spread,
    read_results,
)
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.privacy import without_paths
from tests.conftest import REPOSITORY

BUNDLE = BundleFacts("1.6 & <friends>", 512, 16, "fp16", "static", "ab" * 32)
ENVIRONMENT = {"command": "latentsync-trt bench", "measured_at": "2026-01-02T03:04:05+00:00", "cpu": "A", "gpu": "G"}
TIME = Spread(100.0, 90.0, 110.0, 20)

GRAPH = Row(
    "graph",
    "denoise_step",
    "cuda",
    None,
    TIME,
    3,
    arithmetic=Arithmetic(35.0, 350.0, 700.0),
    memory=Memory(10**9, 2 * 10**9),
    start_up_s={"build": 2.0, "open": 0.5},
)
QUALITY_LOOP = Row(
    "loop",
    "one window",
    "cuda",
    "quality",
    TIME,
    1,
    frames=16,
    parts_s={"vae_encoder": 0.01, "denoise_step": 0.08, "rest": 0.01},
)
FAST_LOOP = replace(
    QUALITY_LOOP,
    preset="fast",
    time=Spread(50.0, 45.0, 55.0, 20),
    quality=Quality(31.5, 0.97, 16, reference="reference <1>"),
    parts_s={**QUALITY_LOOP.parts_s, "denoise_step_cached": 0.01},
)
CLIP = Row(
    "end-to-end",
    "clip.mp4 480×480",
    "cuda",
    "fast",
    TIME,
    1,
    frames=100,
    parts_s={"decode": 0.02, "paint": 0.09},
    start_up_s={"check bundle": 1.0},
    notes=("a note",),
)
STAGE = Row("stage", "encode", None, None, TIME, 1, frames=50, notes=("1920×1080, 2 cores",))
TORCH = Row("pytorch", "denoise_step eager", "cuda", None, Spread(250.0, 249.0, 251.0, 20), 3, notes=("torch 9",))
ALL = Results(ENVIRONMENT, BUNDLE, (GRAPH, QUALITY_LOOP, FAST_LOOP, CLIP, STAGE, TORCH))


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.json"
    ALL.write(path)
    assert read_results(path) == ALL


def test_derived_numbers() -> None:
    assert GRAPH.arithmetic is not None
    assert GRAPH.arithmetic.ceiling_share == pytest.approx(0.5)
    assert Arithmetic(1.0, 1.0).ceiling_share is None
    assert FAST_LOOP.frames_per_s == pytest.approx(320.0)
    assert GRAPH.frames_per_s is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nothing", "not a JSON file"),
        ("[1]", "not rows of"),
        ('{"kind": "latentsync-trt bench", "format": 99}', "rows of format 99"),
        ('{"kind": "latentsync-trt bench", "format": 1, "rows": [{}]}', "damaged or incomplete"),
    ],
)
def test_what_are_no_rows_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(InputError, match=reason):
        read_results(path)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "benchmarks").glob("bench-*.json")), ids=lambda path: path.stem)
def test_committed_rows_can_be_compared(path: Path) -> None:
    results = read_results(path)
    found = find_changes(results, results)
    assert [row for row, _ in found.pairs] == list(results.rows)
    assert found.differences == ()


def test_an_unwritable_path_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        ALL.write(tmp_path / "file" / "rows.json")
    with pytest.raises(OutputError, match="cannot be written"):
        write_report(ALL, tmp_path / "file" / "report.html")


def test_comparison_has_pairs_leftovers_and_differences() -> None:
    faster = replace(GRAPH, time=Spread(80.0, 70.0, 89.0, 20))
    after = Results({**ENVIRONMENT, "gpu": "H", "measured_at": "later"}, BUNDLE, (faster, STAGE))
    found = find_changes(ALL, after)
    assert found.pairs == ((GRAPH, faster), (STAGE, STAGE))
    assert [row.scenario for row in found.only_before] == ["loop", "loop", "end-to-end", "pytorch"]
    assert found.only_after == ()
    assert found.differences == (("gpu", "G", "H"),)


def test_comparison_reports_a_changed_ceiling() -> None:
    ceiling = replace(GRAPH, case="matmul 8192 fp16", arithmetic=Arithmetic(1.0, 700.0, 700.0))
    lower = replace(ceiling, time=Spread(140.0, 130.0, 150.0, 20), arithmetic=Arithmetic(1.0, 500.0, 500.0))
    found = find_changes(replace(ALL, rows=(ceiling, GRAPH)), replace(ALL, rows=(lower, GRAPH)))
    assert found.differences == (
        ("ceiling matmul 8192 fp16 · cuda", "700 TFLOP/s (100% of matmul)", "500 TFLOP/s (100% of matmul)"),
    )


def test_compare_prints_changes_with_their_noise(tmp_path: Path) -> None:
    slower = replace(GRAPH, time=Spread(200.0, 190.0, 210.0, 20))
    noisy = replace(FAST_LOOP, time=Spread(52.0, 44.0, 60.0, 20))
    once = replace(TORCH, time=Spread(1.0, 1.0, 1.0, 1))
    ALL.write(tmp_path / "a.json")
    other = Results({**ENVIRONMENT, "gpu": "Other"}, replace(BUNDLE, sha256="cd" * 32), (slower, noisy, once))
    other.write(tmp_path / "b.json")
    result = CliRunner().invoke(main, ["bench", "--diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 0, result.output
    assert "differs: gpu: G → Other" in result.stdout
    assert "SHA-256 abababababab → SHA-256 cdcdcdcdcdcd" in result.stdout
    lines = [line.strip() for line in result.stdout.splitlines()]
    (graph,) = (line for line in lines if line.startswith("denoise_step · cuda"))
    assert re.search(r"graph\s+100 ms\s+90.0–110\s+200 ms\s+190–210\s+\+100.0%\s+SLOWER", graph)
    assert any(line.startswith("one window · fast · cuda") and "within noise" in line for line in lines)
    assert any(line.startswith("denoise_step eager · cuda") and "noise unknown" in line for line in lines)
    assert "only in a.json: stage encode" in result.stdout


def test_compare_of_a_missing_file_fails_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "--diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 2
    assert re.fullmatch(r"error: .*a\.json: no such file\n", result.stderr)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of `ALL`."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(ALL, path)
    return path.read_text(encoding="utf-8")


def _sections(page: str) -> dict[str, str]:
    """The text of a report by heading."""
    parts = re.split(r"<h2>(.*?)</h2>", page.split("<main>")[1])[1:]
    texts = (re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", part))).strip() for part in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


def test_report_sections_show_the_numbers_of_the_rows(page: str) -> None:
    sections = _sections(page)
    assert list(sections) == [
        "Presets",
        "Where the time of a window goes",
        "Where the time of a clip goes",
        "Stages by themselves",
        "Graphs",
        "Method and environment",
    ]
    presets = sections["Presets"]
    assert "quality on cuda 16 100 ms 160 156 ms reference" in presets
    assert "fast on cuda 16 50.0 ms 320 78.1 ms 31.5 dB, SSIM 0.9700" in presets
    assert "against reference <1>" in presets
    assert "clip.mp4 480×480 · fast · cuda 1 s" in sections["Where the time of a clip goes"]
    assert "encode: 1920×1080, 2 cores" in sections["Method and environment"]
    assert "denoise_step · cuda 100 ms 90.0–110 35.0 350 50% 2.00 0.50 1.00 GB host + 2.00 device" in sections["Graphs"]
    rows = sections["Graphs"]
    assert "one window · quality · cuda loop 100 ms 90.0–110 20 after 1 160 frames/s" in rows
    assert "denoise_step eager · cuda pytorch 250 ms 249–251 20 after 3" in rows
    assert "clip.mp4 480×480 · fast · cuda: a note" in sections["Method and environment"]
    assert "<h1>1.6 &amp; &lt;friends&gt; at 512 px on G</h1>" in page


def test_report_figures_are_labeled_and_follow_the_theme(page: str) -> None:
    drawings = [unescape(drawing) for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    labels = [re.findall(r">([^<>\n]+)</text>", drawing) for drawing in drawings]
    window, clip, stages = labels
    assert {"one window · quality · cuda", "100 ms", "one window · fast · cuda", "50.0 ms"} <= set(window)
    legend = ["vae_encoder", "denoise_step", "rest", "denoise_step_cached"]
    assert [label for label in window if label in legend] == legend
    assert {"decode", "paint", "100 ms"} <= set(clip)
    assert {"encode", "500 frames/s", "ms per frame"} <= set(stages)
    assert all("#000000" not in drawing and "currentColor" in drawing for drawing in drawings)
    assert "prefers-color-scheme: dark" in page


def test_report_needs_no_other_file(page: str) -> None:
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(http|src=", page)
    known = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) <= known


def test_bars_are_as_long_as_their_parts() -> None:
    figure = stacked_bars([("a", {"x": 1.0, "y": 2.0}, "3"), ("b", {"y": 5.0}, "5")], "s")
    (axes,) = figure.axes
    drawn = [(bar.get_y(), bar.get_x(), bar.get_width()) for bar in axes.patches]
    rows = {y: [(x, width) for other, x, width in drawn if other == y and width] for y, _, _ in drawn}
    assert list(rows.values()) == [[(0.0, 1.0), (1.0, 2.0)], [(0.0, 5.0)]]


@pytest.mark.parametrize(
    ("rows", "headings"),
    [
        ((), []),
        ((replace(GRAPH, arithmetic=None, memory=None, start_up_s={}),), ["Graphs"]),
        ((STAGE,), ["Stages by themselves"]),
        ((replace(FAST_LOOP, quality=None),), ["Presets", "Where the time of a window goes"]),
    ],
)
def test_report_has_sections_for_the_rows_there_are(rows: tuple[Row, ...], headings: list[str], tmp_path: Path) -> None:
    write_report(replace(ALL, rows=rows), tmp_path / "report.html")
    found = _sections((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert list(found) == [*headings, "Method and environment"]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("bench --video /home/someone/private/in.mp4 -o x", "bench --video in.mp4 -o x"),
        ("bench --video ../someone/private/in.mp4 --audio ./private/a.wav", "bench --video in.mp4 --audio a.wav"),
        (r"D:\Users\someone\clip.mov: 25 fps", "clip.mov: 25 fps"),
        ("bench --bundle tests/data/small_bundle", "bench --bundle small_bundle"),
        ("5 frames/s with 1/2 of it", "5 frames/s with 1/2 of it"),
        ("'~/a/b c.wav'", "'b c.wav'"),
    ],
)
def test_paths_are_shortened_to_names(text: str, clean: str) -> None:
    assert without_paths(text) == clean
