"""The job specification: one definition for YAML, the Params form, Python and the JSON schema.

Each field carries its constraint (``annotated_types``) and its help (``doc``) so that every
other form is derived: pydantic validates at the edge, the schema and the Airflow form are
generated. Rules that span fields are in ``job_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

from frenzy.core.values.job_fields import Closed, Doc
from frenzy.core.values.workload import DeclaredMemory, WorkloadSpec

NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
MAX_PRIORITY: Final = 1000
# Far beyond any real job; so that no computation with them overflows or takes long.
MAX_STEPS: Final = 1_000_000_000
_PATH: Final = 4096
LONGEST_NAME: Final = 256
# The DAG of a stored job is called so, and then as the job.
JOB_DAG_PREFIX: Final = "job_"
# What the families call the linear map from the last hidden state to the vocabulary.
OUTPUT_HEADS: Final = ("lm_head", "embed_out")
# Implementations of attention that keep the documents of a packed sequence apart.
MASKING_ATTENTION: Final = ("sdpa", "eager")
# What ``model.tokenizer`` may be other than a place.
TOKENIZER_KINDS: Final = ("byte", "train", "model")
# Each byte is a token, and one ends a text.
BYTE_TOKENS: Final = 257
# What marks the assistant's part in a chat template.
GENERATION_MARK: Final = r"\{%-?\s*generation\s*-?%\}"


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    AUTOCAST_BF16 = "autocast-bf16"


class Checkpointing(StrEnum):
    """Activation checkpointing: decided by the plan, or fixed by the user."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Closed):
    """What is trained. Exactly one of ``config``, ``path``, ``hub_id``."""

    config: Annotated[
        Mapping[str, Any] | None,
        Doc("A Hugging Face model config with its model_type; the model starts from random weights."),
    ] = None
    path: Annotated[str | None, Len(0, _PATH), Doc("A local folder with config.json and, if there, weights.")] = None
    hub_id: Annotated[
        str | None, Len(0, LONGEST_NAME), Doc("A model id on the Hugging Face hub, where one can be reached.")
    ] = None
    revision: Annotated[
        str | None,
        Len(1, LONGEST_NAME),
        Doc("Commit, branch or tag of hub_id. A run keeps the commit that it finds when it is profiled."),
    ] = None
    tokenizer: Annotated[
        str | None,
        Len(0, _PATH),
        Doc(
            "byte, train (a byte-level BPE trained on the data), model (the model's own), or a folder. "
            "Without it: model below path and hub_id, else byte.",
            TOKENIZER_KINDS,
        ),
    ] = None
    tokenizer_vocab_size: Annotated[int, Ge(260), Le(1_000_000), Doc("Vocabulary of a trained tokenizer.")] = 4096

    @property
    def tokenizer_used(self) -> str:
        """What a model was trained with fits its embeddings, so that only a model of a config gets another."""
        return self.tokenizer or ("byte" if self.path is None and self.hub_id is None else "model")

    @property
    def tokenizer_size(self) -> int | None:
        """Tokens of a tokenizer that the trainer makes; None of one that exists already."""
        return {"byte": BYTE_TOKENS, "train": self.tokenizer_vocab_size}.get(self.tokenizer_used)

    @property
    def sources(self) -> tuple[str, ...]:
        """Which of its sources are given; a job names at most one."""
        return tuple(name for name in ("config", "path", "hub_id") if getattr(self, name) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesSpec(Closed):
    """Conversations in the place of texts. A row is a list of messages, of which the assistant's are learnt."""

    column: Annotated[str, Len(1, LONGEST_NAME), Doc("The column of the messages in jsonl, parquet and Arrow.")] = (
        "messages"
    )
    role: Annotated[str, Len(1, LONGEST_NAME), Doc("What a message calls its role.")] = "role"
    content: Annotated[str, Len(1, LONGEST_NAME), Doc("What a message calls its text.")] = "content"
    roles: Annotated[
        Mapping[str, str],
        Len(0, 32),
        Doc("Roles that the data call otherwise than the template does, as {human: user, gpt: assistant}."),
    ] = field(default_factory=dict)
    template: Annotated[
        str, Len(0, 50_000), Doc("A chat template (Jinja) with {% generation %}; empty: the tokenizer's own.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec(Closed):
    """The training text and how it is cut into sequences."""

    path: Annotated[str, Len(0, _PATH), Doc("A file, folder, glob or fsspec URL of text, jsonl, parquet or Arrow.")]
    format: Annotated[Literal["auto", "text", "jsonl", "parquet", "arrow"], Doc("auto goes by the file ending.")] = (
        "auto"
    )
    text_column: Annotated[str, Len(0, LONGEST_NAME), Doc("The column of the text in jsonl, parquet and Arrow.")] = (
        "text"
    )
    messages: Annotated[
        MessagesSpec | None, Doc("The rows are conversations: only the assistant's tokens are learnt.")
    ] = None
    sequence_length: Annotated[int, Ge(8), Le(1_048_576), Doc("Tokens per packed sequence.", (256, 1024, 4096))] = 1024
    document_masks: Annotated[
        bool, Doc("Tokens attend to their own document alone, and positions begin anew with each; for sdpa and eager.")
    ] = False
    validation_fraction: Annotated[float, Ge(0), Lt(0.5), Doc("Share kept for evaluation, from the end.")] = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec(Closed):
    """Low-rank adapters: the base weights stay frozen."""

    rank: Annotated[int, Ge(1), Le(1024), Doc("Rank of the adapters.")] = 16
    alpha: Annotated[float, Gt(0), Le(1e6), Doc("Scale of the adapters.")] = 32.0
    dropout: Annotated[float, Ge(0), Lt(1), Doc("Dropout inside the adapters.")] = 0.0
    target_modules: Annotated[
        tuple[str, ...], Len(0, 256), Doc("Modules that get adapters; empty: the library's choice.")
    ] = ()
    quantization: Annotated[
        Literal["none", "nf4"],
        Doc("nf4 keeps the frozen linear weights in 4 bits (QLoRA); none in the job's precision."),
    ] = "none"
    double_quantization: Annotated[bool, Doc("Quantise the scales of the 4-bit weights as well; for nf4.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackSpec(Closed):
    """A user's training callback, named by its import path."""

    path: Annotated[
        str, Len(0, LONGEST_NAME), Doc("package.module:Class", ("frenzy.trainer.callbacks:SnapshotAverage",))
    ]
    args: Annotated[Mapping[str, Any], Doc("Keyword arguments of the class.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec(Closed):
    """The mathematics of the run. The plan never changes any of it."""

    global_batch_size: Annotated[int, Ge(1), Le(1_000_000), Doc("Sequences per optimizer step.", (16, 64, 256))] = 32
    max_steps: Annotated[int | None, Ge(1), Le(MAX_STEPS), Doc("Optimizer steps; or give epochs.")] = None
    epochs: Annotated[float | None, Gt(0), Le(1e6), Doc("Passes over the data; or give max_steps.")] = None
    optimizer: Annotated[
        Literal["adamw", "adamw-8bit", "sgd"], Doc("The optimizer; adamw-8bit keeps AdamW's moments in 8 bits.")
    ] = "adamw"
    learning_rate: Annotated[float, Gt(0), Lt(10), Doc("Peak learning rate.", (3e-4, 1e-4))] = 3e-4
    weight_decay: Annotated[float, Ge(0), Lt(1), Doc("Decoupled weight decay.")] = 0.0
    weight_decay_on: Annotated[
        Literal["all", "matrices"], Doc("matrices leaves biases, norms and other vectors without weight decay.")
    ] = "all"
    beta1: Annotated[float, Ge(0), Lt(1), Doc("Adam's first moment decay, or SGD's momentum.")] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), Doc("Adam's second moment decay.")] = 0.999
    warmup_steps: Annotated[int, Ge(0), Le(MAX_STEPS), Doc("Steps of linear warm-up.")] = 0
    warmup_share: Annotated[
        float, Ge(0), Lt(1), Doc("Share of all steps that is linear warm-up; or give warmup_steps.", (0.01, 0.03))
    ] = 0.0
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine", "wsd"],
        Doc("Learning rate after the warm-up; wsd (warm-up, stable, decay) is constant, then linear."),
    ] = "constant"
    lr_decay_share: Annotated[
        float, Gt(0), Le(1), Doc("Share of all steps, at the end, in which wsd decays.", (0.1, 0.2))
    ] = 0.1
    lr_min_share: Annotated[
        float, Ge(0), Le(1), Doc("What linear, cosine and wsd decay to, as a share of the learning rate.", (0.1,))
    ] = 0.0
    gradient_clipping: Annotated[float, Ge(0), Le(1e9), Doc("Global norm; 0 turns it off.")] = 1.0
    precision: Annotated[Precision, Doc("Number format of weights and activations.")] = Precision.BF16
    gradient_checkpointing: Annotated[Checkpointing, Doc("auto lets the plan decide.")] = Checkpointing.AUTO
    checkpoint_every_layers: Annotated[
        int, Ge(1), Le(1024), Doc("Under activation checkpointing, one of so many layers is; 1: each.", (1, 2, 4))
    ] = 1
    attention: Annotated[
        Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"],
        Doc("How attention is computed; eager keeps all scores. FlashAttention 2 and 3 have to be installed."),
    ] = "sdpa"
    loss: Annotated[
        Literal["torch", "fused"], Doc("fused computes the same loss without ever holding the logits of all tokens.")
    ] = "torch"
    kernels: Annotated[
        Literal["torch", "liger"],
        Doc("liger computes norms, RoPE and SwiGLU by the kernels of liger-kernel, which has to be installed."),
    ] = "torch"
    compile: Annotated[
        bool, Doc("Compile each layer with torch.compile: faster steps, after minutes in the first one.")
    ] = False
    lora: Annotated[LoraSpec | None, Doc("Train low-rank adapters instead of all weights.")] = None
    seed: Annotated[int, Ge(0), Le(2**31 - 1), Doc("Seed of weights, dropout and data order.")] = 0
    callbacks: Annotated[
        tuple[CallbackSpec, ...], Len(0, 32), Doc("Code of yours that runs inside the training loop.")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec(Closed):
    """When state is saved and where a run starts."""

    every_steps: Annotated[int, Ge(1), Le(MAX_STEPS), Doc("Steps between checkpoints.")] = 100
    every_minutes: Annotated[
        float | None, Gt(0), Le(1e6), Doc("Minutes between checkpoints, instead of `every_steps`.")
    ] = None
    background: Annotated[
        bool, Doc("Train on while a checkpoint is written, from a copy in host memory; off: wait for it.")
    ] = True
    keep: Annotated[int, Ge(1), Le(100), Doc("Checkpoints kept, newest first.")] = 2
    resume: Annotated[Literal["auto", "never"], Doc("Whether an attempt starts from the run's last checkpoint.")] = (
        "auto"
    )
    warm_start: Annotated[
        str | None,
        Len(0, _PATH),
        Doc(
            "Folder or run key of an earlier model whose weights this run starts from; `newest`: the newest that this "
            "job has finished, `newest:JOB`: that a stored job has."
        ),
    ] = None

    @property
    def newest_of(self) -> str | None:
        """The job from whose newest finished model it starts, "" for its own; None for a place or nothing."""
        kind, _, name = (self.warm_start or "").partition(":")
        return name if kind == "newest" else None


class Objective(StrEnum):
    TIME = "time"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintsSpec(Closed):
    """Limits a user may set; none is needed."""

    gpu_types: Annotated[tuple[str, ...], Len(0, 64), Doc("Only these GPU types; empty: any.")] = ()
    max_gpus: Annotated[int | None, Ge(1), Le(1_000_000), Doc("Never more GPUs than this.")] = None
    max_cost: Annotated[
        float | None, Gt(0), Le(1e12), Doc("Upper bound of the predicted cost, in the cluster's currency.")
    ] = None
    deadline: Annotated[
        str | None, Len(0, 64), Doc("Time by which it must end, ISO 8601 with zone.", ("2027-01-31T18:00:00Z",))
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressureSpec(Closed):
    """What happens when memory runs short."""

    forecast: Annotated[bool, Doc("Move the job before it fails; off: only recover after a failure.")] = True
    max_reschedules: Annotated[int, Ge(0), Le(100), Doc("Moves and recoveries before the run fails.")] = 5
    min_run_s: Annotated[float, Ge(0), Le(1e9), Doc("Least running time between two forecast moves.")] = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSpec(Closed):
    """The loss on the held-out text while the training goes on."""

    path: Annotated[
        str | None,
        Len(1, _PATH),
        Doc("Held-out data of their own, read like data.path, in the place of a share of those."),
    ] = None
    every_steps: Annotated[
        int | None, Ge(1), Le(MAX_STEPS), Doc("Steps between validations, of which one follows the last step; or none.")
    ] = None
    max_sequences: Annotated[int, Ge(1), Le(1_000_000), Doc("Held-out sequences that are scored at most.")] = 64
    patience: Annotated[
        int | None, Ge(1), Le(MAX_STEPS), Doc("Validations without a lower loss after which the training ends early.")
    ] = None
    min_improvement: Annotated[float, Ge(0), Le(1e3), Doc("What the loss must fall by to count as lower.")] = 0.0
    keep_best: Annotated[
        bool, Doc("Save a checkpoint after each validation with a lower loss, and keep the best beside the newest.")
    ] = False
    final_model: Annotated[
        Literal["last", "best"], Doc("The weights of the finished model: of the last step, or of the best checkpoint.")
    ] = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec(Closed):
    """The task after the training."""

    enabled: Annotated[bool, Doc("Compute perplexity on the held-out text and sample from the model.")] = True
    prompt: Annotated[str, Len(0, 20_000), Doc("Start of the sample text; empty: the start of the held-out text.")] = ""
    max_new_tokens: Annotated[int, Ge(1), Le(4096), Doc("Length of the sample.")] = 64
    max_sequences: Annotated[int, Ge(1), Le(1_000_000), Doc("Held-out sequences that are scored at most.")] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSpec(Closed):
    """Where the training's curves go beside Frenzy's own pages."""

    kind: Annotated[
        Literal["wandb", "mlflow", "tensorboard"], Doc("Weights & Biases, an MLflow server, or TensorBoard's files.")
    ]
    project: Annotated[
        str,
        Len(0, LONGEST_NAME),
        Doc("W&B's project or entity/project, MLflow's experiment; nothing: frenzy.", ("language-models",)),
    ] = ""
    uri: Annotated[
        str | None,
        Len(1, _PATH),
        Doc("The server: MLflow's, or one of W&B that is not wandb.ai.", ("https://mlflow.example.org",)),
    ] = None
    mode: Annotated[Literal["online", "offline"], Doc("offline writes into the run directory, and asks no server.")] = (
        "online"
    )


_USUAL_ACTIVE_RUNS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSpec(Closed):
    """When the job's own DAG runs by itself. At most one of the two."""

    cron: Annotated[
        str | None,
        Len(0, LONGEST_NAME),
        Doc("A cron expression of five fields, UTC, or @hourly, @daily and so on.", ("0 3 * * *", "@daily")),
    ] = None
    assets: Annotated[tuple[str, ...], Len(0, 64), Doc("URIs of Assets; the job runs when all were updated.")] = ()
    max_active_runs: Annotated[
        int | None,
        Ge(1),
        Le(100),
        Doc("Runs of this job that may overlap; nothing: 4, or 1 where each starts from the newest model of the job."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(Closed):
    """What the user hands over: a model and data, never a GPU type or count."""

    name: Annotated[str, Len(1, 63), Doc("Lower-case letters, digits, - and _.", pattern=NAME_PATTERN)]
    model: Annotated[ModelSpec, Doc("Model")] = ModelSpec()
    data: Annotated[DataSpec, Doc("Data")] = DataSpec(path="")
    workload: Annotated[
        WorkloadSpec | None, Doc("A script of yours that trains, in the place of the built-in trainer.")
    ] = None
    memory: Annotated[
        DeclaredMemory | None,
        Doc("What a workload needs, where no model is named; nothing: as its runs took, or three steps show."),
    ] = None
    training: Annotated[TrainingSpec, Doc("Training")] = TrainingSpec()
    checkpoint: Annotated[CheckpointSpec, Doc("Checkpoints")] = CheckpointSpec()
    validation: Annotated[ValidationSpec, Doc("Validation")] = ValidationSpec()
    evaluation: Annotated[EvaluationSpec, Doc("Evaluation")] = EvaluationSpec()
    tracking: Annotated[
        tuple[TrackerSpec, ...], Len(0, 3), Doc("Trackers that get the training's curves; each at most once.")
    ] = ()
    objective: Annotated[Objective, Doc("What the plan minimises: the time to the end, or its cost.")] = Objective.TIME
    constraints: Annotated[ConstraintsSpec, Doc("Constraints")] = ConstraintsSpec()
    on_memory_pressure: Annotated[MemoryPressureSpec, Doc("Memory pressure")] = MemoryPressureSpec()
    elastic: Annotated[
        Literal["auto", "off"],
        Doc(
            "auto: while it runs it may be given more GPUs, fewer or others, or wait again, always from a "
            "checkpoint; off: it stays where it was started."
        ),
    ] = "auto"
    trigger: Annotated[TriggerSpec, Doc("Trigger")] = TriggerSpec()
    queue: Annotated[
        str, Len(1, 63), Doc("Queue the job waits in; one of those the administrator set, where any are.")
    ] = "default"
    priority: Annotated[int, Ge(-MAX_PRIORITY), Le(MAX_PRIORITY), Doc("Higher goes first.")] = 0
    team: Annotated[str, Len(1, 63), Doc("Who is charged for it; its quota counts.")] = "default"
    env: Annotated[
        Mapping[str, str], Len(0, 256), Doc("Environment variables of the trainer; not FRENZY_* or AIRFLOW*.")
    ] = field(default_factory=dict)
    secrets: Annotated[
        Mapping[str, str],
        Len(0, 256),
        Doc("Environment variable to reference (env:NAME, k8s:secret/key) that the administrator allows; no value."),
    ] = field(default_factory=dict)
    description: Annotated[str, Len(0, 50_000), Doc("Shown in Airflow, Markdown.")] = ""

    @property
    def max_active_runs(self) -> int:
        """Runs that may overlap. Two that start from the same newest model would train the same twice."""
        usual = 1 if self.checkpoint.newest_of in ("", self.name) else _USUAL_ACTIVE_RUNS
        return self.trigger.max_active_runs or usual

    @property
    def starts_random(self) -> bool:
        """Whether the first weights are drawn, and read from no file."""
        return self.model.config is not None and self.checkpoint.warm_start is None

    @property
    def brings_own_data(self) -> bool:
        """Whether the script loads the data itself: nothing is counted or prepared for it."""
        return self.workload is not None

    @property
    def held_out(self) -> TrainingJob | None:
        """The job whose data are all that is held out, where they have a place of their own."""
        if self.validation.path is None:
            return None
        return replace(self, data=replace(self.data, path=self.validation.path, validation_fraction=0.0))

    @property
    def names_a_model(self) -> bool:
        """Whether memory can be predicted; else it is declared."""
        return bool(self.model.sources)

    @property
    def can_move(self) -> bool:
        """Whether a running attempt may be stopped for a better place: a script that cannot go on is not."""
        return self.workload is None or self.workload.resumable is not False

    @property
    def can_change_width(self) -> bool:
        """Whether it goes on from its checkpoint on another number of GPUs."""
        return self.workload is None or self.workload.resumable is True


def deadline_s(job: TrainingJob) -> float | None:
    """The job's deadline in seconds since the epoch, if it has one."""
    text = job.constraints.deadline
    return None if text is None else datetime.fromisoformat(text).timestamp()
