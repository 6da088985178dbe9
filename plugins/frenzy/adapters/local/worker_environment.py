"""The environment that workers on this machine start with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import frenzy
from frenzy.adapters.local.processes import ATTEMPT_VARIABLE, RUN_KEY_VARIABLE
from frenzy.core.errors import PermanentError, Reason, ReasonCode
from frenzy.core.hardware import DeviceKind
from frenzy.core.launch import LaunchSpec

_ENV_REFERENCE: Final = "env:"
_WITHHELD_PREFIXES: Final = ("AIRFLOW", "_AIRFLOW", "FRENZY_DATABASE", "FRENZY_PASSWORD")
_PLUGINS_DIR: Final = Path(frenzy.__file__).resolve().parents[1]
_VIRTUAL: Final[Mapping[str, str]] = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def worker_environment(spec: LaunchSpec, base: Mapping[str, str]) -> dict[str, str]:
    """What the workers of ``spec`` see: ``base`` without Airflow's own, the job's, its secrets.

    Raises PermanentError for a secret that ``base`` does not hold, or that is not in it by kind.
    """
    path = spec.job.env.get("PYTHONPATH", "")
    return {
        **helper_environment(base),
        "OMP_NUM_THREADS": "1",
        **spec.job.env,
        **{name: _secret(name, reference, base) for name, reference in spec.job.secrets.items()},
        **(_VIRTUAL if spec.gpu.kind is DeviceKind.VIRTUAL else {}),
        "PYTHONPATH": _python_path(path, base),
        RUN_KEY_VARIABLE: spec.run_key,
        ATTEMPT_VARIABLE: str(spec.attempt),
    }


def helper_environment(base: Mapping[str, str]) -> dict[str, str]:
    """For a process of this project that is none of an attempt's workers."""
    withheld = (*_WITHHELD_PREFIXES, RUN_KEY_VARIABLE, ATTEMPT_VARIABLE)
    kept = {name: value for name, value in base.items() if not name.startswith(withheld)}
    return {**kept, "PYTHONPATH": _python_path("", base)}


def _python_path(first: str, base: Mapping[str, str]) -> str:
    places = [str(_PLUGINS_DIR), first, base.get("PYTHONPATH", "")]
    return ":".join(dict.fromkeys(part for each in places for part in each.split(":") if part))


def _secret(name: str, reference: str, base: Mapping[str, str]) -> str:
    if not reference.startswith(_ENV_REFERENCE):
        detail = f"The secret {name} refers to {reference!r}, which only a cluster can resolve."
        raise _refused(detail, "On one machine, refer to an environment variable: env:NAME.")
    variable = reference.removeprefix(_ENV_REFERENCE)
    if variable not in base:
        detail = f"The secret {name} refers to the environment variable {variable}, which is not set."
        raise _refused(detail, f"Set {variable} where Airflow's components are started.")
    return base[variable]


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))
