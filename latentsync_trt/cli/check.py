"""`latentsync-trt check`: does NVIDIA's TensorRT compiler take the graphs of a bundle? Needs no GPU."""

import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import rich_click as click

from latentsync_trt import __version__
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import Bundle, Manifest
from latentsync_trt.cli.errors import FAILED
from latentsync_trt.cli.options import bundle_option
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.compiler.rtx import (
    DEFAULT_COMPUTE_CAPABILITY,
    GraphVerdict,
    Trial,
    check_compute_capability,
    compile_graph,
    compiler_version,
    plan_trials,
)

Results = list[tuple[Trial, GraphVerdict]]


@click.command("check")
@bundle_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option(
    "--compute-capability",
    default=DEFAULT_COMPUTE_CAPABILITY,
    show_default=True,
    metavar="X.Y",
    help="Of the GPU to compile for, e.g. 8.6 for RTX 30xx, 8.9 for RTX 40xx, 12.0 for RTX 50xx.",
)
@click.option(
    "--dynamic/--static",
    default=None,
    help="Compile for all shapes the bundle allows, or for one.  [default: both, if it was exported with --dynamic]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the verdicts, or the error.")
def command(
    bundle: str | None, graphs: tuple[str, ...], compute_capability: str, dynamic: bool | None, as_json: bool
) -> None:
    """Compile every graph of a bundle with TensorRT for RTX, and say what it refuses. No GPU is needed."""
    check_compute_capability(compute_capability)
    folder, why = find_bundle(bundle)
    if not as_json:
        click.echo(f"bundle {folder.name} ({why}), portable graphs", err=True)
    opened = Bundle.load(folder)
    trials = plan_trials(opened.manifest, graphs, RuntimeOptions(dynamic=dynamic))
    results: Results = []
    with _progress(hidden=as_json) as on_start:
        for number, trial in enumerate(trials, 1):
            on_start(f"compiling {trial.graph}, {trial.shapes} shapes ({number} of {len(trials)})")
            verdict = compile_graph(opened.graph_path(trial.graph), trial.profile, compute_capability)
            results.append((trial, verdict))
    if as_json:
        click.echo(json.dumps(_report(opened.manifest, compute_capability, results), indent=2))
    else:
        _show(opened.manifest, compute_capability, results)
    if not all(verdict.accepted for _, verdict in results):
        raise SystemExit(FAILED)


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr with what is being compiled and for how long; yields the callback that changes it."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as line:
        task = line.add_task("starting", total=None)

        def move(text: str) -> None:
            line.reset(task, description=text)

        yield move


def _report(manifest: Manifest, compute_capability: str, results: Results) -> dict[str, Any]:
    return {
        "bundle": manifest.name,
        "resolution_px": manifest.resolution_px,
        "frames": manifest.frames,
        "precision": manifest.precision,
        "opset": manifest.opset,
        "form": "portable",
        "compute_capability": compute_capability,
        "tensorrt_rtx": compiler_version(),
        "latentsync_trt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "accepted": all(verdict.accepted for _, verdict in results),
        "graphs": [
            {
                "graph": verdict.graph,
                "shapes": trial.shapes,
                "profile": {name: asdict(sizes) for name, sizes in trial.profile.items()},
                **asdict(verdict),
            }
            for trial, verdict in results
        ],
    }


def _show(manifest: Manifest, compute_capability: str, results: Results) -> None:
    """Prints the table of verdicts and a closing line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("graph", overflow="fold")
    table.add_column("shapes")
    for heading in ("layers", "engine", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", overflow="fold")
    for trial, verdict in results:
        said = Text("accepted", "green") if verdict.accepted else Text(f"refused: {verdict.reason}", "red")
        size = f"{verdict.engine_bytes / 1e6:.1f} MB" if verdict.accepted else ""
        table.add_row(verdict.graph, trial.shapes, str(verdict.layers), size, f"{verdict.seconds:.1f}", said)
    Console().print(table)
    accepted = sum(verdict.accepted for _, verdict in results)
    click.echo(
        f"{manifest.name}, {manifest.precision}: TensorRT for RTX {compiler_version()} accepts {accepted} of "
        f"{len(results)} for compute capability {compute_capability}"
    )
