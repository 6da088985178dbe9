"""Cards as a person names them, ``1xRTX4090`` or ``8 x a100-80``, as a machine that has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Final

from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType

SoldAs = Callable[[str], Iterable[GpuType]]

_CARDS: Final = re.compile(r"\s*(?:(\d{1,5})\s*[x*]\s*)?([\w -]+?)\s*", re.IGNORECASE)
# A workstation's or a server's usual host memory for each byte of its cards, and cores for each card.
_HOST_SHARE: Final = 2
_CPUS: Final = 8.0


def node_of_cards(cards: str, own: Cluster | None = None, sold_as: SoldAs = lambda _: ()) -> Cluster:
    """One node with these cards, twice their memory, and eight cores for each.

    own: a cluster whose types count before those of the catalogue; the node then has as much host memory as theirs.
    sold_as: the cards that a driver's name may mean. Raises PermanentError (BAD_CONFIG_OR_DATA) for a text that is
    none, and for a name that no card has, or several have.
    """
    found = _CARDS.fullmatch(cards)
    count = int(found[1] or 1) if found else 0
    if found is None or count < 1:
        raise _refused(f"{cards!r} is no number of cards and their name.", "Write it as 1xRTX4090.")
    own = own or Cluster((), ())
    gpu = _card(found[2], own, sold_as)
    theirs = [each for each in own.nodes if each.gpu_type == gpu.name]
    host = max((round(each.host_memory_bytes * max(1, count / each.num_gpus)) for each in theirs), default=None)
    node = Node(
        name="asked",
        gpu_type=gpu.name,
        num_gpus=count,
        host_memory_bytes=host or _HOST_SHARE * count * gpu.memory_bytes,
        num_cpus=_CPUS * count,
    )
    return Cluster((gpu,), (node,))


def _card(name: str, own: Cluster, sold_as: SoldAs) -> GpuType:
    """The card of that name; else the only one whose name ends or begins so, or that is sold by it."""
    asked = _plain(name)
    known = {_plain(each): entry.gpu for each, entry in CATALOGUE.items()}
    known |= {_plain(each.name): each for each in own.gpu_types}
    if asked in known:
        return known[asked]
    similar = [gpu for each, gpu in known.items() if each.endswith(asked) or each.startswith(asked)]
    similar = similar or [own.types_by_name.get(each.name, each) for each in sold_as(name)]
    if len(similar) != 1:
        which = f"it may be {', '.join(sorted(each.name for each in similar))}" if similar else "it is not known"
        near = [known[each].name for each in get_close_matches(asked, known, n=3)]
        like = f"Did you mean {' or '.join(near)}? " if near and not similar else ""
        raise _refused(
            f"Card {name!r}: {which}.", f"{like}Name a type of the cluster file or of docs/gpu-catalogue.md."
        )
    return similar[0]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce|gb$", "", name.lower())


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
