"""``frenzy plan --manifest``: the pods that an empty cluster would be sent for a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from frenzy.core.values.errors import PermanentError

if TYPE_CHECKING:
    from frenzy.core.values.cluster import Cluster
    from frenzy.core.values.job import TrainingJob
    from frenzy.core.values.launch import LaunchSpec
    from frenzy.core.values.resource_plan import ResourcePlan
    from frenzy.settings import Settings

# Real run keys are hashes: no run is ever called so.
PREVIEW: Final = "preview"


def manifest_text(job: TrainingJob, plans: Sequence[ResourcePlan], cluster: Cluster, settings: Settings) -> str:
    """YAML documents of the pods, in the order of the node ranks.

    plans: the feasible ones, best first. Raises PermanentError for bad pod rules, or when nothing can
    be placed on ``cluster`` as it is when empty.
    """
    from frenzy.adapters.k8s.launcher.manifest_yaml import manifest_yaml
    from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
    from frenzy.wiring import pod_rules

    rules = pod_rules(settings)
    spec = preview_spec(job, plans, cluster, settings, cpus_per_gpu=rules.cpus_per_gpu)
    return manifest_yaml(pods_of(spec, rules))


def preview_spec(
    job: TrainingJob,
    plans: Sequence[ResourcePlan],
    cluster: Cluster,
    settings: Settings,
    *,
    cpus_per_gpu: float = 1.0,
) -> LaunchSpec:
    """The first attempt of ``job``, placed by the settings' policy as if it were alone."""
    from frenzy.core.scheduling import policy_named, schedule
    from frenzy.core.values.launch import LaunchSpec
    from frenzy.core.values.scheduling_facts import Hold, QueuedJob, SchedulingFacts, Start

    waiting = QueuedJob(
        run_key=PREVIEW, job_name=job.name, submitted_s=0.0, plans=tuple(plans), objective=job.objective
    )
    facts = SchedulingFacts(cluster=cluster, queued=(waiting,), running=())
    policy = policy_named(settings.placement_policy.value, cpus_per_gpu=cpus_per_gpu)
    (action,) = schedule(facts, 0.0, policy)
    if isinstance(action, Hold):
        raise PermanentError(action.reason)
    assert isinstance(action, Start), "nothing runs that could be moved"
    return LaunchSpec(
        run_key=PREVIEW,
        attempt=1,
        job=job,
        plan=action.plan,
        gpu=cluster.types_by_name[action.plan.gpu_type],
        placement=action.placement,
        run_dir=f"{settings.run_root}/{PREVIEW}",
        nodes=cluster.nodes_of(action.placement),
    )
