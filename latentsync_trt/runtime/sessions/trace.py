"""Where the time went: a table of engines and operators, and one Chrome trace of all engines and stages.

Open `trace.json` in ui.perfetto.dev or chrome://tracing.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from latentsync_trt.errors import OutputError
from latentsync_trt.types import EngineTime, Span

TABLE_NAME = "profile.md"
TRACE_NAME = "trace.json"

_MOST_OPERATORS = 25
_STAGES_PROCESS, _FIRST_ENGINE_PROCESS = 1, 2


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file that ONNX Runtime wrote; its times count from `start_s` on `time.perf_counter`'s scale."""

    graph: str
    path: Path
    start_s: float


def profile_folder(asked: str | Path | None) -> Path | None:
    """The folder of the profile, made if need be; raises `OutputError` if it cannot be, or takes no files."""
    if asked is None:
        return None
    folder = Path(asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be created ({error.strerror})") from error
    try:
        TemporaryFile(dir=folder).close()  # known now, not after the run; permissions alone do not tell
    except OSError as error:
        raise OutputError(f"{folder}: the profile cannot be written ({error.strerror})") from error
    return folder.resolve()


def write_profile(
    folder: Path, times: Iterable[EngineTime], traces: Iterable[Trace], spans: Iterable[Span]
) -> tuple[Path, Path]:
    """Writes `profile.md` and `trace.json` into `folder` and removes the traces they were made of.

    Raises:
        OutputError: the folder cannot be written.
    """
    table, merged = folder / TABLE_NAME, folder / TRACE_NAME
    try:
        events = {trace: _events(trace) for trace in traces}
        table.write_text(_table(times, _operators(events)), encoding="utf-8")
        with merged.open("w", encoding="utf-8") as file:
            json.dump({"traceEvents": [*_stage_events(spans), *_engine_events(events)]}, file)
        for trace in events:
            trace.path.unlink()
    except (OSError, ValueError) as error:  # the latter where the disc was full while the run wrote its traces
        reason = error.strerror if isinstance(error, OSError) else f"a trace is cut short: {error}"
        raise OutputError(f"{folder}: the profile cannot be written ({reason})") from error
    return table, merged


def _events(trace: Trace) -> list[dict[str, Any]]:
    """The trace's events, times in µs on `time.perf_counter`'s scale, and of the rest only what a reader looks at."""
    kept = []
    for event in json.loads(trace.path.read_text(encoding="utf-8")):
        if event.get("ph") != "X":
            continue
        details = event.get("args") or {}
        kept.append(
            {
                "name": event["name"].removesuffix("_kernel_time"),
                "cat": event["cat"],
                "ph": "X",
                "ts": event["ts"] + trace.start_s * 1e6,
                "dur": event["dur"],
                "tid": event["tid"],
                "args": {key: details[key] for key in ("op_name", "provider", "output_type_shape") if key in details},
            }
        )
    return kept


def _operators(events: Mapping[Trace, list[dict[str, Any]]]) -> list[tuple[str, str, str, int, float]]:
    """Graph, operator, provider, how often it ran and milliseconds in all; most time first."""
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for trace, found in events.items():
        for event in found:
            if event["cat"] == "Node" and "op_name" in event["args"]:
                key = (trace.graph, event["args"]["op_name"], event["args"].get("provider", ""))
                count, total_ms = sums.get(key, (0, 0.0))
                sums[key] = count + 1, total_ms + event["dur"] / 1000
    rows = [(*key, *value) for key, value in sums.items()]
    return sorted(rows, key=lambda row: row[4], reverse=True)


def _table(times: Iterable[EngineTime], operators: list[tuple[str, str, str, int, float]]) -> str:
    lines = [
        "# Engines",
        "",
        "| engine | provider | nodes there | build s | opened | open s | runs | first ms | mean ms of the others |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {t.graph} | {t.provider} | {t.node_share:.1%} | {t.build_s if t.built else 0:.1f} | {t.opened} "
        f"| {t.open_s:.2f} | {t.runs} | {t.first_ms:.1f} | {t.mean_ms:.1f} |"
        for t in times
    ]
    lines += [
        "",
        f"# Operators, the {_MOST_OPERATORS} that took longest",
        "",
        "On a GPU these are times of launching, as a rule; a whole TensorRT engine is one operator.",
        "",
        "| engine | operator | provider | calls | ms |",
        "|---|---|---|---:|---:|",
    ]
    lines += [
        f"| {graph} | {operator} | {provider.removesuffix('ExecutionProvider')} | {count} | {total_ms:.1f} |"
        for graph, operator, provider, count, total_ms in operators[:_MOST_OPERATORS]
    ]
    return "\n".join(lines) + "\n"


def _stage_events(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """The pipeline's stages as one process, a row a thread."""
    rows: dict[str, int] = {}
    events = [_name_event("process_name", _STAGES_PROCESS, 0, "stages")]
    for span in spans:
        if span.thread not in rows:
            rows[span.thread] = len(rows) + 1
            events.append(_name_event("thread_name", _STAGES_PROCESS, rows[span.thread], span.thread))
        times = {"ts": span.start_s * 1e6, "dur": span.busy_s * 1e6}
        place = {"pid": _STAGES_PROCESS, "tid": rows[span.thread]}
        events.append({"name": span.stage, "cat": "stage", "ph": "X", **times, **place})
    return events


def _engine_events(events: Mapping[Trace, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every engine as a process of its own."""
    merged: list[dict[str, Any]] = []
    for process, (trace, found) in enumerate(events.items(), start=_FIRST_ENGINE_PROCESS):
        merged.append(_name_event("process_name", process, 0, trace.graph))
        merged += [{**event, "pid": process} for event in found]
    return merged


def _name_event(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}
