"""Rows as files, their comparison, and the report that is made of them."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bench.compare import compare
from latentsync_trt.bench.machine import slug, without_paths
from latentsync_trt.bench.report import report, write_report
from latentsync_trt.bench.rows import (
    Arithmetic,
    BundleFacts,
    Memory,
    Quality,
    Results,
    Row,
    StepTimes,
    read_results,
)
from latentsync_trt.bench.spread import Spread
from latentsync_trt.bench.svg import tick_step
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError, OutputError

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
    facts={"node_share": 1.0},
)
QUALITY_LOOP = Row(
    "loop",
    "one window",
    "cuda",
    "quality",
    TIME,
    1,
    frames=16,
    parts_s={"VAE encode": 0.01, "denoising": 0.08, "VAE decode": 0.01},
    steps=(StepTimes(full=True, guided=True, in_a_run=2, times_ms=(40.0, 41.0, 39.0, 40.0)),),
    facts={"seconds_per_second_of_video": 0.16, "full_step_equivalents": 2.0},
)
FAST_LOOP = replace(
    QUALITY_LOOP,
    preset="fast",
    time=Spread(50.0, 45.0, 55.0, 20),
    quality=Quality("reference <1>", 31.5, 0.97, None, 16),
    steps=(*QUALITY_LOOP.steps, StepTimes(full=False, guided=False, in_a_run=1, times_ms=(4.0, 5.0))),
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
    engines=({"graph": "denoise_step", "runs": 3},),
    facts={"paint_busy_share": 0.9, "seconds_per_second_of_video": 0.025},
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


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        ALL.write(tmp_path / "file" / "rows.json")
    with pytest.raises(OutputError, match="cannot be written"):
        write_report(ALL, tmp_path / "file" / "report.html")


def test_a_comparison_shows_change_noise_and_what_else_differs() -> None:
    faster = replace(GRAPH, time=Spread(80.0, 70.0, 89.0, 20))
    noisy = replace(FAST_LOOP, time=Spread(52.0, 44.0, 60.0, 20))
    after = Results({**ENVIRONMENT, "gpu": "H", "measured_at": "later"}, BUNDLE, (faster, noisy, STAGE))
    found = compare(ALL, after)
    assert [(pair.before.case, pair.change) for pair in found.pairs] == [
        ("denoise_step", "faster"),
        ("one window", "within noise"),
        ("encode", "within noise"),
    ]
    assert found.pairs[0].ratio == pytest.approx(0.8)
    assert [row.scenario for row in found.only_before] == ["loop", "end-to-end", "pytorch"]
    assert found.only_after == ()
    assert found.differences == (("gpu", "G", "H"),)


def test_a_ceiling_that_moved_is_pointed_out() -> None:
    ceiling = replace(GRAPH, case="matmul 8192 fp16", arithmetic=Arithmetic(1.0, 700.0, 700.0))
    lower = replace(ceiling, time=Spread(140.0, 130.0, 150.0, 20), arithmetic=Arithmetic(1.0, 500.0, 500.0))
    found = compare(replace(ALL, rows=(ceiling, GRAPH)), replace(ALL, rows=(lower, GRAPH)))
    assert found.differences == (
        ("ceiling matmul 8192 fp16 · cuda", "700 TFLOP/s (100% of matmul)", "500 TFLOP/s (100% of matmul)"),
    )


def test_compare_prints_a_table_and_succeeds(tmp_path: Path) -> None:
    slower = replace(GRAPH, time=Spread(200.0, 190.0, 210.0, 20))
    ALL.write(tmp_path / "a.json")
    Results({**ENVIRONMENT, "gpu": "Other"}, replace(BUNDLE, sha256="cd" * 32), (slower,)).write(tmp_path / "b.json")
    result = CliRunner().invoke(main, ["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 0, result.output
    assert "differs: gpu: G → Other" in result.stdout
    assert "SHA-256 abababababab → SHA-256 cdcdcdcdcdcd" in result.stdout
    assert re.search(r"denoise_step · cuda\s+100 ms\s+90.0–110\s+200 ms\s+190–210\s+\+100.0%\s+SLOWER", result.stdout)
    assert "only in a.json: stage encode" in result.stdout


def test_compare_of_a_missing_file_fails_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 1
    assert re.fullmatch(r"error: .*a\.json: cannot be read .*\n", result.stderr)


def test_the_report_is_whole_and_needs_nothing_else() -> None:
    page = report(ALL)
    tree = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))  # well-formed, entities escaped
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|src=|href=", page)
    assert [url for url in re.findall(r"https?://[^\"'\s<]+", page) if url != "http://www.w3.org/2000/svg"] == []
    headings = [element.text for element in tree.iter("h2")]
    assert headings == [
        "Presets",
        "A window by part",
        "Single steps",
        "Speed against quality",
        "A clip by stage",
        "Stages by themselves",
        "Graphs",
        "Against PyTorch",
        "How and on what",
    ]
    text = " ".join(tree.itertext())
    for shown in ("1.6 & <friends>", "31.5 dB, SSIM 0.970", "50%", "2.50×", "not measured", "cached, unguided"):
        assert shown in text
    assert "prefers-color-scheme: dark" in page


def test_every_plot_stays_inside_its_picture() -> None:
    tree = ET.fromstring(report(ALL).removeprefix("<!DOCTYPE html>"))
    drawings = list(tree.iter("{http://www.w3.org/2000/svg}svg"))
    assert len(drawings) == 5
    for drawing in drawings:
        width, height = map(float, drawing.attrib["viewBox"].split()[2:])
        for mark in drawing.iter():
            for name, limit in (("x", width), ("x2", width), ("cx", width), ("y", height), ("y2", height)):
                assert -1 <= float(mark.attrib.get(name, 0)) <= limit, (mark.tag, mark.attrib)


@pytest.mark.parametrize("rows", [(), (GRAPH,), (STAGE,), (replace(FAST_LOOP, steps=(), quality=None),)])
def test_a_report_of_a_few_rows_is_well_formed(rows: tuple[Row, ...]) -> None:
    ET.fromstring(report(replace(ALL, rows=rows)).removeprefix("<!DOCTYPE html>"))


def test_ticks_are_round_and_few() -> None:
    for most in (0.003, 0.9, 1.0, 7.3, 60.0, 99.9, 1234.0):
        step = tick_step(most)
        assert 2 <= most / step <= 6.0001
        assert f"{step:e}"[0] in "125"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("bench --video /home/someone/private/in.mp4 -o x", "bench --video in.mp4 -o x"),
        ("bench --video ../someone/private/in.mp4 --audio ./private/a.wav", "bench --video in.mp4 --audio a.wav"),
        (r"D:\Users\someone\clip.mov: 25 fps", "clip.mov: 25 fps"),
        ("5 frames/s with 1/2 of it", "5 frames/s with 1/2 of it"),
        ("'~/a/b c.wav'", "'b c.wav'"),
    ],
)
def test_paths_are_shortened_to_names(text: str, clean: str) -> None:
    assert without_paths(text) == clean


def test_slugs_are_file_names() -> None:
    assert slug("bench CUDA NVIDIA H100 80GB 1.6-512") == "bench-cuda-nvidia-h100-80gb-1.6-512"
