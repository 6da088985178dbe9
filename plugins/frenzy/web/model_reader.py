"""The config of the model of a job that is being written, for its plans before there is a run.

A config in the job is completed here. A folder or a hub is read by a process of its own, briefly: what holds its
reading to the rules holds for a whole process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.local.worker_environment import helper_environment
from frenzy.adapters.model_config import resolve_model_config
from frenzy.adapters.spec.job_paths import anchored
from frenzy.adapters.spec.job_spec import job_from_document, job_to_document
from frenzy.core.values.codec import decode, encode
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.sources import SourceRules

_TIMEOUT_S: Final = 15.0
_READ: Final = "from frenzy.web.model_reader import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReader:
    """Reads configs. folders: where relative paths are looked for; cache_folder: where completed configs are kept."""

    folders: Sequence[Path] = ()
    cache_folder: Path | None = None

    def config_of(self, job: TrainingJob, rules: SourceRules) -> Mapping[str, Any]:
        """The complete config; empty where ``job`` names no model.

        Raises SpecError for a config in the job that is refused, PermanentError where a model elsewhere cannot be read
        from here.
        """
        if not job.names_a_model:
            return {}
        if job.model.config is not None:
            return resolve_model_config(job.model, cache_folder=self.cache_folder)
        return _read_apart(anchored(job, self.folders), rules)


def main() -> None:
    """In a process of its own: job and rules on standard input, config or error on standard output."""
    from frenzy.trainer.guarded import guarded

    asked = json.load(sys.stdin)
    job, rules = job_from_document(asked["job"]), decode(SourceRules, asked["rules"])
    try:
        with guarded(job, rules):
            answer: dict[str, Any] = {"config": resolve_model_config(job.model)}
    except FrenzyError as error:
        answer = {"error": error.reason.sentence}
    print(json.dumps(answer))


def _read_apart(job: TrainingJob, rules: SourceRules) -> Mapping[str, Any]:
    asked = json.dumps({"job": job_to_document(job), "rules": encode(rules)})
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _READ],
        env=helper_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what it starts itself ends with it
    ) as process:
        try:
            told, complaint = process.communicate(asked, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise _unread(f"It did not come within {_TIMEOUT_S:g} s.") from None
    if process.returncode != 0:
        raise _unread(complaint.strip()[-300:])
    answer = json.loads(told.splitlines()[-1])
    if "error" in answer:
        raise _unread(answer["error"])
    config: Mapping[str, Any] = answer["config"]
    return config


def _unread(why: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=why))
