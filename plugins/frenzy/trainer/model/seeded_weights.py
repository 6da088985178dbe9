"""Random first weights one parameter at a time: the same values whichever are made, and on which rank.

A family's own code says how its weights are drawn, module by module and sometimes twice for the same
parameter. It runs once on torch's meta device, where nothing is drawn; what it does to each parameter is
noted, and repeated for that parameter alone, in fp32, from a seed of its own. Numbers of large tensors are
drawn in parts, each from its own seed, by as many threads as torch may use: one draws 8B in over a minute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_PART_ELEMENTS: Final = 2**22
_PARTS_AT_MOST: Final = 2**20
_DRAWS: Final = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})


@dataclass(frozen=True, slots=True)
class _Call:
    """One operation on a parameter or a view of it. The references keep each tensor's id its own."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    result: Any


@dataclass(slots=True)
class _Notes:
    """Operations by the id of the parameter that they change; roots: the parameter of each view.

    made: those that made a tensor of no parameter, which may be copied into one.
    """

    calls: dict[int, list[_Call]] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    made: dict[int, list[_Call]] = field(default_factory=dict)

    def add(self, call: _Call) -> None:
        tensors = _tensors((call.arguments, call.named))
        root = next((self.roots[id(each)] for each in tensors if id(each) in self.roots), None)
        before = [one for each in tensors for one in self.made.get(id(each), ())]
        if root is None:
            self.made |= dict.fromkeys(map(id, _tensors(call.result)), _once([*before, call]))
        else:
            self.calls[root] = _once([*self.calls[root], *before, call])
            self.roots.update({id(each): root for each in _tensors(call.result)})


def _once(calls: list[_Call]) -> list[_Call]:
    return list({id(each): each for each in calls}.values())


class _Noting(TorchDispatchMode):
    def __init__(self, notes: _Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not say
        self._notes = notes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._notes.add(_Call(func, tuple(args), dict(kwargs or {}), result))
        return result


class SeededWeights:
    """How the parameters of ``model``, a transformers model on the meta device, are drawn from ``seed``."""

    def __init__(self, model: Any, seed: int) -> None:
        self._seed = seed
        self._notes = _Notes()
        for each in model.parameters():
            self._notes.roots[id(each)] = id(each)
            self._notes.calls[id(each)] = []
        with torch.no_grad(), _Noting(self._notes):
            model.initialize_weights()

    def draw(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor:
        """The values of ``parameter`` in fp32 on the host; they follow from the seed, its name and shape."""
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        seed = int.from_bytes(digest[:8], "little") >> 1
        torch.manual_seed(seed)
        values = torch.zeros(parameter.shape)
        real: dict[int, Any] = {id(parameter): values}
        with torch.no_grad():
            for call in self._notes.calls[id(parameter)]:
                arguments, named = _replaced(call.arguments, real), _replaced(call.named, real)
                if call.function in _DRAWS and arguments[0].is_contiguous():
                    seed += _PARTS_AT_MOST  # the next draw has numbers of its own
                    result = _drawn_in_parts(call.function, arguments, seed)
                else:
                    result = call.function(*arguments, **named)
                real.update({id(old): new for old, new in zip(_tensors(call.result), _tensors(result), strict=True)})
        return values


def _drawn_in_parts(function: Callable[..., Any], arguments: tuple[Any, ...], seed: int) -> torch.Tensor:
    """The first of ``arguments``, filled by ``function``. Its values do not depend on the number of threads."""
    whole: torch.Tensor = arguments[0]

    def fill(number: int, part: torch.Tensor) -> None:
        with torch.no_grad():  # each thread has its own setting
            function(part, *arguments[1:], generator=torch.Generator().manual_seed(seed + number))

    parts = whole.view(-1).split(_PART_ELEMENTS)
    num_threads = min(len(parts), torch.get_num_threads())
    if num_threads == 1:  # a thread's stack would count as memory of a virtual GPU
        for number, part in enumerate(parts):
            fill(number, part)
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(fill, range(len(parts)), parts))
    return whole


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _replaced(tree: Any, real: Mapping[int, Any]) -> Any:
    """``tree`` on the host, with the tensors that have values by now."""

    def replaced(each: Any) -> Any:
        return torch.device("cpu") if isinstance(each, torch.device) else real.get(id(each), each)

    return pytree.tree_map(replaced, tree)
