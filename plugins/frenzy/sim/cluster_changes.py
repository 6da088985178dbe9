"""What would come of a queue if the cluster were another: changes in words, and the facts they lead to.

    add 4 L40S          four more GPUs, on new nodes like those there are of the type, else as they are sold
    remove 2 A100-40    two fewer, idle ones first; then the jobs that have run least on the type wait again
    drain NODE          the node takes no new work
    undrain NODE        it does again

Several are separated by commas. GPU types are those of the cluster and of the catalogue; capital
letters do not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from frenzy.adapters.spec.cluster_file import (
    DEFAULT_CPUS_PER_GPU,
    DEFAULT_HOST_TO_GPU_MEMORY,
    LEAST_DEFAULT_HOST_BYTES,
)
from frenzy.core.runs.views import QueueSnapshot
from frenzy.core.values.cluster import Cluster, Node, NodeState, held_by_node
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.gpu_catalogue import CATALOGUE, cards_of_a_node, types_named
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.scheduling_facts import SchedulingFacts
from frenzy.sim.replan import with_plans_for

_FORMS: Final = "add N TYPE, remove N TYPE, drain NODE or undrain NODE"
_COUNTED: Final = re.compile(r"(add|remove)\s+([1-9][0-9]{0,5})\s+(?:x\s*)?(\S+)", re.IGNORECASE)
_NAMED: Final = re.compile(r"(drain|undrain)\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A snapshot with changes made to it. notes: what the answer does not cover, and who had to give way."""

    snapshot: QueueSnapshot
    notes: tuple[str, ...] = ()


def what_if(snapshot: QueueSnapshot, text: str) -> Changed:
    """``snapshot`` with the changes that ``text`` asks for. Raises SpecError for what it does not say clearly."""
    facts, notes = snapshot.facts, list[str]()
    for part in (each.strip() for each in text.split(",")):
        facts = _changed(facts, part, snapshot.taken_s, notes)
    before, after = snapshot.facts.cluster.num_gpus_by_type, facts.cluster.num_gpus_by_type
    grown = frozenset(name for name, num_gpus in after.items() if num_gpus > before.get(name, 0))
    changed = replace(snapshot, facts=facts)
    if grown:
        changed, unplanned = with_plans_for(changed, grown)
        notes += unplanned
    return Changed(snapshot=changed, notes=tuple(notes))


def _changed(facts: SchedulingFacts, text: str, now_s: float, notes: list[str]) -> SchedulingFacts:
    counted, named = _COUNTED.fullmatch(text), _NAMED.fullmatch(text)
    if counted is not None:
        verb, count, name = counted.groups()
        gpu = _gpu_type(facts.cluster, name, text)
        if verb.lower() == "add":
            return replace(facts, cluster=_with_gpus(facts.cluster, gpu, int(count)))
        return _without_gpus(facts, gpu.name, int(count), now_s, notes)
    if named is not None:
        verb, name = named.groups()
        state = NodeState.DRAINING if verb.lower() == "drain" else NodeState.READY
        return replace(facts, cluster=_with_state(facts.cluster, name, state, text))
    raise _refused(text, f"{_FORMS}, separated by commas; N from 1 to 999999")


def _refused(value: str, allowed: str) -> SpecError:
    return SpecError([Violation(path="--what-if", value=repr(value), allowed=allowed)])


def _gpu_type(cluster: Cluster, name: str, text: str) -> GpuType:
    """The one that the name means, of the cluster before others."""
    catalogue = [each.gpu for each in CATALOGUE.values()]
    meant = types_named(name, cluster.gpu_types) or types_named(name, catalogue)
    if len(meant) > 1:
        raise _refused(text, f"one GPU type: {', '.join(each.name for each in meant)}")
    if not meant:
        here = ", ".join(each.name for each in cluster.gpu_types)
        raise _refused(text, f"a GPU type: {here} of the cluster, or {', '.join(sorted(CATALOGUE))}")
    return meant[0]


def _with_gpus(cluster: Cluster, gpu: GpuType, num_gpus: int) -> Cluster:
    """``num_gpus`` more, on as few new nodes of the usual size as it takes."""
    model = _usual_node(cluster, gpu)
    nodes = list(cluster.nodes)
    names = _unused_names(cluster)
    for first in range(0, num_gpus, model.num_gpus):
        share = min(model.num_gpus, num_gpus - first) / model.num_gpus
        size = round(model.num_gpus * share)
        host, cpus = round(model.host_memory_bytes * share), model.num_cpus * share
        nodes.append(replace(model, name=next(names), num_gpus=size, host_memory_bytes=host, num_cpus=cpus))
    known = gpu.name in cluster.types_by_name
    return Cluster(cluster.gpu_types if known else (*cluster.gpu_types, gpu), tuple(nodes))


