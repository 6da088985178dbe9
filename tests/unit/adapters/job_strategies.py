"""Hypothesis strategies for valid training jobs."""

from __future__ import annotations

from hypothesis import strategies as st

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
    TrainingJob,
    TrainingSpec,
    TriggerSpec,
)

# Text that YAML could take for something else, and any other.
_TRICKY = st.sampled_from(
    ["on", "off", "yes", "no", "null", "~", "1", "3e-4", "0x1f", "1:30", "2027-01-31", "2027-01-31T18:00:00Z", ".5"]
    + ["- a", "a: b", "# no comment", "'", '"', "{", " lead", "trail ", "line\nline\n", "\n", "\ttab", "<<", "=", "!x"]
)
_ANY = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
texts = _TRICKY | _ANY
some_text = texts.filter(bool)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63) + 1, 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
variables = st.from_regex(r"JOB_[A-Za-z0-9_]{0,20}", fullmatch=True)
names = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)


def _share(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, exclude_max=True)


models = st.one_of(
    st.builds(
        ModelSpec,
        config=st.dictionaries(texts, json_values, max_size=3).map(lambda rest: {**rest, "model_type": "gpt2"}),
        tokenizer=st.none() | some_text,
        tokenizer_vocab_size=st.integers(260, 1_000_000),
    ),
    st.builds(ModelSpec, path=some_text),
    st.builds(ModelSpec, hub_id=some_text),
)
data = st.builds(
    DataSpec,
    path=some_text,
    format=st.sampled_from(["auto", "text", "jsonl", "parquet"]),
    text_column=texts,
    sequence_length=st.integers(8, 1_048_576),
    document_masks=st.booleans(),
    validation_fraction=_share(0.5),
)
conversations = st.builds(
    DataSpec,
    path=some_text,
    format=st.sampled_from(["auto", "jsonl", "parquet"]),
    messages=st.builds(
        MessagesSpec,
        column=some_text,
        roles=st.dictionaries(texts, texts, max_size=2),
        template=texts.map("{}{{% generation %}}".format),
    ),
)
loras = st.builds(
    LoraSpec,
    rank=st.integers(1, 1024),
    alpha=st.floats(0, 1e6, exclude_min=True),
    dropout=_share(1),
    target_modules=st.lists(texts, max_size=3).map(tuple),
    quantization=st.just("nf4"),
    double_quantization=st.booleans(),
) | st.builds(LoraSpec, rank=st.integers(1, 1024))
callbacks = st.builds(CallbackSpec, path=texts, args=st.dictionaries(texts, json_values, max_size=2))
lengths = st.one_of(
    st.fixed_dictionaries({"max_steps": st.integers(100, 10**9)}),
    st.fixed_dictionaries({"epochs": st.floats(0, 1e6, exclude_min=True)}),
)
trainings = lengths.flatmap(
    lambda length: st.builds(
        TrainingSpec,
        **{name: st.just(value) for name, value in length.items()},
        global_batch_size=st.integers(1, 1_000_000),
        optimizer=st.sampled_from(["adamw", "adamw-8bit", "sgd"]),
        attention=st.sampled_from(["sdpa", "eager"]),
        loss=st.sampled_from(["torch", "fused"]),
        learning_rate=st.floats(0, 10, exclude_min=True, exclude_max=True),
        weight_decay=_share(1),
        weight_decay_on=st.sampled_from(["all", "matrices"]),
        warmup_steps=st.integers(0, 100),
        lr_schedule=st.sampled_from(["constant", "linear", "cosine", "wsd"]),
        lr_decay_share=st.floats(0, 1, exclude_min=True),
        gradient_clipping=st.floats(0, 1e9),
        precision=st.sampled_from(Precision),
        gradient_checkpointing=st.sampled_from(Checkpointing),
        lora=st.none() | loras,
        seed=st.integers(0, 2**31 - 1),
        callbacks=st.lists(callbacks, max_size=2).map(tuple),
    )
)
triggers = st.one_of(
    st.builds(TriggerSpec, cron=st.none() | st.just("0 3 * * *"), max_active_runs=st.none() | st.integers(1, 100)),
    st.builds(
        TriggerSpec,
        assets=st.lists(st.from_regex(r"frenzy://models/[a-z0-9-]{1,20}", fullmatch=True), max_size=2).map(tuple),
    ),
)
jobs = st.builds(
    TrainingJob,
    name=names,
    model=models,
    data=data | conversations,
    training=trainings,
    checkpoint=st.builds(
        CheckpointSpec,
        every_steps=st.integers(1, 10**6),
        every_minutes=st.none() | st.floats(0.1, 1e4),
        background=st.booleans(),
        keep=st.integers(1, 100),
        resume=st.sampled_from(["auto", "never"]),
        warm_start=st.none() | some_text,
    ),
    evaluation=st.builds(EvaluationSpec, enabled=st.booleans(), prompt=texts),
    objective=st.sampled_from(Objective),
    constraints=st.builds(
        ConstraintsSpec,
        gpu_types=st.lists(texts, max_size=2).map(tuple),
        max_gpus=st.none() | st.integers(1, 1000),
        max_cost=st.none() | st.floats(0, 1e9, exclude_min=True),
        deadline=st.none() | st.just("2027-01-31T18:00:00Z"),
    ),
    on_memory_pressure=st.builds(MemoryPressureSpec, forecast=st.booleans(), max_reschedules=st.integers(0, 100)),
    trigger=triggers,
    priority=st.integers(-1000, 1000),
    env=st.dictionaries(variables, texts, max_size=3),
    secrets=st.dictionaries(variables, variables.map("env:{}".format) | st.just("k8s:hub.login/the_token"), max_size=2),
    description=texts,
)
