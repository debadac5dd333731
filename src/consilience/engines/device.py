"""Torch tensors on an accelerator: both passes run there, and the value stays there.

`aggregate` uses this engine if all floating-point tensors of all parties are on one device other
than the CPU. Only what is put to a vote (integers, masks) passes through this machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consilience.engines.in_process import InProcess
from consilience.passes import on_device
from consilience.updates.tensors import Storage, Tensor
from consilience.updates.trees import Leaves, Path
from consilience.updates.usable import Updates


class Device(InProcess):
    """An engine over torch tensors on any device."""

    def __init__(self, updates: Updates) -> None:
        super().__init__(replace(updates, loops=on_device))

    def room(self, path: Path) -> Storage:
        """Return uninitialised storage for a tensor of the value, on the device."""
        model = self.updates.leaves[self.updates.template][path]
        return model.storage.new_empty(model.size) if model.kind == "float" else model.empty()


def devices(updates: Updates) -> set[Any]:
    """Return the devices of the floating-point tensors; None stands for this machine's memory."""
    found = {
        getattr(leaves[path].storage, "device", None)
        for leaves in (*updates.leaves, *([updates.center] if updates.center else []))
        for path in updates.floats
    }
    return {None if getattr(device, "type", "cpu") == "cpu" else device for device in found}


def on_this_machine(updates: Updates) -> Updates:
    """Return the updates in this machine's memory."""

    def hosted(leaves: Leaves) -> Leaves:
        return {path: _hosted(leaf) for path, leaf in leaves.items()}

    center = None if updates.center is None else hosted(updates.center)
    return replace(updates, leaves=tuple(map(hosted, updates.leaves)), center=center)


def _hosted(leaf: Tensor) -> Tensor:
    return Tensor(leaf.read(0, leaf.size), leaf.dtype, leaf.shape, leaf.source)
