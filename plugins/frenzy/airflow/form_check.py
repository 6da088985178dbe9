"""The whole form of ``frenzy_train`` is checked before its DAG run exists. For the API server's process only.

Airflow checks each field for itself, where its row of the run is made, and answers with what is wrong there. This looks
at all of them at the same place, after it: what the task ``profile`` would refuse is shown in the form.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow.utils.types import DagRunTriggeredByType

from frenzy.airflow.dags.train_form import DAG_ID, form, job_of_form
from frenzy.core.values.errors import SpecError
from frenzy.core.values.units import counted
from frenzy.settings import load_settings

_BY_A_PERSON: Final = frozenset({DagRunTriggeredByType.UI, DagRunTriggeredByType.REST_API})
log = logging.getLogger(__name__)


def check_forms() -> None:
    """From now on no run of a form that stands for no job is made in this process."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import event

    event.listen(DagRun, "init", refuse_bad_form)


def refuse_bad_form(_run: Any, _values: Any, made: Mapping[str, Any]) -> None:
    """Raises ValueError, which Airflow answers with 400, that lists every violation. made: what the row is made of."""
    if made.get("dag_id") != DAG_ID or made.get("triggered_by") not in _BY_A_PERSON:
        return
    presets = load_settings(os.environ).dags_folder.parent / "include/jobs"
    try:
        _job(made.get("conf") or {}, presets)
    except SpecError as error:
        wrong = "; ".join(str(each) for each in error.violations)
        raise ValueError(f"Refused: {counted(len(error.violations), 'field')}. {wrong}") from error
    except OSError as error:  # presets that are not on this machine: the task has them
        log.warning("The form of %s is left to its task: %s", DAG_ID, error)


def _job(conf: Mapping[str, Any], presets: Path) -> None:
    job_of_form({name: each.value for name, each in form(presets).items()} | dict(conf), presets)
