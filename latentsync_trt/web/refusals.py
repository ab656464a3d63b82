"""What Gradio is kept from: tracebacks of forged requests, and downloads.

Its methods are replaced, as it has no handler for errors of its own code and no setting for
downloads.
"""

from pathlib import Path
from typing import Any

import gradio as gr


def refuse_forged(blocks: gr.Blocks) -> None:
    """Answers values that no control can have, which the page's own script does not send, without a
    traceback.
    """
    preprocess = blocks.preprocess_data
    process = blocks.process_api

    async def checked(*arguments: Any, **more: Any) -> Any:
        try:
            return await preprocess(*arguments, **more)
        except Exception as error:  # only Gradio's own code runs there
            raise gr.Error(f"request: {error}") from error

    async def without_traceback(*arguments: Any, **more: Any) -> Any:
        try:
            return await process(*arguments, **more)
        except gr.Error as error:
            error.print_exception = False
            raise

    blocks.preprocess_data = checked
    blocks.process_api = without_traceback


def refuse_addresses(block: Any) -> None:
    """Refuses URLs as paths of files, which Gradio would download, of any size."""
    move = block.async_move_resource_to_block_cache

    async def checked(path: str | Path | None) -> Any:
        if path is not None and "://" in str(path):
            raise gr.Error("file: is an address; send the file itself")
        return await move(path)

    # Not in a subclass: Gradio writes a stub beside the module of one.
    block.async_move_resource_to_block_cache = checked
