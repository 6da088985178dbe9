"""Cards as a person names them, ``1xRTX4090`` or ``8 x a100-80``, as machines that have them; and plans on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from frenzy.core.planning.grid import ZERO_STAGES, divisors, tensor_parallel_degrees
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.resource_remedies import MOST_GPUS
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.gpu_catalogue import (
    CATALOGUE,
    SoldAs,
    cards_of_a_node,
    sold_as_nothing,
    type_key,
    types_named,
)
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import PlanShape
from frenzy.core.values.units import counted

_CARDS: Final = re.compile(r"\s*(?:(-?\d{1,99})\s*[x*]\s*)?([\w -]+?)\s*", re.IGNORECASE)
_PLAN: Final = re.compile(
    r"(?P<cards>.+?)-z(?P<stage>\d)-mb(?P<size>[1-9]\d{0,6})(-tp(?P<tp>[1-9]\d{0,3}))?(?P<ckpt>-ckpt)?(?P<offload>-offload)?\s*",
    re.IGNORECASE,
)
# The end of a plan's name that has a slip.
_NEARLY_A_PLAN: Final = re.compile(r"-z\d|-mb\d*", re.IGNORECASE)
_AS_IN: Final = "Write it as 1xRTX4090."
_MOST_LISTED: Final = 8
# A workstation's or a server's usual host memory for each byte of its cards, and cores for each card.
_HOST_SHARE: Final = 2
_CPUS: Final = 8.0


def plan_asked_for(
    text: str, own: Cluster | None = None, sold_as: SoldAs = sold_as_nothing
) -> tuple[Cluster, PlanShape] | None:
    """The cards and the settings of a plan's name, ``8xa100-80-z3-mb2-ckpt``; None for a text that ends in none.

    own, sold_as, errors: as of ``nodes_of_cards``.
    """
    found = _PLAN.fullmatch(text)
    if found is None:
        return None
    stage = int(found["stage"])
    if stage not in ZERO_STAGES:
        detail = f"{text!r} has ZeRO stage {stage}, and the trainer has {_listed(ZERO_STAGES)}."
        raise _refused(detail, "Write z1, where ranks share the optimizer states alone, z2 or z3.")
    there = nodes_of_cards(found["cards"], own, sold_as)
    shape = PlanShape(
        gpu_type=there.nodes[0].gpu_type,
        num_gpus=there.num_gpus_by_type[there.nodes[0].gpu_type],
        tp=int(found["tp"] or 1),
        zero_stage=stage,
        micro_batch_size=int(found["size"]),
        activation_checkpointing=found["ckpt"] is not None,
        offload_optimizer=found["offload"] is not None,
    )
    return there, shape


def nodes_of_cards(cards: str, own: Cluster | None = None, sold_as: SoldAs = sold_as_nothing) -> Cluster:
    """Nodes with these cards, as few as there may be, each with twice its cards' memory and eight cores for a card.

    A node has as many cards at most as servers that are sold with them, or as one of ``own`` has. own: a cluster whose
    types count before those of the catalogue; the nodes then have as much host memory as theirs. sold_as: the cards
    that a driver's name may mean. Raises PermanentError (BAD_CONFIG_OR_DATA) for a text that is none, for a number
    out of range, and for a name that no card has, or several have.
    """
    found = _CARDS.fullmatch(cards)
    if found is None:
        raise _refused(f"{cards!r} is no number of cards and their name.", _AS_IN)
    count = int(found[1] or 1)
    if not 1 <= count <= MOST_GPUS:
        raise _refused(f"{cards!r} asks for {count:,} cards; --fit takes from 1 to {MOST_GPUS:,}.", _AS_IN)
    own = own or Cluster((), ())
    gpu = _card(found[2], own, sold_as)
    theirs = [each for each in own.nodes if each.gpu_type == gpu.name]
    widest = max((cards_of_a_node(gpu.name), *(each.num_gpus for each in theirs)))
    sizes = [min(widest, count - before) for before in range(0, count, widest)]
    return Cluster((gpu,), tuple(_node(number, size, gpu, theirs) for number, size in enumerate(sizes, start=1)))


def no_such_plan(failed: PlanShape, request: PlanRequest, cluster: Cluster) -> PermanentError:
    """Which rule ``failed`` breaks, of which ``request`` has no plan on ``cluster``."""
    detail, remedy = _broken_rule(failed, request, max(each.num_gpus for each in cluster.nodes))
    return _refused(f"The job has no plan {failed.plan_id}: {detail}.", remedy)


def _broken_rule(failed: PlanShape, request: PlanRequest, widest: int) -> tuple[str, str]:
    """The first one in words, and what would keep it. widest: GPUs of a node at most."""
    batch, size, tp = request.global_batch_size, failed.micro_batch_size, failed.tp
    degrees = tensor_parallel_degrees(request.shape, widest)
    if tp > widest:
        return f"its tensor parallel degree is beyond the {counted(widest, 'GPU')} of a node", _of("tp", degrees)
    if tp not in degrees:
        heads = f"{request.shape.num_heads} attention heads and {request.shape.num_key_value_heads} key-value heads"
        return f"tensor parallel degree {tp} does not divide {heads}", _of("tp", degrees)
    replicas, rest = divmod(failed.num_gpus, tp)
    if rest:
        return f"{failed.num_gpus} GPUs are not whole groups of {tp}", f"Name a multiple of {tp} GPUs."
    if batch % replicas:
        detail = f"{counted(replicas, 'replica')} do not divide the global batch size {batch}"
        return detail, f"GPUs over tensor parallel degree: {_listed(_near(divisors(batch, MOST_GPUS), replicas))}."
    if batch % (replicas * size):
        detail = f"{replicas} x {size} does not divide the global batch size {batch}"
        return detail, _of("mb", _near(divisors(batch // replicas, batch), size))
    if replicas == 1 and failed.zero_stage > 1:
        return f"a single replica has ZeRO stage 1, not {failed.zero_stage}", "Write z1, or name more GPUs."
    if request.job.workload is not None:
        return "its script does not honour all of these settings", "Name what workload.honours allows."
    return "a virtual GPU's memory is the host's, so that nothing is offloaded", "Leave out -offload."


def _near(numbers: Sequence[int], asked: int) -> Sequence[int]:
    return [each for each in numbers if each <= 2 * asked][-_MOST_LISTED:]


def _of(name: str, numbers: Sequence[int]) -> str:
    return f"Write {_listed([f'{name}{each}' for each in numbers])}."


def _listed(choices: Sequence[int | str]) -> str:
    *others, last = map(str, choices)
    return f"{', '.join(others)} or {last}" if others else last


def _node(number: int, num_gpus: int, gpu: GpuType, theirs: Sequence[Node]) -> Node:
    host = max((round(each.host_memory_bytes * max(1, num_gpus / each.num_gpus)) for each in theirs), default=None)
    return Node(
        name=f"asked-{number}",
        gpu_type=gpu.name,
        num_gpus=num_gpus,
        host_memory_bytes=host or _HOST_SHARE * num_gpus * gpu.memory_bytes,
        num_cpus=_CPUS * num_gpus,
    )


def _card(name: str, own: Cluster, sold_as: SoldAs) -> GpuType:
    """The card that the name means, of ``own`` before others; else the only one that is sold by it."""
    catalogue = [each.gpu for each in CATALOGUE.values()]
    similar = types_named(name, own.gpu_types, sold_as) or types_named(name, catalogue, sold_as)
    if not similar and _NEARLY_A_PLAN.search(name):
        raise _refused(
            f"{name!r} is neither a card nor a plan on one.",
            "A plan is written as 8xa100-80-z2-mb1-tp2-ckpt-offload, in this order: ZeRO stage 1 to 3 and micro-batch, "
            "then what applies of the others.",
        )
    if len(similar) != 1:
        which = f"it may be {', '.join(sorted(each.name for each in similar))}" if similar else "it is not known"
        known = {type_key(each.name): each.name for each in (*catalogue, *own.gpu_types)}
        near = [known[each] for each in get_close_matches(type_key(name), known, n=3)]
        like = f"Did you mean {' or '.join(near)}? " if near and not similar else ""
        raise _refused(
            f"Card {name!r}: {which}.", f"{like}Name a type of the cluster file or of docs/gpu-catalogue.md."
        )
    return similar[0]


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
