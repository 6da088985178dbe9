"""The config of the model of a job that is being written, for its plans before there is a run.

It is completed, or read from a folder or a hub, by a process of its own, briefly and within its memory: whoever may
start runs names what is read, and what holds the reading to the rules holds for a whole process. A model of a family
without a closed form is traced there, once for a config.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.local.worker_environment import helper_environment
from frenzy.adapters.spec.job_paths import anchored
from frenzy.adapters.spec.job_spec import job_from_document, job_to_document
from frenzy.adapters.traced_config import planned_config
from frenzy.core.values.codec import decode, encode
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.job import ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.sources import SourceRules

# A trace is most of it.
_TIMEOUT_S: Final = 90.0
# Of what each of its processes holds: less than an API server's container has.
_MOST_MEMORY_BYTES: Final = 1024**3
_NUM_REMEMBERED: Final = 16
logger = logging.getLogger("frenzy.web")
_READ: Final = "from frenzy.web.model_reader import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReader:
    """Reads configs. folders: where relative paths are looked for. cache_folder: where answers are kept."""

    folders: Sequence[Path] = ()
    cache_folder: Path | None = None

    def config_of(self, job: TrainingJob, rules: SourceRules) -> Mapping[str, Any]:
        """The complete config; empty where ``job`` names no model.

        Raises SpecError for a config that is refused, PermanentError for one that cannot be read from here.
        """
        if not job.names_a_model:
            return {}
        kept = {} if self.cache_folder is None else {"cache_folder": str(self.cache_folder)}
        if job.model.config is not None:
            training = {"precision": job.training.precision, "attention": job.training.attention}
            return _completed(json.dumps({"config": dict(job.model.config), "training": training, **kept}))
        asked = {"job": job_to_document(anchored(job, self.folders)), "rules": encode(rules), **kept}
        return _read_apart(json.dumps(asked))


def main() -> None:
    """In a process of its own: a config, or job and rules, on standard input; the answer on standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES,) * 2)
    try:
        answer: dict[str, Any] = {"config": _config(json.load(sys.stdin))}
    except SpecError as error:
        if isinstance(error.__cause__, OSError):  # the workers may see it
            answer = {"error": error.reason.sentence}
        else:
            answer = {"violations": encode(error.violations)}
    except FrenzyError as error:
        answer = {"error": error.reason.sentence}
    except MemoryError:
        answer = {"error": "Its config takes too much memory to be read here."}
    print(json.dumps(answer))


def _config(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    from frenzy.trainer.guarded import guarded

    folder = asked.get("cache_folder")
    cache_folder = None if folder is None else Path(folder)
    if "config" in asked:
        training = decode(TrainingSpec, asked["training"])
        return planned_config(ModelSpec(config=asked["config"]), training, cache_folder=cache_folder)[1]
    job, rules = job_from_document(asked["job"]), decode(SourceRules, asked["rules"])
    with guarded(job, rules):
        return planned_config(job.model, job.training, cache_folder=cache_folder)[1]


@lru_cache(_NUM_REMEMBERED)
def _completed(asked: str) -> Mapping[str, Any]:
    """The same config is asked at every change of the text around it."""
    return _read_apart(asked)


def _read_apart(asked: str) -> Mapping[str, Any]:
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
        logger.warning("the reader of a config failed: %s", complaint.strip()[-1000:])
        raise _unread("What reads it failed; the server's log says how.")
    answer = json.loads(told.splitlines()[-1])
    if "violations" in answer:
        raise SpecError(decode(tuple[Violation, ...], answer["violations"]))
    if "error" in answer:
        raise _unread(answer["error"])
    config: Mapping[str, Any] = answer["config"]
    return config


def _unread(why: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=why))
