"""`latentsync-trt check`: tests a bundle's graphs with NVIDIA's compiler for TensorRT-RTX, without a GPU."""

import json
import platform
from dataclasses import asdict
from itertools import product
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from latentsync_trt import __version__
from latentsync_trt.bundle.find import describe_choice, find_bundle
from latentsync_trt.bundle.manifest import Bundle, Manifest
from latentsync_trt.cli.options import bundle_option
from latentsync_trt.cli.show import progress_bar
from latentsync_trt.runtime.compiler.process import Answer
from latentsync_trt.runtime.compiler.rtx import (
    DEFAULT_COMPUTE_CAPABILITY,
    Trial,
    check_compute_capability,
    compile_graph,
    compiler_version,
    plan_trials,
)
from latentsync_trt.types import Progress

Results = list[tuple[str, Trial, Answer]]
"""Compute capability, what was compiled for it, and the compiler's answer."""

_SHOWN = ("accepted", "reason", "layers", "engine_bytes", "seconds")
"""Fields of `Answer` that the JSON contains."""


@click.command("check")
@bundle_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option(
    "--compute-capability",
    "capabilities",
    multiple=True,
    default=[DEFAULT_COMPUTE_CAPABILITY],
    show_default=True,
    metavar="X.Y",
    help="GPU generation to compile for: 7.5 for RTX 20xx, 8.6 for RTX 30xx, 8.9 for RTX 40xx, 12.0 for RTX 50xx; may "
    "be given several times.",
)
@click.option(
    "--dynamic/--static",
    default=None,
    help="Compile for all shapes the bundle allows, or for one.  [default: both, if it was exported with --dynamic]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the verdicts, or the error.")
def command(
    bundle: str | None, graphs: tuple[str, ...], capabilities: tuple[str, ...], dynamic: bool | None, as_json: bool
) -> None:
    """Try the graphs of a bundle with NVIDIA's compiler for TensorRT-RTX, without a GPU; list what it refuses.

    It is not the compiler of provider tensorrt, but has the same parser interface and the same rules for types.
    """
    for capability in capabilities:
        check_compute_capability(capability)
    folder, why = find_bundle(bundle)
    if not as_json:
        click.echo(f"{describe_choice(folder, why)}, portable graphs", err=True)
    opened = Bundle.load(folder)
    trials = list(product(capabilities, plan_trials(opened.manifest, graphs, dynamic)))
    results: Results = []
    with progress_bar(hidden=as_json) as show:
        for number, (capability, trial) in enumerate(trials):
            show(Progress(f"{capability}: {trial.graph}, {trial.shapes}", number, len(trials)))
            answer = compile_graph(opened.graph_path(trial.graph), trial.profile, capability)
            results.append((capability, trial, answer))
    if as_json:
        click.echo(json.dumps(_report(opened.manifest, results), indent=2))
    else:
        _show(opened.manifest, results)
    if not all(answer.accepted for *_, answer in results):
        raise SystemExit(1)


def _report(manifest: Manifest, results: Results) -> dict[str, Any]:
    bundle = ("resolution_px", "frames", "precision", "opset")
    return {
        "bundle": manifest.name,
        **{name: getattr(manifest, name) for name in bundle},
        "form": "portable",
        "tensorrt_rtx": compiler_version(),
        "latentsync_trt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "accepted": all(answer.accepted for *_, answer in results),
        "graphs": [
            {"compute_capability": capability, **asdict(trial), **{name: getattr(answer, name) for name in _SHOWN}}
            for capability, trial, answer in results
        ],
    }


def _show(manifest: Manifest, results: Results) -> None:
    table = Table("for", "graph", "shapes", "layers", "engine", "seconds", "verdict", box=None, pad_edge=False)
    for column in table.columns[3:6]:
        column.justify = "right"
    table.columns[1].overflow = table.columns[6].overflow = "fold"
    for capability, trial, answer in results:
        verdict = Text("accepted", "green") if answer.accepted else Text(f"refused: {answer.reason}", "red")
        size = f"{answer.engine_bytes / 1e6:.1f} MB" if answer.accepted else ""
        table.add_row(capability, trial.graph, trial.shapes, str(answer.layers), size, f"{answer.seconds:.1f}", verdict)
    Console(markup=False, highlight=False, emoji=False).print(table)  # names come from the bundle's manifest
    compiler = f"{manifest.name}, {manifest.precision}: TensorRT-RTX {compiler_version()}"
    for each in dict.fromkeys(capability for capability, *_ in results):
        answers = [answer.accepted for capability, _, answer in results if capability == each]
        click.echo(f"{compiler} accepts {sum(answers)} of {len(answers)} for compute capability {each}")
