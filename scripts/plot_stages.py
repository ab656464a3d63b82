"""Draws what each stage of a clip does over time, from the trace of `latentsync-trt sync --profile FOLDER --json`.

    python scripts/plot_stages.py FOLDER/trace.json REPORT.json --out docs/images/stages.svg

REPORT.json is what `sync` printed; it says how long the process ran before the clip.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

START, NETWORKS, PICTURES = "#cf4a63", "#d9591c", "#1b9e85"
GROUPS = {"start-up": START, "networks": NETWORKS, "pictures": PICTURES}
BEFORE = "imports, bundle, provider"
STAGES = {
    **dict.fromkeys(("encode audio", "encode faces", "denoise", "decode faces", "paint"), NETWORKS),
    **dict.fromkeys(("decode", "face", "align", "gather", "examine", "compose", "measure", "encode"), PICTURES),
}
ORDER = (
    *("decode", "face", "align", "encode audio", "gather", "encode faces", "denoise", "decode faces", "paint"),
    *("examine", "compose", "measure", "encode"),
)
START_PREFIXES = ("open ", "first run ")
PIXELS = 1500

Spans = list[tuple[float, float]]
"""Begin and duration, s."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text(encoding="utf-8"))
    events = json.loads(arguments.trace.read_text(encoding="utf-8"))["traceEvents"]
    rows = rows_of(events, before_s=report["total_s"] - report["wall_s"])
    with mpl.rc_context({"svg.fonttype": "none"}):  # text as text, to be searched and read aloud
        draw(rows, title(report, rows)).savefig(arguments.out)


def title(report: dict, rows: Mapping[str, Spans]) -> str:
    first_s = report["total_s"] - report["wall_s"] + report["startup_s"]
    return (
        f"{report['duration_s']:.0f} s of video, {report['bundle']} on {report['provider']}: "
        f"{report['total_s']:.1f} s, the first faces after {first_s:.1f} s;\n"
        f"then networks are at work {busy_share(rows, first_s):.0%} of the time until the last faces"
    )


def busy_share(rows: Mapping[str, Spans], from_s: float) -> float:
    """How much of the time from `from_s` until networks end at least one of them works."""
    spans = [span for name, found in rows.items() if STAGES.get(name) == NETWORKS for span in found]
    end_s = max(begin_s + dur_s for begin_s, dur_s in spans)
    busy_s = sum(max(0.0, begin_s + dur_s - max(begin_s, from_s)) for begin_s, dur_s in merged(spans, 0.0))
    return busy_s / (end_s - from_s) if end_s > from_s else 0.0


def rows_of(events: Iterable[dict], before_s: float) -> dict[str, Spans]:
    """Spans by row of the picture, top row first; times count from the start of the process."""
    found: dict[str, Spans] = {}
    for event in events:
        if event.get("cat") == "stage":
            found.setdefault(event["name"], []).append((event["ts"] / 1e6, event["dur"] / 1e6))
    zero_s = min(begin_s for spans in found.values() for begin_s, _ in spans) - before_s
    rows = {name: [(begin_s - zero_s, dur_s) for begin_s, dur_s in spans] for name, spans in found.items()}
    starts = [name for name in rows if name.startswith(START_PREFIXES)]
    starts.sort(key=lambda name: (min(rows[name]), name))
    return {BEFORE: [(0.0, before_s)], **{name: rows[name] for name in (*starts, *ORDER) if name in rows}}


def merged(spans: Spans, gap_s: float) -> Spans:
    """The spans in order, those that are less than `gap_s` apart as one."""
    joined: Spans = []
    for begin_s, dur_s in sorted(spans):
        if joined and begin_s - sum(joined[-1]) < gap_s:
            first_s, so_far_s = joined[-1]
            joined[-1] = first_s, max(so_far_s, begin_s + dur_s - first_s)
        else:
            joined.append((begin_s, dur_s))
    return joined


def draw(rows: dict[str, Spans], heading: str) -> Figure:
    end_s = max(begin_s + dur_s for spans in rows.values() for begin_s, dur_s in spans)
    figure = Figure(figsize=(10, 0.8 + 0.26 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row, (name, spans) in enumerate(rows.items()):
        axes.broken_barh(merged(spans, end_s / PIXELS), (row - 0.36, 0.72), color=STAGES.get(name, START), linewidth=0)
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlim=(0, end_s), xlabel="seconds since the command was started")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.legend(handles=[Patch(color=color, label=group) for group, color in GROUPS.items()], loc="upper right")
    figure.suptitle(heading, fontsize=11)
    return figure


if __name__ == "__main__":
    main()
