"""Colors, fonts and sizes of the page, for Gradio's own components."""

import gradio as gr


def theme() -> gr.themes.Base:
    """System fonts, one accent."""
    return gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="zinc",
        radius_size="lg",
        font=("ui-sans-serif", "system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
