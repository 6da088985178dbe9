"""Plans of a job without an Airflow: what ``frenzy plan``, DAG files and notebooks ask before anything runs."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frenzy.core.values.errors import FrenzyError, Reason, SpecError
from frenzy.core.values.job import TOKENIZER_KINDS, TrainingJob, deadline_s
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import counted

if TYPE_CHECKING:
    from frenzy.adapters.library_process import Told
    from frenzy.core.memory.calibration import Calibration
    from frenzy.core.memory.model_trace import ModelTrace
    from frenzy.core.models.parameters import ModelShape
    from frenzy.core.planning.remedy_changes import Change
    from frenzy.core.planning.single_changes import SingleChange
    from frenzy.core.values.cluster import Cluster
    from frenzy.settings import Settings

# Steps that predicted times stand for where their number is not known.
_ASSUMED_STEPS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan:
    """MARP's answer: ``candidates`` as ranked; ``refusal`` when none fits, with its remedy.

    is_estimate: whether ``total_steps`` is of tokens that are not counted yet. model: what is trained, in one line;
    None where no model is named. data_refusal: why a run would refuse its data or tokenizer, as far as they can be read
    here. note: why ``total_steps`` is assumed, which data are not here, what a user may not expect of the model: a
    line for each; None when all is well.
    """

    cluster_file: str
    policy: str
    total_steps: int
    candidates: tuple[Candidate, ...]
    refusal: Reason | None
    is_estimate: bool = False
    model: str | None = None
    data_refusal: Reason | None = None
    note: str | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return self.refusal is None


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


def plan_offline(
    job: TrainingJob,
    settings: Settings,
    cluster_file: Path,
    policy: str,
    *,
    every_plan: bool = False,
    told: Told | None = None,
) -> OfflinePlan:
    """The plans of ``job`` on the cluster in ``cluster_file``. Raises PermanentError for a bad file or model.

    every_plan: also those that another one beats in everything, and all that are refused. told: called
    with how many parts of a trace are done, and of how many.
    """
    from frenzy.adapters.k8s.inventory.products import cards_sold_as
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.core.planning.marp import PlanRequest, plan_candidates, smallest_remedy
    from frenzy.core.planning.model_notes import model_line, model_notes

    there = load_cluster(cluster_file)
    shape, trace = _model_of(job, settings, told)
    known = _steps(job)
    request = PlanRequest(
        job=job,
        shape=shape,
        total_steps=known.number,
        seconds_to_deadline=_seconds_to_deadline(job),
        trace=trace,
        sold_as=cards_sold_as,
    )
    calibration = _calibration_of(job, shape)
    candidates = plan_candidates(replace(request, every_plan=every_plan), there, calibration, policy)
    fits = any(each.feasible for each in candidates)
    return OfflinePlan(
        cluster_file=str(cluster_file),
        policy=policy,
        total_steps=known.number,
        candidates=candidates,
        refusal=None if fits else smallest_remedy(request, there, calibration, policy),
        is_estimate=known.is_estimate,
        model=model_line(job, shape, known.number),
        data_refusal=known.refusal,
        note=_joined(known.note, _tokenizer_note(job), *model_notes(job, shape)),
    )


def _tokenizer_note(job: TrainingJob) -> str | None:
    """That the tokenizer which the job names is no folder here; it may be one where the workers are, or a hub id."""
    name = job.model.tokenizer_used
    near = get_close_matches(name, TOKENIZER_KINDS, n=1, cutoff=0.7)
    is_hub_id = not near and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)
    if job.brings_own_data or name in TOKENIZER_KINDS or "://" in name or is_hub_id or _is_folder(name):
        return None
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"model.tokenizer {name!r} is no folder here: a run takes it for one of its workers' or for a hub id.{meant}"


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except OSError:  # too long a name, or below a closed folder
        return False


def _joined(*notes: str | None) -> str | None:
    return "\n".join(each for each in notes if each) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """How a job would fit cards that somebody names.

    cards: as asked, and the nodes that they are taken to be in. host_memory_bytes: of the first of these. changes: of
    the job, none where it fits as it is; None where no change was found that makes it fit. job: with the changes.
    candidates: its plans there, or the refused ones of the job as it is. alone: single changes of which any one would
    do, where it does not fit. in_place_of: the plan that was asked for, if any; mends: single changes of which any one
    makes it fit. model, data_refusal: as of ``OfflinePlan``. note: also why a cluster file was not heeded, what rules
    that plan out, what it is taken to have needed, and which network between nodes; None when all is well.
    """

    cards: str
    host_memory_bytes: int
    changes: tuple[Change, ...] | None
    job: TrainingJob
    candidates: tuple[Candidate, ...]
    alone: tuple[SingleChange, ...] = ()
    in_place_of: str | None = None
    mends: tuple[SingleChange, ...] = ()
    model: str | None = None
    data_refusal: Reason | None = None
    note: str | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a plan, with the changes."""
        return self.changes is not None


