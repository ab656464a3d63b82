"""Components of the page, in the order in which they are seen."""

from typing import Any

import gradio as gr

from latentsync_trt.serve.service import Service
from latentsync_trt.web import parts
from latentsync_trt.web.parts import html
from latentsync_trt.web.redo_controls import RedoControls

PREVIEW_S = 3
"""How much of a clip the button for a preview paints."""


class Header:
    """The title and the choice of a model."""

    def __init__(self, bundles: list[str]) -> None:
        with gr.Row(elem_id="header"):
            gr.HTML(html.header())
            self.bundle = gr.Dropdown(
                bundles,
                value=bundles[0],
                label="Model",
                elem_id="bundle",
                filterable=False,
                interactive=len(bundles) > 1,
            )
            self.state = gr.HTML(elem_id="model")
        self.demo_note = gr.HTML(visible=False, elem_id="demo-note")


class Actions:
    """Buttons that begin and end a job, and messages about that."""

    def __init__(self) -> None:
        with gr.Row(elem_id="buttons"):
            self.start = gr.Button("Lip-sync", variant="primary", size="lg", elem_id="start")
            self.trial = gr.Button(
                f"Preview {PREVIEW_S} s", size="lg", min_width=120, elem_id="trial"
            )
            self.cancel = gr.Button(
                "Cancel", size="lg", min_width=120, visible=False, elem_id="cancel"
            )
        self.message = gr.HTML(html.message(), elem_id="message")
        self.anyway = gr.Button("Paint it anyway", size="sm", visible=False, elem_id="anyway")


class Results:
    """The browser's jobs, one of which is shown, with buttons for that."""

    def __init__(self, service: Service) -> None:
        self.progress = gr.HTML(html.empty(), elem_id="progress")
        self.redo = RedoControls(service)
        self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
        with gr.Row(visible=False, elem_id="job-buttons") as self.buttons:
            self.again = gr.Button("Use these settings again", size="sm", elem_id="again")
            self.delete = gr.Button("Delete", size="sm", min_width=90, elem_id="delete")


def add_options() -> dict[str, Any]:
    """Adds the controls of all options but the preset; returns them by name."""
    gr.Markdown("## Options", elem_id="options")
    with gr.Row(elem_classes="grid"):
        visible = parts.controls(parts.SHOWN)
    with (
        gr.Accordion("More options", open=False, elem_id="more"),
        gr.Row(elem_classes="grid"),
    ):
        return visible | parts.controls(parts.FOLDED)
