"""A job's environment variables: which names are its own, and how it refers to a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from frenzy.core.values.errors import Violation

REFERENCES: Final = "write a reference: env:NAME or k8s:secret/key"

# torch's allocator is set by either. Up to torch 2.9.1 growing segments are taken from the second, older name alone.
ALLOCATOR_VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SECRET_AND_KEY: Final = re.compile(rf"k8s:(?=.{{1,253}}/)({_LABEL}(?:\.{_LABEL})*)/((?!\.\.)[A-Za-z0-9._-]{{1,253}})")
_OF_CONTROL_PLANE: Final = ("FRENZY_", "AIRFLOW", "_AIRFLOW")
# By the first a process finds its GPUs, and NVIDIA's container runtime hands out others than the node's plugin gave;
# by the last the launcher on one machine finds the locks of its GPUs.
_OF_LAUNCHER: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    *("TMPDIR", "TEMP", "TMP"),
)


class KubernetesSecret(NamedTuple):
    """One entry of a Secret of the pods' namespace."""

    name: str
    key: str


def is_of_control_plane(variable: str) -> bool:
    """Whether ``variable`` belongs to Airflow or Frenzy: no job sets it, and none is given its value."""
    return variable.upper().startswith(_OF_CONTROL_PLANE)


def segments_grow(env: Mapping[str, str]) -> bool:
    """Whether torch's allocator is to use segments that grow: as the launcher sets it, or as ``env`` says instead.

    Not where ``env`` sets several variables that disagree: which of them is in force depends on torch's release.
    """
    given = [env[name].replace(" ", "").lower().split(",") for name in ALLOCATOR_VARIABLES if name in env]
    return all(_last_said(each) == "true" for each in given)


def _last_said(options: list[str]) -> str | None:
    said = [each.partition(":")[2] for each in options if each.startswith("expandable_segments:")]
    return said[-1] if said else None


def variable_of(reference: str) -> str | None:
    """The variable that ``env:NAME`` refers to; None for anything else, and for those of the control plane."""
    kind, _, name = reference.partition(":")
    is_one = kind == "env" and _VARIABLE.fullmatch(name) is not None and not is_of_control_plane(name)
    return name if is_one else None


def kubernetes_secret_of(reference: str) -> KubernetesSecret | None:
    """What ``k8s:secret/key`` refers to; None for anything else."""
    found = _SECRET_AND_KEY.fullmatch(reference)
    return None if found is None or found[2] == "." else KubernetesSecret(found[1], found[2])


def environment_violations(env: Mapping[str, str], secrets: Mapping[str, str]) -> Iterator[Violation]:
    """Names that no job may set, and references that are none; a value is never shown."""
    for field, given in (("env", env), ("secrets", secrets)):
        for name in given:
            allowed = _refusal(name)
            if allowed is not None:
                yield Violation(path=f"{field}.{name}", value="the name", allowed=allowed)
    for name, reference in secrets.items():
        kind, _, variable = reference.partition(":")
        if kind == "env" and _VARIABLE.fullmatch(variable) and is_of_control_plane(variable):
            allowed = "variables of Airflow and Frenzy are for no job; refer to another"
            yield Violation(path=f"secrets.{name}", value=repr(reference), allowed=allowed)
        elif variable_of(reference) is None and kubernetes_secret_of(reference) is None:
            yield Violation(path=f"secrets.{name}", value="a value", allowed=REFERENCES)


def _refusal(name: str) -> str | None:
    """What is allowed instead of the variable ``name``; None where a job may set it."""
    if _VARIABLE.fullmatch(name) is None:
        return "letters, digits and _, not a digit first, 255 characters at most"
    if is_of_control_plane(name):
        return "names that begin with FRENZY_ or AIRFLOW are set by Frenzy alone; choose another"
    if name in _OF_LAUNCHER:
        return "which GPUs and which temporary folder a job has is the launcher's to say; leave it out"
    return None
