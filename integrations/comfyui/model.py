"""A bundle as a model of ComfyUI: opened when a node needs it, and closed when ComfyUI unloads its
models.
"""

import logging
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any

import comfy.model_management
import torch
from comfy.model_patcher import ModelPatcher

from latentsync_trt import LipSync, RuntimeOptions


class LatentSync(torch.nn.Module):
    """What PyTorch sees of a bundle: nothing but the name, for ComfyUI's log."""


class LatentSyncModel(ModelPatcher):
    """An entry in ComfyUI's list of loaded models. It has no weights that PyTorch could move: all
    or nothing is loaded.

    ComfyUI has no callback for memory outside PyTorch; of its own class these few methods tell it
    about ours. `size`, for which it makes room on the GPU, is that of the bundle's files.
    """

    def __init__(self, folder: Path, provider: str, options: RuntimeOptions) -> None:
        on_gpu = provider != "cpu"
        if on_gpu:
            size = sum(path.stat().st_size for path in folder.iterdir())
        else:
            size = 0
        super().__init__(
            LatentSync(), comfy.model_management.get_torch_device(), torch.device("cpu"), size=size
        )
        self._settings = folder, provider, options
        self._lip_sync: Any = None

    def lip_sync(self) -> LipSync:
        """The open bundle, after ComfyUI has made room for it. Raises as `LipSync.from_bundle`."""
        comfy.model_management.load_models_gpu([self])
        return self._lip_sync

    def loaded_size(self) -> int:
        if self._lip_sync is None:
            return 0
        return self.size

    def partially_load(self, *_: Any, **__: Any) -> int:
        if self._lip_sync is None:
            self._lip_sync = lip_sync = LipSync.from_bundle(*self._settings, on_notice=logging.info)
            # ComfyUI drops a model whose settings changed without unloading it.
            self._close = weakref.finalize(self, _close, lip_sync, self._settings[0].name)
            logging.info("LatentSync: opened %s", self._settings[0].name)
        return 0

    def partially_unload(self, *_: Any, **__: Any) -> int:
        return 0

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> None:  # noqa: ARG002
        if unpatch_weights and self._lip_sync is not None:
            self._lip_sync = None
            self._close()


def _close(lip_sync: LipSync, name: str) -> None:
    lip_sync.close()
    logging.info("LatentSync: closed %s", name)


@lru_cache(maxsize=1)
def model_of(folder: Path, provider: str, options: RuntimeOptions) -> LatentSyncModel:
    """The model of these settings; the latest stays open where ComfyUI forgets a node's output
    between two runs.
    """
    return LatentSyncModel(folder, provider, options)
