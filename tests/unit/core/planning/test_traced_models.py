"""Models of families without a closed form: planned from their trace as far as it ran, and said so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core.marp_values import CALIBRATION, job, llama_config, mixed_cluster, request

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, Attention, TokenBytes
from frenzy.core.memory.model_trace import ModelTrace
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.launchable import refusal_whatever_is_traced
from frenzy.core.planning.marp import plan_candidates
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.workload import WorkloadSpec

SHAPE = replace(model_shape(llama_config()), family="later", autotp=False)


def traced(attention: Attention = Attention.SDPA, **fields: Any) -> ModelTrace:
    sets = tuple(
        ActivationCoefficients(
            family="later",
            precision=Precision.BF16,
            checkpointing=checkpointing,
            attention_dropout=True,
            hidden_dropout=True,
            layer=TokenBytes(constant=4000.0),
            outside=TokenBytes(constant=1000.0, vocab=4.0),
            in_loss=(TokenBytes(vocab=8.0),),
            in_backward=(TokenBytes(constant=3000.0, vocab=-4.0),),
            kind=kind,
            attention=attention,
        )
        for kind in DeviceKind
        for checkpointing in (False, True)
    )
    return ModelTrace(activations=sets, versions={"transformers": "5.23"}, **fields)


def asked(trace: ModelTrace | None, **choices: Any) -> PlanRequest:
    of = job()
    training = replace(of.training, **{"precision": Precision.BF16, **choices})
    return replace(request(SHAPE, replace(of, training=training)), trace=trace)


def candidates_of(trace: ModelTrace, **choices: Any) -> tuple[Candidate, ...]:
    return plan_candidates(asked(trace, **choices), mixed_cluster(), CALIBRATION)


def test_its_plans_are_from_the_trace_and_the_best_says_so() -> None:
    found = candidates_of(traced())
    assert found[0].feasible
    assert found[0].reason.detail.endswith("with transformers 5.23, with a margin of 10%.")
    memory = found[0].plan.memory
    assert memory.required_bytes >= 1.1 * memory.peak_allocated_bytes - 1


def test_no_plan_splits_its_tensors() -> None:
    assert all(each.plan.tp == 1 for each in candidates_of(traced()) if each.feasible)


def test_attention_and_loss_that_its_trace_did_not_run_are_not_launchable() -> None:
    (eager, *_), fused = candidates_of(traced(Attention.EAGER)), candidates_of(traced(fuses_loss=True), loss="fused")
    assert eager.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE
    assert "no attention of torch's own" in eager.reason.detail
    assert fused[0].feasible


def test_its_weights_are_not_quantised() -> None:
    (first, *_) = candidates_of(traced(), lora=LoraSpec(quantization="nf4"))
    assert first.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE
    assert "Weights of later are not quantised" in first.reason.detail


def test_that_its_weights_are_not_quantised_is_known_before_it_is_traced_but_of_no_script() -> None:
    of = job(lora=LoraSpec(quantization="nf4"))
    (first, *_) = candidates_of(traced(), lora=LoraSpec(quantization="nf4"))
    known = refusal_whatever_is_traced(of)
    assert known is not None
    assert (known.code, known.remedy) == (first.reason.code, first.reason.remedy)
    for other in (job(), job(lora=LoraSpec()), replace(of, workload=WorkloadSpec(command=("train",)))):
        assert refusal_whatever_is_traced(other) is None


def test_a_model_that_could_not_be_traced_is_refused_with_what_stopped_the_trace() -> None:
    with pytest.raises(PermanentError, match="its module could not be traced: no rule for it") as caught:
        candidates_of(ModelTrace(problem="no rule for it"))
    assert caught.value.reason.code is ReasonCode.MODEL_NOT_SUPPORTED


def test_another_precision_than_the_traced_one_is_refused() -> None:
    with pytest.raises(PermanentError, match="traced in bf16 and sdpa attention; nothing is known of it in fp32"):
        candidates_of(traced(), precision=Precision.FP32)


def test_fp16_is_planned_by_what_was_traced_for_bf16() -> None:
    (first, *_) = candidates_of(traced(), precision=Precision.FP16)
    assert first.reason.detail.endswith("DeepSpeed refuses fp16 on a CPU.")


def test_a_trace_is_not_taken_for_a_script_that_runs_an_older_release() -> None:
    def of_script(release: str) -> PlanRequest:
        script = WorkloadSpec(command=("python", "train.py"), framework="deepspeed", packages={"transformers": release})
        wanted = asked(traced())
        return replace(wanted, job=replace(wanted.job, workload=script))

    with pytest.raises(PermanentError, match=r"traced with transformers 5.23; the script runs 4.44.2, which may keep"):
        plan_candidates(of_script("4.44.2"), mixed_cluster(), CALIBRATION)
    assert plan_candidates(of_script("5.23.1"), mixed_cluster(), CALIBRATION)[0].feasible
