"""How a plan reaches a script: torchrun's variables, the DeepSpeed config, and ``FRENZY_*``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import ADAMW_8BIT, LaunchSpec, deepspeed_config
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.launch.local_ranks import LocalRanks
from frenzy.trainer.launch.script.checkpoints import ScriptCheckpoint, script_folder

# Where ``frenzy_agent`` is, for a script whose environment lacks it.
AGENT_FOLDER: Final = Path(__file__).parents[3] / "agent"
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRank:
    """One rank of a script on this machine, whom it meets, and the files by which it and its launcher speak."""

    spec: LaunchSpec
    ranks: LocalRanks
    local_rank: int
    address: str
    port: int
    scratch: Path
    resume: ScriptCheckpoint | None

    @property
    def rank(self) -> int:
        return self.ranks.first + self.local_rank

    @property
    def reports(self) -> Path:
        """What the script's agent says."""
        return self.scratch / f"rank-{self.rank}.reports"

    @property
    def stop_file(self) -> Path:
        """There once the script is asked to stop."""
        return self.scratch / "stop"

    @property
    def deepspeed_file(self) -> Path:
        return self.scratch / "ds_config.json"

    @property
    def job_file(self) -> Path:
        return self.scratch / "job.json"

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """``given`` with what the script is told."""
        paths = (str(AGENT_FOLDER), given.get("PYTHONPATH", ""))
        programs = (os.path.dirname(sys.executable), given.get("PATH", os.defpath))  # noqa: PTH120  # of a venv, unresolved
        return {
            **given,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PATH": os.pathsep.join(programs),
            **self._meeting(),
            **self._plan(),
            **self._places(),
        }

    def _meeting(self) -> dict[str, str]:
        """What torchrun sets."""
        spec = self.spec
        variables = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": spec.plan.num_gpus,
            "LOCAL_WORLD_SIZE": self.ranks.count,
            "GROUP_RANK": self.ranks.node_rank,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RUN_ID": f"{spec.run_key}.{spec.attempt}",
        }
        own = {"GLOO_SOCKET_IFNAME": "lo"} if self.address == _LOOPBACK else {}
        return own | {name: str(value) for name, value in variables.items()}

    def _plan(self) -> dict[str, str]:
        plan, training = self.spec.plan, self.spec.job.training
        variables = {
            "MICRO_BATCH_SIZE": plan.micro_batch_size,
            "ACCUMULATION_STEPS": plan.accumulation_steps,
            "GLOBAL_BATCH_SIZE": plan.global_batch_size,
            "ZERO_STAGE": plan.zero_stage,
            "ACTIVATION_CHECKPOINTING": int(plan.activation_checkpointing),
            "OFFLOAD_OPTIMIZER": int(plan.offload_optimizer),
            "PRECISION": training.precision,
            "MAX_STEPS": training.max_steps or "",
            "LEARNING_RATE": training.learning_rate,
            "SEED": training.seed,
            "SEQUENCE_LENGTH": self.spec.job.data.sequence_length,
            "DEVICE": "cpu" if self.spec.gpu.kind is DeviceKind.VIRTUAL else "cuda",
        }
        return {f"FRENZY_{name}": str(value) for name, value in variables.items()}

    def _places(self) -> dict[str, str]:
        spec, resume = self.spec, self.resume
        variables = {
            "RUN_DIR": spec.run_dir,
            "JOB_FILE": self.job_file,
            "DATA_PATH": spec.job.data.path,
            "CHECKPOINT_DIR": script_folder(spec),
            "CHECKPOINT_EVERY_STEPS": spec.job.checkpoint.every_steps,
            "MODEL_DIR": RunPaths(spec.run_dir).model_dir,
            "DEEPSPEED_CONFIG": self.deepspeed_file,
            "RESUME_FROM": "" if resume is None else resume.path,
            "RESUME_STEP": 0 if resume is None else resume.step,
            "AGENT_REPORTS": self.reports,
            "AGENT_STOP_FILE": self.stop_file,
        }
        return {f"FRENZY_{name}": str(value) for name, value in variables.items()}


def job_text(spec: LaunchSpec) -> str:
    """What the specification says of the training itself, defaults included; no variables, no secrets."""
    job = spec.job
    sections = {
        "model": replace(job.model, tokenizer=job.model.tokenizer_used),
        "data": job.data,
        "training": job.training,
    }
    return json.dumps({name: codec.encode(each) for name, each in sections.items()}, indent=2)


def deepspeed_text(spec: LaunchSpec) -> str:
    """The DeepSpeed config of the plan, as the file that a script is handed; without what DeepSpeed cannot make."""
    config = deepspeed_config(spec.job, spec.plan, spec.gpu.kind)
    if config["optimizer"]["type"] == ADAMW_8BIT:
        del config["optimizer"]
    return json.dumps(config, indent=2)
