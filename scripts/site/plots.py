"""Draws the plots of the page of benchmarks from the committed rows, as SVG in the colors of the page."""

import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "benchmarks"
WINDOW_S = 0.64
"""Video of a window: 16 frames at 25 a second."""

INK = "#010203"
"""Replaced by the page's text color, which changes with its palette."""
TEAL, ORANGE, GRAY = "#00897b", "#fb8c00", "#8e8e93"

Panel = tuple[str, list[tuple[str, float, str]]]
"""Title, and label, value and color of each bar."""


class Rows:
    """Reads committed rows, and remembers which: `used`, by name."""

    def __init__(self) -> None:
        self.used: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """All of a file."""
        return self.used.setdefault(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))

    def bench(self, name: str, case: str, preset: str | None = None) -> Any:
        """A row of `latentsync-trt bench`."""
        return next(row for row in self.load(name)["rows"] if (row["case"], row["preset"]) == (case, preset))

    def median_ms(self, name: str, case: str, preset: str | None = None) -> float:
        """Median time of such a row."""
        return float(self.bench(name, case, preset)["time"]["median_ms"])

    def gpu_seconds(self, name: str, preset: str) -> float:
        """Seconds of GPU work for a second of video."""
        return self.median_ms(name, "one window", preset) / 1000 / WINDOW_S

    def window_gb(self, name: str) -> float:
        """Peak of GPU memory."""
        return float(self.bench(name, "one window", "balanced")["memory"]["device_bytes"]) / 1e9

    def pace(self, preset: str) -> tuple[float, float]:
        """Seconds of video per second while a clip is painted, with one and with two GPUs."""
        runs = self.load("sync-cuda-h200-x2-512")["measured_apart" if preset == "fast" else "two_processes"]
        found = {row["devices"]: row["windows_per_s"] * WINDOW_S for row in runs if row["preset"] == preset}
        return found["0"], found["0,1"]

    def caption(self) -> str:
        """Hardware, version and links to the rows that were read, as HTML."""
        about = [rows.get("environment", rows) for rows in self.used.values()]
        cards = {each.get("gpu") or each.get("gpus", [each.get("cpu", "")])[0] for each in about}
        versions = {f"ONNX Runtime {each['onnxruntime']}" for each in about if "onnxruntime" in each}
        versions |= {
            f"TensorRT for RTX {each['tensorrt_rtx']}, compiled only" for each in about if "tensorrt_rtx" in each
        }
        links = (f'<a href="benchmarks/{name}.json">{name}</a>' for name in self.used)
        return f"{', '.join(sorted(filter(None, cards)))}; {', '.join(sorted(versions))}. Rows: {', '.join(links)}."


