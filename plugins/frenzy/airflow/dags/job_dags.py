"""Specifications as DAGs: the jobs folder's shards, ``include/jobs``, and reconciliation.

A DAG file of a folder of specs is two lines that call ``job_dags_of_shard`` or ``job_dags_of_folder``.
Task processes build only the DAG they need. A spec that is refused shows as an import error of
that file, with the spec's path and what is wrong; its neighbours load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from airflow.sdk import DAG, Asset, get_parsing_context

from frenzy.adapters.spec.job_spec import job_from_yaml, shown_yaml
from frenzy.airflow.operators.operators import ReconcileOperator
from frenzy.airflow.operators.task_group import frenzy_evaluation, frenzy_training
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import JOB_DAG_PREFIX, TrainingJob, TriggerSpec
from frenzy.settings import JOBS_BUNDLE

TAG: Final = "frenzy"

_LOADER_PREFIX: Final = "dags_"
_LOADER: Final = '''"""Airflow DAGs of the specifications in {shard}; written by frenzy, do not edit."""

from frenzy.airflow.dags import job_dags_of_shard

globals().update(job_dags_of_shard(__file__))
'''
_SINCE: Final = datetime(2024, 1, 1, tzinfo=UTC)


def job_dags_of_shard(loader: str) -> dict[str, DAG]:
    """The DAGs of the shard folder beside the loader file, by DAG id."""
    path = Path(loader)
    shard = path.parent / path.stem.removeprefix(_LOADER_PREFIX)
    return _dags_of(_specs_in(shard), loader)


def job_dags_of_folder(folder: Path, loader: str, *, jobs_folder: Path | None = None) -> dict[str, DAG]:
    """The DAGs of the specs in ``folder``; a job that is also stored in ``jobs_folder`` is left to it."""
    stored = set() if jobs_folder is None else {each.name for each in jobs_folder.glob("shard_*/*.yaml")}
    return _dags_of((each for each in _specs_in(folder) if each.name not in stored), loader)


def ensure_loaders(jobs_folder: Path) -> tuple[Path, ...]:
    """Give each shard that has specs its loader file; the files that are new."""
    shards = (each for each in sorted(jobs_folder.glob("shard_*")) if any(each.glob("*.yaml")))
    return tuple(path for shard in shards if (path := _write_loader(shard)) is not None)


def loader_of(spec_file: Path) -> Path:
    """The loader of the shard that ``spec_file`` lies in; written if it is not there."""
    shard = spec_file.parent
    _write_loader(shard)
    return _loader_path(shard)


def job_dag(job: TrainingJob, *, loader: str) -> DAG:
    """The DAG of one job: train, evaluate; its spec, which is never a template, is its documentation."""
    dag = DAG(
        dag_id=f"{JOB_DAG_PREFIX}{job.name}",
        schedule=_schedule(job.trigger),
        start_date=_SINCE,
        catchup=False,
        max_active_runs=job.max_active_runs,
        description=_first_line(job.description) or f"Trains {job.name}.",
        doc_md=_documentation(job),
        tags=[TAG, f"team:{job.team}", f"queue:{job.queue}"],
    )
    dag.fileloc = loader
    with dag:
        trained = frenzy_training(job)
        if job.evaluation.enabled:
            trained >> frenzy_evaluation()
    return dag


def reconcile_dag() -> DAG:
    """Reconciles ledger, workers and Airflow once a minute; never paused, also where new DAGs are."""
    with DAG(
        dag_id="frenzy_reconcile",
        schedule="* * * * *",
        start_date=_SINCE,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        description="Looks at suspect leases and at what the ledger, Airflow and the workers disagree about.",
        tags=[TAG],
    ) as dag:
        ReconcileOperator(task_id="reconcile", retries=0)
    return dag


sweep_dag = reconcile_dag  # its name in copies of dags/frenzy_sweep.py that an earlier `frenzy init` made


def request_parse(loader: Path) -> None:
    """Ask the DAG processor to parse ``loader`` next. For the API server's process only."""
    from airflow.models.dagbag import DagPriorityParsingRequest
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagPriorityParsingRequest(bundle_name=JOBS_BUNDLE, relative_fileloc=loader.name))


def _specs_in(folder: Path) -> list[Path]:
    """Spec files in name order; only the one that is needed where a single DAG is."""
    wanted = get_parsing_context().dag_id
    if wanted is None:
        return sorted(each for each in folder.glob("*.yaml") if not each.name.startswith("."))
    path = folder / f"{wanted.removeprefix(JOB_DAG_PREFIX)}.yaml"
    return [path] if path.is_file() else []


def _dags_of(specs: Iterable[Path], loader: str) -> dict[str, DAG]:
    dags: dict[str, DAG] = {}
    refused: dict[str, str] = {}
    for path in specs:
        try:
            dag = _dag_of(path, loader)
            dags[dag.dag_id] = dag
        except Exception as error:  # one bad spec must not take its neighbours along
            refused[str(path)] = _why(error)
    if refused:
        dags["frenzy_refused_specs"] = _RefusedSpecs(refused, loader)
    return dags


def _dag_of(path: Path, loader: str) -> DAG:
    job = job_from_yaml(path.read_text(encoding="utf-8"))
    if job.name != path.stem:
        allowed = f"the file is named {path.name}; call the job {path.stem!r} or rename the file"
        raise SpecError([Violation(path="name", value=repr(job.name), allowed=allowed)])
    return job_dag(job, loader=loader)


def _why(error: Exception) -> str:
    if isinstance(error, SpecError):
        return "; ".join(str(each) for each in error.violations)
    return str(error) or type(error).__name__


class RefusedSpecsError(Exception):
    """Specifications of this file's folder are refused; the message lists them all."""


class _RefusedSpecs(DAG):
    """Stands for the refused specs of a file: Airflow takes its validation's failure as an import error."""

    def __init__(self, refused: Mapping[str, str], loader: str) -> None:
        super().__init__(dag_id="frenzy_refused_specs", schedule=None)
        self.fileloc = loader
        self.refused = dict(refused)

    def validate(self) -> None:
        raise RefusedSpecsError("\n".join(f"{path}: {why}" for path, why in self.refused.items()))


def _write_loader(shard: Path) -> Path | None:
    """The shard's loader file if it had to be written, else None."""
    path, text = _loader_path(shard), _LOADER.format(shard=shard.name)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return None
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return path


def _loader_path(shard: Path) -> Path:
    return shard.parent / f"{_LOADER_PREFIX}{shard.name}.py"


def _schedule(trigger: TriggerSpec) -> Any:
    if trigger.assets:
        return [Asset(each) for each in trigger.assets]
    return trigger.cron


def _documentation(job: TrainingJob) -> str:
    text = shown_yaml(job)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)  # no text of the job ends the block
    return f"{job.description.strip()}\n\n{fence}yaml\n{text}\n{fence}\n".lstrip()


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
