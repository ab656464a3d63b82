"""Colors, fonts and sizes of Gradio's own components; the rest is in page.css."""

import gradio as gr

_CLEAR = "transparent"


def theme() -> gr.themes.Base:
    """System fonts, one accent, and few borders."""
    made = gr.themes.Base(
        primary_hue="teal",
        neutral_hue="zinc",
        radius_size="lg",
        font=("ui-sans-serif", "system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    return made.set(
        body_background_fill="#fafafa",
        body_background_fill_dark="#131316",
        body_text_color="#1c1c1f",
        body_text_color_dark="#ececef",
        body_text_color_subdued="#5b5b63",
        body_text_color_subdued_dark="#a3a3ad",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#1c1c20",
        background_fill_secondary="#f4f4f5",
        background_fill_secondary_dark="#26262b",
        border_color_primary="#e2e2e6",
        border_color_primary_dark="#34343b",
        block_border_width="1px",
        block_background_fill="*background_fill_primary",
        block_shadow="none",
        block_label_background_fill=_CLEAR,
        block_label_background_fill_dark=_CLEAR,
        block_label_border_width="0px",
        block_label_text_color="*body_text_color_subdued",
        block_title_text_color="*body_text_color",
        block_title_text_weight="500",
        block_info_text_color="*body_text_color_subdued",
        input_background_fill="*background_fill_primary",
        input_background_fill_dark="*background_fill_secondary",
        input_border_width="1px",
        input_border_color="#d4d4d9",
        input_border_color_dark="#42424b",
        input_placeholder_color="#77777f",
        input_placeholder_color_dark="#8f8f99",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_dark="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_background_fill_hover_dark="#0d8a80",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        checkbox_background_color_selected="#0f766e",
        checkbox_background_color_selected_dark="#0f766e",
        checkbox_border_color_selected="#0f766e",
        checkbox_label_background_fill=_CLEAR,
        checkbox_label_background_fill_dark=_CLEAR,
        checkbox_label_border_color="*border_color_primary",
        loader_color="#0f766e",
    )
