"""Colors and fonts of Gradio's own components; the rest is in page.css."""

import gradio as gr

_COLORS = {
    "body_background_fill": ("#fafafa", "#131316"),
    "body_text_color_subdued": ("#5b5b63", "#a3a3ad"),
    "background_fill_primary": ("#ffffff", "#1c1c20"),
    "block_label_background_fill": ("transparent", "transparent"),
    "block_title_text_color": ("*body_text_color", "*body_text_color"),
    "input_placeholder_color": ("*body_text_color_subdued", "*body_text_color_subdued"),
    "button_primary_background_fill": ("#0f766e", "#0f766e"),
    "button_primary_background_fill_hover": ("#115e59", "#0d8a80"),
    "checkbox_background_color_selected": ("#0f766e", "#0f766e"),
}
"""Light and dark; Gradio's own accent and grays have too little contrast."""


def theme() -> gr.themes.Base:
    """System fonts and one accent."""
    made = gr.themes.Default(primary_hue="teal", neutral_hue="zinc", radius_size="lg", font=("system-ui", "sans-serif"))
    light = {name: color for name, (color, _) in _COLORS.items()}
    return made.set(
        block_label_border_width="0px", **light, **{f"{name}_dark": pair[1] for name, pair in _COLORS.items()}
    )