def fit_offline(
    job: TrainingJob,
    settings: Settings,
    cluster_file: Path | None,
    cards: str,
    policy: str,
    *,
    told: Told | None = None,
) -> FitAnswer:
    """The change of the least effect with which ``job`` fits ``cards``, such as ``1xRTX4090``; verified by its plan.

    cards: of the types in ``cluster_file``, or of the catalogue; or a plan on them that ran out of memory, such as
    ``8xa100-80-z2-mb1``: then also every single change of that plan with which it fits. cluster_file: None for that of
    the settings, where it can be read. Raises SpecError for a bad file that was named, PermanentError for cards that
    are not known, a plan that the job has not, or a model that cannot be planned.
    """
    from frenzy.adapters.k8s.inventory.products import cards_sold_as
    from frenzy.core.planning.asked_cards import nodes_of_cards, plan_asked_for
    from frenzy.core.planning.estimated_plans import network_taken
    from frenzy.core.planning.marp import (
        PlanRequest,
        changes_of_plan,
        failed_plan,
        mending_changes,
        plan_candidates,
        remedies,
    )
    from frenzy.core.planning.model_notes import model_line, model_notes

    own, note = _types_in(cluster_file, settings)
    there, shape_asked = plan_asked_for(cards, own, cards_sold_as) or (nodes_of_cards(cards, own, cards_sold_as), None)
    # the user names the cards: what the job says of types and their number does not hold here
    free = replace(job, constraints=replace(job.constraints, gpu_types=(), max_gpus=None))
    shape, trace = _model_of(job, settings, told)
    steps, left_s = _steps(job), _seconds_to_deadline(job)
    request = PlanRequest(job=free, shape=shape, total_steps=steps.number, seconds_to_deadline=left_s, trace=trace)
    calibration = _calibration_of(job, shape)
    failed = None if shape_asked is None else failed_plan(shape_asked, request, there, calibration, policy)
    mends = () if failed is None else changes_of_plan(failed, there, calibration)
    request = request if failed is None else failed.after
    candidates = plan_candidates(request, there, calibration, policy)
    changes: tuple[Change, ...] | None = ()
    alone: tuple[SingleChange, ...] = ()
    if not any(each.feasible for each in candidates):
        alone = mending_changes(request, there, calibration, policy)
        remedy = remedies(request, there, calibration, policy, within=True)
        changes = None if remedy is None else remedy.changes
        if remedy is not None:
            candidates = plan_candidates(remedy.request, there, calibration, policy)
            free = remedy.request.job
    leaves_node = any(each.leaves_node for each in (*mends, *alone))
    of_plan = () if failed is None else (failed.never_chosen, failed.assumed)
    taken = (
        *of_plan,
        network_taken(there.gpu_types, calibration) if leaves_node else None,
    )
    return FitAnswer(
        cards=_cards_of(there),
        host_memory_bytes=there.nodes[0].host_memory_bytes,
        changes=changes,
        job=free,
        candidates=_within(candidates, there),
        alone=alone,
        in_place_of=None if failed is None else failed.plan.plan_id,
        mends=mends,
        model=model_line(free, shape, steps.number),
        data_refusal=steps.refusal,
        note=_joined(note, steps.note, *taken, _tokenizer_note(free), *model_notes(free, shape)),
    )


