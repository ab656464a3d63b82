"""Whether this machine has an NVIDIA GPU, also where no driver shows it."""

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

PCI_DEVICES = Path("/sys/bus/pci/devices")

_NVIDIA = 0x10DE
_DISPLAY_CLASS = 0x03
"""PCI class of display controllers, its first byte."""


def has_nvidia_gpu() -> bool:
    """Whether the system lists an NVIDIA display controller; Linux and Windows only."""
    return _in_registry() if os.name == "nt" else any(map(_is_nvidia_gpu, _listed()))


def _listed() -> list[Path]:
    try:
        return list(PCI_DEVICES.iterdir())
    except OSError:  # another system, or a container that hides it
        return []


def _is_nvidia_gpu(device: Path) -> bool:
    with suppress(OSError, ValueError):
        vendor, kind = (int((device / name).read_text(), 16) for name in ("vendor", "class"))
        return vendor == _NVIDIA and kind >> 16 == _DISPLAY_CLASS
    return False


def _in_registry() -> bool:
    winreg: Any = importlib.import_module("winreg")  # which exists on Windows only
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Enum\PCI") as devices:
            names = [winreg.EnumKey(devices, index) for index in range(winreg.QueryInfoKey(devices)[0])]
    except OSError:
        return False
    return any(name.upper().startswith(f"VEN_{_NVIDIA:04X}") for name in names)
