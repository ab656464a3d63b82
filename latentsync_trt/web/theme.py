"""Colors and fonts of Gradio's own components; the rest is in page.css."""

import gradio as gr

_CLEAR, _ACCENT = "transparent", "#0f766e"
_COLORS = {
    "body_background_fill": ("#fafafa", "#131316"),
    "body_text_color": ("#1c1c1f", "#ececef"),
    "body_text_color_subdued": ("#5b5b63", "#a3a3ad"),
    "background_fill_primary": ("#ffffff", "#1c1c20"),
    "background_fill_secondary": ("#f4f4f5", "#26262b"),
    "border_color_primary": ("#e2e2e6", "#34343b"),
    "block_label_background_fill": (_CLEAR, _CLEAR),
    "block_label_text_color": ("*body_text_color_subdued", "*body_text_color_subdued"),
    "block_title_text_color": ("*body_text_color", "*body_text_color"),
    "input_background_fill": ("*background_fill_primary", "*background_fill_secondary"),
    "input_border_color": ("#d4d4d9", "#42424b"),
    "input_placeholder_color": ("#77777f", "#8f8f99"),
    "button_primary_background_fill": (_ACCENT, _ACCENT),
    "button_primary_background_fill_hover": ("#115e59", "#0d8a80"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
    "checkbox_background_color_selected": (_ACCENT, _ACCENT),
    "checkbox_border_color_selected": (_ACCENT, _ACCENT),
    "checkbox_label_background_fill": (_CLEAR, _CLEAR),
}
"""Light and dark."""
_SIZES = {"block_border_width": "1px", "block_label_border_width": "0px", "input_border_width": "1px"}


def theme() -> gr.themes.Base:
    """System fonts, one accent, and few borders."""
    fonts = {"font": ("ui-sans-serif", "system-ui", "sans-serif"), "font_mono": ("ui-monospace", "monospace")}
    made = gr.themes.Base(primary_hue="teal", neutral_hue="zinc", radius_size="lg", **fonts)
    light = {name: color for name, (color, _) in _COLORS.items()}
    return made.set(**_SIZES, **light, **{f"{name}_dark": color for name, (_, color) in _COLORS.items()})
