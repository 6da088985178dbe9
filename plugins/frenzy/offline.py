"""Plans of a job without an Airflow: what ``frenzy plan``, DAG files and notebooks ask before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frenzy.core.values.errors import FrenzyError, Reason
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import Candidate

if TYPE_CHECKING:
    from frenzy.settings import Settings

# Steps that predicted times stand for where their number is not known.
_ASSUMED_STEPS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan:
    """MARP's answer: ``candidates`` as ranked; ``refusal`` when none fits, with its remedy.

    note: why ``total_steps`` is assumed; None when it is known.
    """

    cluster_file: str
    policy: str
    total_steps: int
    candidates: tuple[Candidate, ...]
    refusal: Reason | None
    note: str | None = None


def plan(
    job: TrainingJob | Path | str, *, cluster_file: Path | str | None = None, memory_policy: str | None = None
) -> OfflinePlan:
    """The plans of ``job``, best first, and the refused ones with their reasons. Starts nothing.

    job: the specification, or the path of its YAML file. cluster_file, memory_policy ("closed-form" or "paper"): those
    of the settings by default. Raises SpecError for a bad specification or cluster file, PermanentError for a model
    that cannot be planned.
    """
    from frenzy.adapters.connection_settings import settings_at_hand
    from frenzy.adapters.spec.spec_file import checked_spec

    settings = settings_at_hand()
    known = job if isinstance(job, TrainingJob) else checked_spec(Path(job)).job
    where = settings.cluster_file if cluster_file is None else Path(cluster_file)
    return plan_offline(known, settings, where, memory_policy or settings.memory_policy.value)


def plan_offline(job: TrainingJob, settings: Settings, cluster_file: Path, policy: str) -> OfflinePlan:
    """The plans of ``job`` on the cluster in ``cluster_file``. Raises PermanentError for a bad file or model."""
    from frenzy.adapters.calibration_file import default_calibration
    from frenzy.adapters.model_config import resolve_model_config
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.core.models.shape import model_shape
    from frenzy.core.planning.marp import PlanRequest, plan_candidates, smallest_remedy

    there = load_cluster(cluster_file)
    shape = model_shape(resolve_model_config(job.model, cache_folder=settings.cache_folder))
    steps, note = _steps(job)
    request = PlanRequest(job=job, shape=shape, total_steps=steps)
    calibration = default_calibration()
    candidates = plan_candidates(request, there, calibration, policy)
    fits = any(each.feasible for each in candidates)
    return OfflinePlan(
        cluster_file=str(cluster_file),
        policy=policy,
        total_steps=steps,
        candidates=candidates,
        refusal=None if fits else smallest_remedy(request, there, calibration, policy),
        note=note,
    )


def _steps(job: TrainingJob) -> tuple[int, str | None]:
    """Optimizer steps of the whole job, as far as they can be known here, and why they are assumed."""
    from frenzy.core.runs.ledger import DataFacts
    from frenzy.core.runs.steps import total_steps
    from frenzy.trainer.data.data_facts import data_facts

    if job.training.max_steps is not None:
        return job.training.max_steps, None
    try:
        return total_steps(job, data_facts(job) or DataFacts()) or _ASSUMED_STEPS, None
    except FrenzyError as error:
        return _ASSUMED_STEPS, f"{error.reason.sentence} Times are for {_ASSUMED_STEPS} steps."
