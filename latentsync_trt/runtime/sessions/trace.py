"""The profile of a run: a table of engines and operators, and one Chrome trace of all engines and stages.

Open `trace.json` in ui.perfetto.dev or chrome://tracing.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from latentsync_trt.errors import OutputError
from latentsync_trt.types import EngineTime, StageSpan

TABLE_NAME = "profile.md"
TRACE_NAME = "trace.json"

_MOST_OPERATORS = 25
_STAGES_PROCESS, _FIRST_ENGINE_PROCESS = 1, 2

Events = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file that ONNX Runtime wrote; its times count from `start_s` on `time.perf_counter`'s scale."""

    graph: str
    path: Path
    start_s: float


@contextmanager
def spanned(stage: str, on_span: Callable[[StageSpan], None] | None) -> Iterator[None]:
    """Calls `on_span`, if there is one, with the time inside the block."""
    start_s = time.perf_counter()
    try:
        yield
    finally:
        if on_span is not None:
            on_span(StageSpan(stage, threading.current_thread().name, start_s, time.perf_counter() - start_s))


def profile_folder(asked: str | Path | None) -> Path | None:
    """The folder of the profile, created if necessary; raises `OutputError` if it is not writable."""
    if asked is None:
        return None
    folder = Path(asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be created ({error.strerror})", usage=True) from error
    try:
        TemporaryFile(dir=folder).close()  # a trial, as permissions alone do not show whether writing works
    except OSError as error:
        raise OutputError(f"{folder}: the profile cannot be written ({error.strerror})") from error
    return folder.resolve()


def write_profile(
    folder: Path, times: Iterable[EngineTime], traces: Iterable[Trace], spans: Iterable[StageSpan]
) -> tuple[Path, Path]:
    """Writes `profile.md` and `trace.json` into `folder` and removes the traces they were made from.

    Raises:
        OutputError: the folder cannot be written.
    """
    table, merged = folder / TABLE_NAME, folder / TRACE_NAME
    try:
        events = {trace: _events(trace) for trace in traces}
        table.write_text(_table(times, events), encoding="utf-8")
        with merged.open("w", encoding="utf-8") as file:
            json.dump({"traceEvents": [*_stage_events(spans), *_engine_events(events)]}, file)
        for trace in events:
            trace.path.unlink()
    except (OSError, ValueError) as error:  # ValueError where the disk was full while the run wrote its traces
        reason = error.strerror if isinstance(error, OSError) else f"a trace is cut short: {error}"
        raise OutputError(f"{folder}: the profile cannot be written ({reason})") from error
    return table, merged


def _events(trace: Trace) -> Events:
    """The trace's events that the profile uses, times in µs on `time.perf_counter`'s scale."""
    kept = []
    for event in json.loads(trace.path.read_text(encoding="utf-8")):
        if event.get("ph") != "X":
            continue
        details = event.get("args") or {}
        used = {key: details[key] for key in ("op_name", "provider", "output_type_shape") if key in details}
        name, start_us = event["name"].removesuffix("_kernel_time"), event["ts"] + trace.start_s * 1e6
        kept.append(event | {"name": name, "ts": start_us, "args": used})
    return kept


def _table(times: Iterable[EngineTime], events: Mapping[Trace, Events]) -> str:
    calls, total_us = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for trace, found in events.items():
        for event in found:
            if event["cat"] == "Node" and "op_name" in event["args"]:
                provider = event["args"].get("provider", "").removesuffix("ExecutionProvider")
                key = (trace.graph, event["args"]["op_name"], provider)
                calls[key] += 1
                total_us[key] += event["dur"]
    lines = [
        "# Engines",
        "",
        "| engine | provider | nodes there | build s | opened | open s | runs | first ms | mean ms of the others |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {t.graph} | {t.provider} | {t.node_share:.1%} | {t.build_s if t.built else 0:.1f} | {t.opened} "
            f"| {t.open_s:.2f} | {t.runs} | {t.first_ms:.1f} | {t.mean_ms:.1f} |"
            for t in times
        ),
        "",
        f"# The {_MOST_OPERATORS} slowest operators",
        "",
        "On a GPU these are mostly times of launching; a whole TensorRT engine is one operator.",
        "",
        "| engine | operator | provider | calls | ms |",
        "|---|---|---|---:|---:|",
        *(
            f"| {' | '.join(key)} | {calls[key]} | {us / 1000:.1f} |"
            for key, us in total_us.most_common(_MOST_OPERATORS)
        ),
    ]
    return "\n".join(lines) + "\n"


def _stage_events(spans: Iterable[StageSpan]) -> Events:
    """The pipeline's stages as one process of the trace, with a row for each thread."""
    rows: dict[str, int] = {}
    events = [_name_event("process_name", _STAGES_PROCESS, 0, "stages")]
    for span in spans:
        if span.thread not in rows:
            rows[span.thread] = len(rows) + 1
            events.append(_name_event("thread_name", _STAGES_PROCESS, rows[span.thread], span.thread))
        times = {"ts": span.start_s * 1e6, "dur": span.busy_s * 1e6}
        row = {"pid": _STAGES_PROCESS, "tid": rows[span.thread]}
        events.append({"name": span.stage, "cat": "stage", "ph": "X", **times, **row})
    return events


def _engine_events(events: Mapping[Trace, Events]) -> Events:
    """Each engine as one process of the trace."""
    merged: Events = []
    for process, (trace, found) in enumerate(events.items(), start=_FIRST_ENGINE_PROCESS):
        merged.append(_name_event("process_name", process, 0, trace.graph))
        merged += [{**event, "pid": process} for event in found]
    return merged


def _name_event(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}