def _draw(panels: list[Panel], digits: int, *, one_scale: bool = True) -> str:
    """Panels of horizontal bars, one below the other, as an `<svg>` element."""
    heights = [len(bars) for _, bars in panels]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plots"}):
        figure = Figure(figsize=(7.2, 0.34 * sum(heights) + 0.62 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=one_scale, height_ratios=heights)[:, 0]
        for place, (title, bars) in zip(axes, panels, strict=True):
            labels, values, colors = zip(*bars[::-1], strict=True)
            drawn = place.barh(labels, values, color=colors, height=0.66)
            place.bar_label(drawn, fmt=f"{{:.{digits}f}}", padding=4, color=INK)
            place.set_title(title, loc="left", color=INK, fontsize=10.5, fontweight="bold")
            place.margins(x=0.12)
            place.spines[:].set_visible(False)
            place.xaxis.set_visible(False)
            place.tick_params(axis="y", length=0, labelcolor=INK)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue().partition("<svg")[2]
    # Its style sheet would apply to the whole page; a blank line would end the element in Markdown.
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[^"]*pt"', "", re.sub(r"\s+", " ", svg))
    return "<svg role='img'" + svg.replace(INK, "var(--md-default-fg-color)")


def speed(rows: Rows) -> str:
    """GPU work by preset, resolution and card."""
    measured = "512-quality-h100 512-balanced-h100 512-balanced-h200 512-fast-h200 256-balanced-h100 256-balanced-h200"
    bars = []
    for size, preset, card in (name.split("-") for name in (*measured.split(), "256-fast-h200")):
        seconds = rows.gpu_seconds(f"bench-cuda-{card}-{size}", preset)
        bars.append((f"{size} px, {preset}, {card.upper()}", seconds, TEAL if card == "h200" else ORANGE))
    return _draw([("seconds of GPU work for a second of video", bars)], 2)


def pytorch(rows: Rows) -> str:
    """The same networks in PyTorch and here, on one kind of card."""
    eager, compiled, here = "bench-pytorch-h100-512-eager", "bench-pytorch-h100-512-compiled", "bench-cuda-h100-512"
    step = [
        ("here", rows.median_ms(here, "denoise_step"), TEAL),
        ("torch.compile", rows.median_ms(compiled, "denoise_step compiled"), ORANGE),
        ("PyTorch", rows.median_ms(compiled, "denoise_step eager"), GRAY),
    ]
    panels = [("full denoising step, ms", step)]
    titles = {"denoise_step_cached": "cached denoising step, ms", "vae_decoder": "VAE decoder, 4 pictures, ms"}
    for case, title in titles.items():
        other = rows.median_ms(eager, f"{case} eager")
        panels.append((title, [("here", rows.median_ms(here, case), TEAL), ("PyTorch", other, GRAY)]))
    return _draw(panels, 0, one_scale=False)


def gpus(rows: Rows) -> str:
    """Pace with one and with two GPUs."""
    batch = rows.load("batch-cuda-h200-x2-512")
    runs = (batch[f"sixteen_clips_{count}"]["summary"] for count in ("one_worker", "two_workers"))
    paces: dict[str, tuple[float, ...]] = {f"one clip, {preset}": rows.pace(preset) for preset in ("fast", "balanced")}
    paces["batch of 16 clips, fast"] = tuple(run["frames_per_s"] / 25 for run in runs)
    panels = [
        (f"{title}: seconds of video per second", [("1 GPU", one, TEAL), ("2 GPUs", two, ORANGE)])
        for title, (one, two) in paces.items()
    ]
    return _draw(panels, 2)


def memory(rows: Rows) -> str:
    """Peak of GPU memory by resolution."""
    bars = []
    for size in (512, 256):
        bars.append((f"{size} px", rows.window_gb(f"bench-cuda-h200-{size}"), TEAL))
        bars.append((f"{size} px, --cuda-graph", rows.window_gb(f"bench-cuda-h200-{size}-cuda-graph"), ORANGE))
    return _draw([("GB of GPU memory at the peak", bars)], 1)


def eight_bits(rows: Rows) -> str:
    """What 8 bits save in an engine and cost in the picture."""
    sizes, faces = [], []
    for name, key, color in (("float16", "fp16", GRAY), ("INT8", "int8", TEAL), ("FP8", "fp8", ORANGE)):
        graphs = {graph["graph"]: graph for graph in rows.load(f"check-full-{key}-512")["graphs"]}
        sizes.append((name, graphs["denoise_step"]["engine_bytes"] / 1e9, color))
        if key != "fp16":
            areas = {area["area"]: area for area in rows.load(f"compare-demo-{key}")["clips"][0]["areas"]}
            faces.append((name, areas["face"]["psnr_db"], color))
    panels = [("GB of a full step's engine, 512 px", sizes), ("PSNR of faces against float16, dB", faces)]
    return _draw(panels, 1, one_scale=False)


PLOTS = {"speed": speed, "pytorch": pytorch, "gpus": gpus, "memory": memory, "eight-bits": eight_bits}


def figure(name: str) -> str:
    """The plot of that name with its caption, as HTML."""
    rows = Rows()
    return f'<figure id="plot-{name}">{PLOTS[name](rows)}<figcaption>{rows.caption()}</figcaption></figure>'


def numbers() -> str:
    """The numbers of the first page, as HTML."""
    rows = Rows()
    speed_up = rows.median_ms("bench-pytorch-h100-512-compiled", "denoise_step eager")
    speed_up /= rows.median_ms("bench-cuda-h100-512", "denoise_step")
    one, two = rows.pace("balanced")
    found = {
        f"{rows.gpu_seconds('bench-cuda-h200-512', 'fast'):.2f} s": "of GPU time for a second of 512 px video",
        f"{speed_up:.1f}×": "the speed of PyTorch, on the same kind of GPU",
        f"{rows.window_gb('bench-cuda-h200-512'):.1f} GB": "of GPU memory at 512 px, however long the clip",
        f"{two / one:.2f}×": "the speed with a second GPU",
    }
    return "".join(f"<div><b>{number}</b><span>{text}</span></div>" for number, text in found.items())
