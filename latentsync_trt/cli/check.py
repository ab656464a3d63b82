"""`latentsync-trt check`: tries the graphs of a bundle with NVIDIA's compiler for TensorRT-RTX, without a GPU."""

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
from latentsync_trt.cli.options import bundle_option
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.compiler.process import Answer
from latentsync_trt.runtime.compiler.rtx import (
    DEFAULT_COMPUTE_CAPABILITY,
    Trial,
    check_compute_capability,
    compile_graph,
    compiler_version,
    plan_trials,
)

Results = list[tuple[Trial, Answer]]

_SHOWN = ("accepted", "reason", "layers", "engine_bytes", "seconds")
"""Fields of `Answer` in the JSON."""


@click.command("check")
@bundle_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option(
    "--compute-capability",
    default=DEFAULT_COMPUTE_CAPABILITY,
    show_default=True,
    metavar="X.Y",
    help="GPU generation to compile for: 8.6 for RTX 30xx, 8.9 for RTX 40xx, 12.0 for RTX 50xx.",
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
    """Try the graphs of a bundle with NVIDIA's compiler for TensorRT-RTX, without a GPU; list what it refuses.

    It is not the compiler of provider tensorrt, but has the same parser interface and the same rules for types.
    """
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
            answer = compile_graph(opened.graph_path(trial.graph), trial.profile, compute_capability)
            results.append((trial, answer))
    if as_json:
        click.echo(json.dumps(_report(opened.manifest, compute_capability, results), indent=2))
    else:
        _show(opened.manifest, compute_capability, results)
    if not all(answer.accepted for _, answer in results):
        raise SystemExit(1)


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr with what is being compiled and for how long; yields the function that sets it."""
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
        "accepted": all(answer.accepted for _, answer in results),
        "graphs": [
            {
                "graph": trial.graph,
                "shapes": trial.shapes,
                "profile": {name: asdict(sizes) for name, sizes in trial.profile.items()},
                **{name: getattr(answer, name) for name in _SHOWN},
            }
            for trial, answer in results
        ],
    }


def _show(manifest: Manifest, compute_capability: str, results: Results) -> None:
    """Prints the table of verdicts and a summary line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("graph", overflow="fold")
    table.add_column("shapes")
    for heading in ("layers", "engine", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", overflow="fold")
    for trial, answer in results:
        verdict = Text("accepted", "green") if answer.accepted else Text(f"refused: {answer.reason}", "red")
        size = f"{answer.engine_bytes / 1e6:.1f} MB" if answer.accepted else ""
        table.add_row(trial.graph, trial.shapes, str(answer.layers), size, f"{answer.seconds:.1f}", verdict)
    Console().print(table)
    accepted = sum(answer.accepted for _, answer in results)
    click.echo(
        f"{manifest.name}, {manifest.precision}: TensorRT-RTX {compiler_version()} accepts {accepted} of "
        f"{len(results)} for compute capability {compute_capability}"
    )
