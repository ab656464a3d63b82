"""Draws the plots of the page of benchmarks from the committed rows, as SVG in the colors of the page."""

import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "benchmarks"
WINDOW_MS = 640
"""Video of a window: 16 frames at 25 a second."""

INK = "#010203"
"""Replaced by the page's text color, which changes with its palette."""
TEAL, ORANGE, GRAY = "#00897b", "#fb8c00", "#8e8e93"

Bar = tuple[str, str, float]
"""Label, color, value."""


class Rows:
    """Reads numbers from the committed rows, and remembers the files."""

    def __init__(self) -> None:
        self.used: dict[str, Any] = {}

    def number(self, name: str, *keys: str | int | dict[str, Any]) -> float:
        """The number that the keys lead to; a dict is the first entry of a list that has its items."""
        found = self.used.setdefault(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
        for key in keys:
            found = next(row for row in found if key.items() <= row.items()) if isinstance(key, dict) else found[key]
        return float(found)

    def median_ms(self, name: str, case: str, preset: str | None = None) -> float:
        """Median time in a row of `latentsync-trt bench`."""
        return self.number(name, "rows", {"case": case, "preset": preset}, "time", "median_ms")

    def window_gb(self, name: str) -> float:
        """Peak of GPU memory while a window is painted."""
        row = {"case": "one window", "preset": "balanced"}
        return self.number(name, "rows", row, "memory", "device_bytes") / 1e9

    def pace(self, preset: str, devices: str) -> float:
        """Seconds of video per second while one clip is painted."""
        runs = "measured_apart" if preset == "fast" else "two_processes"
        row = {"preset": preset, "devices": devices}
        return self.number("sync-cuda-h200-x2-512", runs, row, "windows_per_s") * WINDOW_MS / 1000

    def caption(self) -> str:
        """Hardware, versions and links to the rows, as HTML."""
        about = [rows.get("environment", rows) for rows in self.used.values()]
        cards = {each.get("gpu") or each.get("gpus", [each.get("cpu", "")])[0] for each in about}
        versions = {f"ONNX Runtime {each['onnxruntime']}" for each in about if "onnxruntime" in each}
        versions |= {f"TensorRT for RTX {each['tensorrt_rtx']}" for each in about if "tensorrt_rtx" in each}
        versions |= {f"PyTorch {each['torch']}" for each in about if "pytorch" in each.get("command", "")}
        links = (f'<a href="benchmarks/{name}.json">{name}</a>' for name in self.used)
        return f"{', '.join(sorted(filter(None, cards)))}; {', '.join(sorted(versions))}. Rows: {', '.join(links)}."


def speed(rows: Rows) -> dict[str, list[Bar]]:
    """GPU work by preset, resolution and card."""
    bars = []
    for size, preset, card in (
        *((512, "quality", "h100"), (512, "balanced", "h100"), (512, "balanced", "h200"), (512, "fast", "h200")),
        *((256, "balanced", "h100"), (256, "balanced", "h200"), (256, "fast", "h200")),
    ):
        seconds = rows.median_ms(f"bench-cuda-{card}-{size}", "one window", preset) / WINDOW_MS
        bars.append((f"{size} px, {preset}, {card.upper()}", TEAL if card == "h200" else ORANGE, seconds))
    return {"seconds of GPU work for a second of video": bars}


def pytorch(rows: Rows) -> dict[str, list[Bar]]:
    """The same networks in PyTorch and here, on one kind of card."""
    panels = {}
    for case, title in {
        "denoise_step": "full denoising step, ms",
        "denoise_step_cached": "cached denoising step, ms",
        "vae_decoder": "VAE decoder, 4 pictures, ms",
    }.items():
        panels[title] = [
            ("here", TEAL, rows.median_ms("bench-cuda-h100-512", case)),
            ("PyTorch", GRAY, rows.median_ms("bench-pytorch-h100-512-eager", f"{case} eager")),
        ]
    compiled = rows.median_ms("bench-pytorch-h100-512-compiled", "denoise_step compiled")
    panels["full denoising step, ms"].insert(1, ("torch.compile", ORANGE, compiled))
    return panels


def gpus(rows: Rows) -> dict[str, list[Bar]]:
    """Pace with one and with two GPUs."""
    panels = {}
    for preset in ("fast", "balanced"):
        bars = [("1 GPU", TEAL, rows.pace(preset, "0")), ("2 GPUs", ORANGE, rows.pace(preset, "0,1"))]
        panels[f"one clip, {preset}: seconds of video per second"] = bars
    panels["batch of 16 clips, fast: seconds of video per second"] = [
        (label, color, rows.number("batch-cuda-h200-x2-512", f"sixteen_clips_{run}", "summary", "frames_per_s") / 25)
        for label, color, run in (("1 GPU", TEAL, "one_worker"), ("2 GPUs", ORANGE, "two_workers"))
    ]
    return panels


def memory(rows: Rows) -> dict[str, list[Bar]]:
    """Peak of GPU memory by resolution."""
    bars = []
    for size in (512, 256):
        bars.append((f"{size} px", TEAL, rows.window_gb(f"bench-cuda-h200-{size}")))
        bars.append((f"{size} px, --cuda-graph", ORANGE, rows.window_gb(f"bench-cuda-h200-{size}-cuda-graph")))
    return {"GB of GPU memory at the peak": bars}


def eight_bits(rows: Rows) -> dict[str, list[Bar]]:
    """What 8 bits save in an engine and cost in the picture."""
    step = "graphs", {"graph": "denoise_step"}, "engine_bytes"
    face = "clips", 0, "areas", {"area": "face"}, "psnr_db"
    kinds = (("float16", GRAY, "fp16"), ("INT8", TEAL, "int8"), ("FP8", ORANGE, "fp8"))
    sizes = [(label, color, rows.number(f"check-full-{key}-512", *step) / 1e9) for label, color, key in kinds]
    faces = [(label, color, rows.number(f"compare-demo-{key}", *face)) for label, color, key in kinds[1:]]
    return {"GB of a full step's engine, 512 px": sizes, "PSNR of faces against float16, dB": faces}


PLOTS = {"speed": speed, "pytorch": pytorch, "gpus": gpus, "memory": memory, "eight-bits": eight_bits}
OWN_SCALES = ("pytorch", "eight-bits")
"""Plots whose panels have different units or ranges."""


def figure(name: str) -> str:
    """The plot of that name with its caption, as HTML."""
    rows = Rows()
    svg = _draw(PLOTS[name](rows), one_scale=name not in OWN_SCALES)
    return f'<figure id="plot-{name}">{svg}<figcaption>{rows.caption()}</figcaption></figure>'


def numbers() -> str:
    """The numbers of the first page, as HTML."""
    rows = Rows()
    seconds = rows.median_ms("bench-cuda-h200-512", "one window", "fast") / WINDOW_MS
    times = rows.median_ms("bench-pytorch-h100-512-compiled", "denoise_step eager")
    times /= rows.median_ms("bench-cuda-h100-512", "denoise_step")
    found = {
        f"{seconds:.2f} s": "of GPU time for a second of 512 px video, preset fast",
        f"{times:.1f}×": "as fast as PyTorch without torch.compile, on the same kind of GPU",
        f"{rows.window_gb('bench-cuda-h200-512'):.1f} GB": "of GPU memory at 512 px, however long the clip",
        f"{rows.pace('balanced', '0,1') / rows.pace('balanced', '0'):.2f}×": "as fast with a second GPU",
    }
    return "".join(f"<div><b>{number}</b><span>{text}</span></div>" for number, text in found.items())


def _draw(panels: dict[str, list[Bar]], *, one_scale: bool) -> str:
    """Panels of horizontal bars, one below the other, as an `<svg>` element."""
    heights = [len(bars) for bars in panels.values()]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plots"}):
        figure = Figure(figsize=(7.2, 0.34 * sum(heights) + 0.62 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=one_scale, height_ratios=heights)[:, 0]
        for place, (title, bars) in zip(axes, panels.items(), strict=True):
            labels, colors, values = zip(*bars[::-1], strict=True)
            drawn = place.barh(labels, values, color=colors, height=0.66)
            place.bar_label(drawn, fmt="{:.3g}", padding=4, color=INK)
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