def _usual_node(cluster: Cluster, gpu: GpuType) -> Node:
    """A node like most of the type; where there is none, one with what a cluster file would give it."""
    like = [
        replace(node, name="", state=NodeState.READY, labels={}, num_taken=0)
        for node in cluster.nodes
        if node.gpu_type == gpu.name and node.num_gpus > 0
    ]
    if like:
        sizes = Counter(node.num_gpus for node in like)
        return max(like, key=lambda node: (sizes[node.num_gpus], node.num_gpus, node.num_cpus, node.host_memory_bytes))
    num_gpus = cards_of_a_node(gpu.name)
    host_bytes = DEFAULT_HOST_TO_GPU_MEMORY * gpu.memory_bytes * num_gpus
    return Node(
        name="",
        gpu_type=gpu.name,
        num_gpus=num_gpus,
        host_memory_bytes=max(LEAST_DEFAULT_HOST_BYTES, host_bytes),
        num_cpus=DEFAULT_CPUS_PER_GPU * num_gpus,
    )


def _unused_names(cluster: Cluster) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        if f"what-if-{number}" not in cluster.nodes_by_name:
            yield f"what-if-{number}"


def _without_gpus(
    facts: SchedulingFacts, gpu_type: str, num_gpus: int, now_s: float, notes: list[str]
) -> SchedulingFacts:
    """``num_gpus`` fewer; jobs give way only where too few are idle."""
    there = sum(node.num_usable for node in facts.cluster.nodes if node.gpu_type == gpu_type)
    if num_gpus > there:
        raise _refused(f"remove {num_gpus} {gpu_type}", f"at most {there}, all that the cluster has for jobs")
    missing = num_gpus
    while missing:
        idle = _most_idle(facts, gpu_type)
        if idle is None:
            facts = _gives_way(facts, gpu_type, now_s, notes)
            continue
        node, num_idle = idle
        gone = min(missing, num_idle)
        missing -= gone
        smaller = replace(node, num_gpus=node.num_gpus - gone)
        nodes = [smaller if each.name == node.name else each for each in facts.cluster.nodes]
        kept = tuple(each for each in nodes if each.num_gpus > 0)
        facts = replace(facts, cluster=Cluster(facts.cluster.gpu_types, kept))
    return facts


def _most_idle(facts: SchedulingFacts, gpu_type: str) -> tuple[Node, int] | None:
    """The node with most GPUs that nobody holds; one that takes no new work, only where there is no other."""
    held = held_by_node(job.placement for job in facts.running)
    idle = [
        (node.state is NodeState.READY, node.num_usable - held.get(node.name, 0), node.name, node)
        for node in facts.cluster.nodes
        if node.gpu_type == gpu_type
    ]
    found = [each for each in idle if each[1] > 0]
    if not found:
        return None
    _, num_idle, _, node = max(found, key=lambda each: each[:3])
    return node, num_idle


def _gives_way(facts: SchedulingFacts, gpu_type: str, now_s: float, notes: list[str]) -> SchedulingFacts:
    """The job on the type that has run least is stopped at a checkpoint and waits again."""
    on_type = {node.name for node in facts.cluster.nodes if node.gpu_type == gpu_type}
    holders = [job for job in facts.running if any(each.node in on_type for each in job.placement.allocations)]
    victim = min(holders, key=lambda job: (job.ran_s(now_s), job.run_key))
    notes.append(f"{victim.job_name} gives its {victim.plan.num_gpus} {gpu_type} up and waits again.")
    running = tuple(job for job in facts.running if job.run_key != victim.run_key)
    queued = (*facts.queued, victim.stopped(now_s))
    return replace(facts, running=running, queued=queued)


def _with_state(cluster: Cluster, name: str, state: NodeState, text: str) -> Cluster:
    if name not in cluster.nodes_by_name:
        raise _refused(text, f"a node of the cluster: {', '.join(sorted(cluster.nodes_by_name))}")
    return cluster.with_node_state(name, state)
