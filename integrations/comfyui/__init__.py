"""LatentSync lip-sync as nodes for ComfyUI."""

from .nodes import comfy_entrypoint

__all__ = ["comfy_entrypoint"]
