"""Frenzy: serverless training of language models on mixed GPU clusters, as an Airflow project.

The names of ``__all__`` are what DAG files and notebooks need. Each is imported when it is first used: the trainer
imports this package where there is no Airflow.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "CallbackSpec",
    "CheckpointSpec",
    "Checkpointing",
    "ConstraintsSpec",
    "DataSpec",
    "DeclaredMemory",
    "EvaluationSpec",
    "FrenzyError",
    "LoraSpec",
    "MemoryPressureSpec",
    "MessagesSpec",
    "ModelSpec",
    "Notifiers",
    "Objective",
    "OfflinePlan",
    "Precision",
    "SpecError",
    "TrackerSpec",
    "TrainingJob",
    "TrainingSpec",
    "TriggerSpec",
    "ValidationSpec",
    "WorkloadSpec",
    "__version__",
    "combinations",
    "frenzy_comparison",
    "frenzy_evaluation",
    "frenzy_training",
    "job_from_yaml",
    "plan",
]

if TYPE_CHECKING:
    from frenzy.adapters.spec.combinations import combinations
    from frenzy.adapters.spec.job_spec import job_from_yaml
    from frenzy.airflow.operators.compare_runs import frenzy_comparison
    from frenzy.airflow.operators.notifiers import Notifiers
    from frenzy.airflow.operators.task_group import frenzy_evaluation, frenzy_training
    from frenzy.core.values.errors import FrenzyError, SpecError
    from frenzy.core.values.job import (
        CallbackSpec,
        Checkpointing,
        CheckpointSpec,
        ConstraintsSpec,
        DataSpec,
        EvaluationSpec,
        LoraSpec,
        MemoryPressureSpec,
        MessagesSpec,
        ModelSpec,
        Objective,
        Precision,
        TrackerSpec,
        TrainingJob,
        TrainingSpec,
        TriggerSpec,
        ValidationSpec,
    )
    from frenzy.core.values.workload import DeclaredMemory, WorkloadSpec
    from frenzy.offline import OfflinePlan, plan
else:
    # Not for type checkers: they would take every name for one of this package.
    _ELSEWHERE = {
        "frenzy.adapters.spec.combinations": ("combinations",),
        "frenzy.adapters.spec.job_spec": ("job_from_yaml",),
        "frenzy.airflow.operators.compare_runs": ("frenzy_comparison",),
        "frenzy.airflow.operators.notifiers": ("Notifiers",),
        "frenzy.airflow.operators.task_group": ("frenzy_evaluation", "frenzy_training"),
        "frenzy.core.values.errors": ("FrenzyError", "SpecError"),
        "frenzy.core.values.workload": ("DeclaredMemory", "WorkloadSpec"),
        "frenzy.offline": ("OfflinePlan", "plan"),
    }
    _MODULES = {name: module for module, names in _ELSEWHERE.items() for name in names}

    def __getattr__(name):
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES.get(name, "frenzy.core.values.job")), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
