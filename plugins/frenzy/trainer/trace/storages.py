"""Which storages operations make and when each one dies: the log that every trace is read from.

Every operation's outputs are followed to their storages, so views count once and a storage leaves
the sum when its last tensor does. The log keeps events, not sums: what a storage was for is often
known only later (a gradient is one when it reaches its parameter), and is then said of its past too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Operation = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(slots=True)
class Allocation:
    """One storage: its bytes, and what it is for once that is known."""

    num_bytes: int
    purpose: str | None = None


def _takes_memory(tensor: torch.Tensor) -> bool:
    """A tensor on the meta device is only a shape."""
    device = getattr(tensor, "fake_device", None)
    return not tensor.is_meta if device is None else device.type != "meta"


def run_operation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As torch does it."""
    return func(*args, **kwargs)


class StorageLog(TorchDispatchMode):
    """Notes every storage that operations make, and its end.

    events: index of an allocation, or ~index where it is freed. operation_ends: number of events
    after each operation. granule: each storage takes a multiple of so many bytes. call: runs an
    operation. size_of: bytes of an output of an operation where its storage does not tell them.
    """

    def __init__(
        self,
        *,
        granule: int = 1,
        call: Operation = run_operation,
        size_of: Callable[[Any, int, torch.Tensor], int | None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._granule, self._call, self._size_of = granule, call, size_of
        self._index_by_storage: dict[int, int] = {}
        self._ignored: set[int] = set()
        self.allocations: list[Allocation] = []
        self.events: list[int] = []
        self.operation_ends: list[int] = []
        self.live_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = self._call(func, args, kwargs or {})
        for index, each in enumerate(tree_leaves(outputs)):
            if isinstance(each, torch.Tensor) and _takes_memory(each):
                self._follow(each, self._size_of(func, index, each) if self._size_of else None)
        self.operation_ends.append(len(self.events))
        return outputs

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave the storages of ``tensors`` out of every sum."""
        self._ignored |= {each.untyped_storage()._cdata for each in tensors}

    def assign(self, tensors: Iterable[torch.Tensor], purpose: str) -> None:
        """Say what the storages of ``tensors`` are for; those not seen before are there from now on."""
        for each in tensors:
            index = self._follow(each)
            if index is not None:
                self.allocations[index].purpose = purpose

    def reserve(self, num_bytes: int, purpose: str) -> None:
        """Bytes that are there from now on and belong to no tensor."""
        self.events.append(len(self.allocations))
        self.allocations.append(Allocation(num_bytes, purpose))
        self.live_bytes += num_bytes

    def assign_live(self, purpose: str) -> int:
        """Say it of every live storage of which nothing was said yet; their bytes."""
        live = (self.allocations[index] for index in self._index_by_storage.values())
        found = [each for each in live if each.purpose is None]
        for each in found:
            each.purpose = purpose
        return sum(each.num_bytes for each in found)

    def series(self) -> tuple[int, ...]:
        """Live bytes after each operation."""
        live, done, found = 0, 0, []
        for end in self.operation_ends:
            for event in self.events[done:end]:
                live += self.allocations[event].num_bytes if event >= 0 else -self.allocations[~event].num_bytes
            found.append(live)
            done = end
        return tuple(found)

    def _follow(self, tensor: torch.Tensor, num_bytes: int | None = None) -> int | None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self._index_by_storage.get(key)
        if found is not None or key in self._ignored:
            return found
        size = storage.nbytes() if num_bytes is None else num_bytes
        rounded = -(-size // self._granule) * self._granule
        index = len(self.allocations)
        self.allocations.append(Allocation(rounded))
        self._index_by_storage[key] = index
        self.events.append(index)
        self.live_bytes += rounded
        weakref.finalize(storage, self._drop, key).atexit = False
        return index

    def _drop(self, key: int) -> None:
        index = self._index_by_storage.pop(key)
        self.events.append(~index)
        self.live_bytes -= self.allocations[index].num_bytes
