"""The environment of processes on this machine that run what users chose: a list of variables, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import frenzy
from frenzy.adapters.local.worker_processes import ATTEMPT_VARIABLE, RUN_KEY_VARIABLE
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job_environment import is_of_control_plane, variable_of
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.prepared_data import PreparingSpec

# What a process needs of its machine. No name of a secret fits one of these: NVIDIA_API_KEY and HF_TOKEN are some.
_INHERITED: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHON*", "SPT_NOENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NCCL_*", "GLOO_*", "DS_ACCELERATOR"),
    *("OMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "TORCH_HOME", "PYTORCH_*", "TRITON_CACHE_DIR"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE"),
)
# Of those that are otherwise the control plane's: the mark of a stack's processes, and the trainer's own times.
_INHERITED_OF_OURS: Final = (
    *("FRENZY_STACK", "FRENZY_STOP_GRACE_S"),
    *("FRENZY_STARTUP_S", "FRENZY_COLLECTIVE_TIMEOUT_S"),
)
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_MORE: Final = "FRENZY_WORKER_ENV"
_PLUGINS_DIR: Final = Path(frenzy.__file__).resolve().parents[1]
_VIRTUAL: Final[Mapping[str, str]] = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def worker_environment(spec: LaunchSpec, base: Mapping[str, str]) -> dict[str, str]:
    """What the workers of ``spec`` see: what they inherit of ``base``, the job's own, its secrets.

    Raises PermanentError for a secret that ``base`` does not hold, or that is not for jobs.
    """
    path = spec.job.env.get("PYTHONPATH", "")
    return {
        **helper_environment(base),
        **spec.job.env,
        **{name: _secret(name, reference, base) for name, reference in spec.job.secrets.items()},
        **(_VIRTUAL if spec.gpu.kind is DeviceKind.VIRTUAL else {}),
        "PYTHONPATH": _python_path(path, base),
        RUN_KEY_VARIABLE: spec.run_key,
        ATTEMPT_VARIABLE: str(spec.attempt),
    }


def preparing_environment(spec: PreparingSpec, base: Mapping[str, str]) -> dict[str, str]:
    """What the process sees that prepares the data of ``spec``: as its workers, but none of their marks, and no GPU.

    Raises PermanentError as ``worker_environment``.
    """
    return {
        **helper_environment(base),
        "OMP_NUM_THREADS": "1",
        **spec.job.env,
        **{name: _secret(name, reference, base) for name, reference in spec.job.secrets.items()},
        **_VIRTUAL,
        "PYTHONPATH": _python_path(spec.job.env.get("PYTHONPATH", ""), base),
    }


def helper_environment(base: Mapping[str, str]) -> dict[str, str]:
    """What any process inherits of ``base`` that is this project's and runs what a user chose.

    That is a list of names, those that FRENZY_WORKER_ENV in ``base`` adds, and proxies without a password.
    """
    more = tuple(each.strip() for each in base.get(_MORE, "").split(","))
    kept = {name: value for name, value in base.items() if _is_inherited(name, value, more)}
    return {**kept, "PYTHONPATH": _python_path("", base)}


def _is_inherited(name: str, value: str, more: tuple[str, ...]) -> bool:
    if is_of_control_plane(name):
        return name in _INHERITED_OF_OURS
    if any(fnmatchcase(name, pattern) for pattern in (*_INHERITED, *more)):
        return True
    return name.lower() in _PROXIES and "@" not in value


def _python_path(first: str, base: Mapping[str, str]) -> str:
    places = [str(_PLUGINS_DIR), first, base.get("PYTHONPATH", "")]
    return ":".join(dict.fromkeys(part for each in places for part in each.split(":") if part))


def _secret(name: str, reference: str, base: Mapping[str, str]) -> str:
    variable = variable_of(reference)
    if variable is None:
        detail = f"The secret {name} refers to {reference!r}, which no job on one machine may be given."
        raise _refused(detail, "Refer to an environment variable that is not Airflow's or Frenzy's: env:NAME.")
    if variable not in base:
        detail = f"The secret {name} refers to the environment variable {variable}, which is not set."
        raise _refused(detail, f"Set {variable} where Airflow's components are started.")
    return base[variable]


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))
