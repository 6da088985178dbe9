"""What the profile task does: from a specification and its data to a registered run."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frenzy.airflow.failures import fail
from frenzy.api import endpoints as api
from frenzy.core.runs.ledger import FINAL_STATES, DataFacts, RunIdentity, RunRecord, asked_model
from frenzy.core.runs.protocol import RegisterRun, RunView
from frenzy.core.values.codec import decode
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import ModelSpec, TrainingJob
from frenzy.settings import CHECKOUT, load_settings

if TYPE_CHECKING:
    from frenzy.adapters.api_client import ApiClient

logger = logging.getLogger(__name__)


def registration(
    identity: RunIdentity,
    job: Any,
    data_facts: Any,
    *,
    masked: tuple[str, ...] = (),
    before: RunRecord | None = None,
) -> RegisterRun:
    """The request that registers the run. Raises PermanentError for a bad spec, model or data.

    before: the run as it was, if its tasks were cleared; it goes on with its commit of a hub's model.
    """
    from frenzy.adapters.source_settings import source_rules
    from frenzy.adapters.spec.script_content import script_content
    from frenzy.adapters.traced_config import planned_config
    from frenzy.trainer.data.data_facts import data_facts as measure
    from frenzy.trainer.guarded import guarded

    spec, settings = job_of(job), load_settings(os.environ)
    asked = asked_model(spec.model)
    with guarded(spec, source_rules(settings, os.environ)):
        known = _known(data_facts)
        model_config: Mapping[str, Any] = {}
        if spec.names_a_model:
            model, model_config = planned_config(
                _at_its_commit(spec.model, before),
                spec.training,
                cache_folder=settings.cache_folder,
                told=_say_traced,
            )
            spec = replace(spec, model=model)  # every attempt reads the same commit
        return RegisterRun(
            identity=identity,
            job=spec,
            model_config=model_config,
            data_facts=known if spec.brings_own_data else measure(spec, known=known),
            masked=masked,
            asked_model=asked,
            script_content=script_content(spec),
        )


def _say_traced(done: int, of: int) -> None:
    logger.info("The model's family has no closed form: its own module is traced, %d of %d parts done.", done, of)


def _at_its_commit(model: ModelSpec, before: RunRecord | None) -> ModelSpec:
    if before is None or before.commit is None or not before.was_asked_for(model, asked_model(model)):
        return model
    return replace(model, revision=before.commit)


def known_run(client: ApiClient, run_key: str) -> RunRecord | None:
    """The run, if it was registered before: its tasks were cleared."""
    from frenzy.adapters.api_client import NotFoundError

    with suppress(NotFoundError):
        return client.send(api.run_view(run_key)).run
    return None


def job_of(job: Any) -> TrainingJob:
    """The job in a mapping, or in the YAML file at a path, with its local paths absolute. Raises SpecError."""
    from frenzy.adapters.spec.job_paths import anchored
    from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml

    folders = (load_settings(os.environ).dags_folder.parent, CHECKOUT)
    if isinstance(job, TrainingJob):
        return anchored(job, folders)
    if isinstance(job, Mapping):
        return anchored(job_from_document(job), folders)
    if isinstance(job, str | os.PathLike):
        return anchored(job_from_yaml(_text_of(Path(job))), (Path(job).absolute().parent, *folders), may_leave=True)
    raise SpecError([Violation(path="job", value=repr(job), allowed="give a mapping or the path of a YAML file")])


def log_plans(log: Any, view: RunView) -> None:
    """Every plan with its predicted memory and the reason for its rank or refusal."""
    from frenzy.cli.render.console import log_lines
    from frenzy.cli.render.plan_tables import candidates_table

    for line in log_lines(candidates_table(f"Plans of {view.run.job.name}", view.candidates)):
        log.info("%s", line)


def refuse_if_over(view: RunView) -> None:
    """Fail the task when the run was refused: nothing it could be tried again with would change that."""
    if view.run.state in FINAL_STATES:
        fail(view.run.reason, f"The run is {view.run.state}.")


def summary(view: RunView) -> dict[str, Any]:
    """What the profile task leaves in its XCom."""
    best = next((each.plan for each in view.candidates if each.rank == 1), None)
    return {
        "run_key": view.run.run_key,
        "job": view.run.job.name,
        "num_plans": sum(each.feasible for each in view.candidates),
        "best_plan": None if best is None else best.plan_id,
        "predicted_peak_bytes": None if best is None else best.memory.peak_allocated_bytes,
        "total_steps": view.run.total_steps,
    }


def _known(data_facts: Any) -> DataFacts:
    """Facts given by an earlier task. Raises ContractError for unknown names."""
    if data_facts is None:
        return DataFacts()
    known: DataFacts = data_facts if isinstance(data_facts, DataFacts) else decode(DataFacts, dict(data_facts))
    return known


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        allowed = f"it must be a readable YAML file ({error.strerror})"
        raise SpecError([Violation(path="job", value=repr(str(path)), allowed=allowed)]) from error