def _within(candidates: tuple[Candidate, ...], there: Cluster) -> tuple[Candidate, ...]:
    """Those for no more GPUs than there are, if there is any."""
    count = there.num_gpus_by_type
    return tuple(each for each in candidates if each.plan.num_gpus <= count[each.plan.gpu_type]) or candidates


def _cards_of(there: Cluster) -> str:
    """``"1 rtx-4090"``, ``"16 h100 on 2 nodes"``."""
    count = sum(each.num_gpus for each in there.nodes)
    nodes = f" on {counted(len(there.nodes), 'node')}" if count > 1 else ""
    return f"{count} {there.nodes[0].gpu_type}{nodes}"


def _types_in(named: Path | None, settings: Settings) -> tuple[Cluster | None, str | None]:
    """The cluster in the file; of the settings' file, which nobody named here, else why the catalogue stands alone."""
    from frenzy.adapters.spec.cluster_file import load_cluster_file

    try:
        return load_cluster_file(named or settings.cluster_file).cluster, None
    except SpecError as error:
        if named is not None:
            raise
        first = error.violations[0]
        return None, f"{first.path} {first.value}: {first.allowed}. Cards are those of the catalogue alone."


def _model_of(job: TrainingJob, settings: Settings, told: Told | None) -> tuple[ModelShape, ModelTrace | None]:
    """The job's model; that of no model where its memory is declared. Raises PermanentError for a bad one.

    Of a family without a closed form, also its trace.
    """
    from frenzy.adapters.traced_config import planned_config
    from frenzy.core.memory.model_trace import trace_in
    from frenzy.core.models.shape import model_shape
    from frenzy.core.planning.script_plans import UNNAMED_MODEL

    if not job.names_a_model:
        return UNNAMED_MODEL, None
    config = planned_config(job.model, job.training, cache_folder=settings.cache_folder, told=told)[1]
    return model_shape(config), trace_in(config)


def _calibration_of(job: TrainingJob, shape: ModelShape) -> Calibration:
    """The coefficients of the model's family, or those of the release that the job's script runs."""
    from frenzy.adapters.calibration_file import calibration_of_release, family_calibration

    release = None if job.workload is None else job.workload.transformers_release
    return family_calibration(shape.family) if release is None else calibration_of_release(release)


def _seconds_to_deadline(job: TrainingJob) -> float | None:
    """From now; below 0 where it has passed."""
    deadline = deadline_s(job)
    return None if deadline is None else deadline - time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Optimizer steps of a job as far as they can be known here; the rest as of ``OfflinePlan``."""

    number: int
    is_estimate: bool = False
    refusal: Reason | None = None
    note: str | None = None


def _steps(job: TrainingJob) -> _Steps:
    """With max_steps the first data are read, where they are files, and the first held out; else as ``data_facts``."""
    from frenzy.core.runs.steps import total_steps
    from frenzy.trainer.data.data_facts import check_held_out, check_own_tokenizer, data_facts
    from frenzy.trainer.data.documents import pieces
    from frenzy.trainer.outcome import BadInputError, DataNotHereError

    given = found = job.training.max_steps
    note = refusal = None
    try:
        if not job.brings_own_data:
            check_own_tokenizer(job)
            if given is None:
                found = total_steps(job, data_facts(job))
            else:
                if "://" not in job.data.path and not any(text for text, _, _ in pieces(job.data)):
                    raise BadInputError("data.path", job.data.path, "there is no text in it")
                if "://" not in (job.validation.path or ""):
                    check_held_out(job)
    except DataNotHereError as error:
        note = f"{error.reason.sentence}. A run here would be refused for it."
    except FrenzyError as error:
        refusal = error.reason
    if found is None:
        why = note or "Without training.max_steps the steps are not known here."
        note = f"{why} Times are for {_ASSUMED_STEPS} steps."
    is_estimate = found is not None and given is None
    return _Steps(number=found or _ASSUMED_STEPS, is_estimate=is_estimate, refusal=refusal, note=note)
