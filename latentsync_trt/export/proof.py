"""Verifies the graphs of an export one by one, as soon as each is written."""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.export.graphs import GraphPlan, build_graph, save_graph
from latentsync_trt.export.options import ExportOptions, Sources
from latentsync_trt.export.plans import Networks, load_networks, plan_graphs
from latentsync_trt.export.verify import open_checked, verify_graph


@dataclass(frozen=True)
class Proof:
    """How the graphs of `networks` are verified.

    `smaller`: options of the graphs to compare instead, at a lower resolution (see `verification_options`); None:
    those of the export itself, `options`.
    """

    options: ExportOptions
    sources: Sources
    networks: Networks
    smaller: ExportOptions | None = None

    def verify(self, plan: GraphPlan, path: Path) -> float:
        """The largest error of the graph in `path`, exported as planned; errors as `verify_graph`."""
        truth = self._truths.get(plan.name, plan.module)
        if self.smaller is None:
            return verify_graph(path, plan, truth, self.options.precision)
        open_checked(path, plan)
        instead = self._smaller_plans[plan.name]
        with tempfile.TemporaryDirectory(prefix="proof-", dir=path.parent.parent) as folder:
            graph = Path(folder) / path.name
            with WeightsFile(graph.with_suffix(".weights")) as weights:
                save_graph(build_graph(instead), graph, weights)
            return verify_graph(graph, instead, truth, self.options.precision)

    @cached_property
    def _truths(self) -> dict[str, nn.Module]:
        """Modules with unrounded weights, by graph; none for float32, which has no other (see `verify_graph`)."""
        if self.options.precision == "fp32":
            return {}
        networks = load_networks(self.sources, self.options, torch.float32)
        return {plan.name: plan.module for plan in plan_graphs(networks, self.options)}

    @cached_property
    def _smaller_plans(self) -> dict[str, GraphPlan]:
        return {plan.name: plan for plan in plan_graphs(self.networks, self.smaller or self.options)}
