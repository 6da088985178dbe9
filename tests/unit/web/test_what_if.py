"""What the page Training asks: what a run's job would get with other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.installation import CONFIG, in_memory_services
from tests.unit.web.conftest import ApiUser, registration

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.app.drafts import check_what_if, draft, tuned
from frenzy.app.place import enqueue
from frenzy.app.services import Services
from frenzy.core.memory.model_trace import MODEL_TRACE, ModelTrace
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import PlaceView, RunView, WhatIf
from frenzy.core.runs.views import WhatIfView
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import ReasonCode, SpecError
from frenzy.core.values.job import ConstraintsSpec, Precision, TrainingJob
from frenzy.core.values.sources import SourceRules
from frenzy.core.values.units import GIB
from frenzy.web.model_reader import ModelReader
from frenzy.web.new_job import Drafter

Users = Callable[[str | None], ApiUser]


@pytest.fixture
def services() -> Services:
    return in_memory_services(marp_policy="closed-form", calibration=default_calibration())


@pytest.fixture
def run(user: Users) -> RunView:
    return user("op").registered(name="words")


def asked(user: ApiUser, run: RunView, changes: dict[str, Any] | None = None, size: int | None = None) -> WhatIfView:
    message = WhatIf(changes=changes or {}, micro_batch_size=size)
    return user.ask("POST", f"/runs/{run.run.run_key}/what-if", WhatIfView, message)


def refused(user: ApiUser, run: RunView, changes: dict[str, Any], size: int | None = None) -> tuple[int, list[str]]:
    message = WhatIf(changes=changes, micro_batch_size=size)
    response = user.send("POST", f"/runs/{run.run.run_key}/what-if", message)
    return response.status_code, [each["path"] for each in response.json()["detail"]["violations"]]


def test_without_a_change_the_plans_are_the_run_s_own(user: Users, run: RunView) -> None:
    view = asked(user("op"), run)
    assert {each.plan.plan_id for each in view.draft.candidates} == {each.plan.plan_id for each in run.candidates}
    assert job_from_yaml(view.yaml_text) == run.run.job


def test_longer_sequences_need_more_memory_and_fewer_of_them_less(user: Users, run: RunView) -> None:
    def least_bytes(changes: dict[str, Any]) -> int:
        plans = asked(user("op"), run, changes, 1).draft.candidates
        return min(each.plan.memory.peak_allocated_bytes for each in plans)

    assert least_bytes({"data.sequence_length": 16}) < least_bytes({}) < least_bytes({"training.attention": "eager"})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training.loss": "fused"}, ("training", "loss", "fused")),
        ({"constraints.gpu_types": ["large"]}, ("constraints", "gpu_types", ("large",))),
        ({"data.sequence_length": 64}, ("data", "sequence_length", 64)),
    ],
)
def test_the_changed_text_is_the_run_s_with_those_values(
    changes: dict[str, Any], field: tuple[str, str, Any], user: Users, run: RunView
) -> None:
    section, name, value = field
    job, before = job_from_yaml(asked(user("op"), run, changes).yaml_text), run.run.job
    assert job == replace(before, **{section: replace(getattr(before, section), **{name: value})})


def test_adapters_come_with_their_rank_and_go_with_null(user: Users, run: RunView) -> None:
    with_lora = asked(user("op"), run, {"training.lora.rank": 4, "training.lora.quantization": "nf4"})
    lora = job_from_yaml(with_lora.yaml_text).training.lora
    assert lora is not None and (lora.rank, lora.quantization) == (4, "nf4")
    other = user("op").registered(name="adapted").run
    without = WhatIf(changes={"training.lora": None})
    view = user("op").ask("POST", f"/runs/{other.run_key}/what-if", WhatIfView, without)
    assert job_from_yaml(view.yaml_text).training.lora is None


class Reader(ModelReader):
    """Plays the process that traces models; keeps the precision that it was asked for."""

    asked: ClassVar[list[Precision]] = []

    def config_of(self, job: TrainingJob, rules: SourceRules) -> Mapping[str, Any]:
        self.asked.append(job.training.precision)
        return CONFIG


def test_a_traced_model_is_traced_anew_for_another_precision_and_for_nothing_else(app: FastAPI, user: Users) -> None:
    app.state.drafter = Drafter(Reader())
    Reader.asked.clear()
    traced = {**CONFIG, MODEL_TRACE: encode(ModelTrace())}
    run = user("op").ask("POST", "/runs", RunView, replace(registration(name="traced"), model_config=traced))
    asked(user("op"), run, {"data.sequence_length": 64})
    assert Reader.asked == []
    assert asked(user("op"), run, {"training.precision": "fp32"}).draft.candidates
    assert Reader.asked == [Precision.FP32]


def test_only_plans_with_the_micro_batch_are_looked_at(user: Users, run: RunView) -> None:
    for size in (1, 2, 8):
        plans = [each.plan for each in asked(user("op"), run, size=size).draft.candidates]
        assert plans and {each.micro_batch_size for each in plans} == {size}


@given(batch=st.integers(1, 64), size=st.integers(1, 64), length=st.sampled_from((16, 128)))
def test_every_micro_batch_that_divides_the_batch_has_plans_or_a_reason(batch: int, size: int, length: int) -> None:
    services, job = in_memory_services(marp_policy="closed-form", calibration=default_calibration()), registration().job
    size = max(each for each in range(1, size + 1) if batch % each == 0)
    training = replace(job.training, global_batch_size=batch)
    job = replace(job, training=training, data=replace(job.data, sequence_length=length))
    view = draft(services, job, CONFIG, shown="", micro_batch_size=size)
    assert all(each.plan.micro_batch_size == size for each in view.candidates)
    assert view.num_fitting or view.reason is not None


@pytest.mark.parametrize("policy", ["closed-form", "paper"])
def test_a_micro_batch_for_which_there_is_no_card_is_refused_with_its_reason(policy: str) -> None:
    job = registration().job
    job = replace(job, training=replace(job.training, global_batch_size=4096))
    services = in_memory_services(marp_policy=policy, calibration=default_calibration())
    view = draft(services, job, CONFIG, shown="", micro_batch_size=4096)
    assert (view.num_fitting, view.plan_id) == (0, None)
    assert view.reason is not None
    assert {each.plan.micro_batch_size for each in view.candidates} <= {4096}


@pytest.mark.parametrize(
    ("policy", "batch", "size", "allowed"),
    [
        ("closed-form", 16, 3, "a part of training.global_batch_size = 16 that cuts it evenly: give 2 or 4, or"),
        ("closed-form", 1, 2, "evenly: give 1, or"),
        ("closed-form", 13, 20, "evenly: give 13, or"),
        ("paper", 9, 3, "that the policy paper has plans of: give 9, or"),
        ("paper", 12, 4, "that the policy paper has plans of: give 3 or 6, or"),
    ],
)
def test_a_micro_batch_without_plans_is_refused_with_those_next_to_it(
    policy: str, batch: int, size: int, allowed: str
) -> None:
    job = registration().job
    job = replace(job, training=replace(job.training, global_batch_size=batch))
    with pytest.raises(SpecError) as refusal:
        check_what_if(in_memory_services(marp_policy=policy), job, WhatIf(micro_batch_size=size), Caller(name="op"))
    (violation,) = refusal.value.violations
    assert (violation.path, violation.value) == ("micro_batch_size", str(size))
    assert allowed in violation.allowed


def test_steps_are_those_of_the_run_s_own_data(user: Users) -> None:
    run = user("op").registered(name="counted")
    steps = {length: asked(user("op"), run, _epochs(length)).draft for length in (64, 128)}
    assert steps[64].total_steps == pytest.approx(2 * steps[128].total_steps, rel=0.01)
    assert steps[128].note is None


def _epochs(length: int) -> dict[str, Any]:
    return {"training.max_steps": None, "training.epochs": 1.0, "data.sequence_length": length}


def test_it_is_decided_as_for_a_newcomer_behind_all_who_wait(user: Users, run: RunView) -> None:
    for number in range(5):
        view = user("op").registered(name=f"holder-{number}")
        user("op").ask("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView)
    found = asked(user("op"), run).draft
    assert (found.plan_id, found.reason is None) == (None, False)
    assert found.position is not None


@pytest.mark.parametrize(
    ("changes", "size", "path"),
    [
        ({"model.path": "/etc"}, None, "model.path"),
        ({"data.path": "/etc/passwd"}, None, "data.path"),
        ({"name": "other"}, None, "name"),
        ({"env": {"A": "b"}}, None, "env"),
        ({"training.lora.rank": -1}, None, "training.lora.rank"),
        ({"training.nothing": 1}, None, "training.nothing"),
        ({}, 3, "micro_batch_size"),
        ({"training.a.b.c.d.e.f": 1}, None, "training.a.b.c.d.e.f"),
        ({"training." + ".".join("a" * 1100): 1}, None, "changes"),
        ({"training..loss": 1}, None, "training..loss"),
    ],
)
def test_what_may_not_change_is_refused_by_its_name(
    changes: dict[str, Any], size: int | None, path: str, user: Users, run: RunView
) -> None:
    assert refused(user("op"), run, changes, size) == (400, [path])


def test_only_who_manages_the_run_may_ask(user: Users, run: RunView) -> None:
    for name in ("viewer", "eve"):
        assert user(name).send("POST", f"/runs/{run.run.run_key}/what-if", WhatIf()).status_code == 403
    assert user("op").send("POST", "/runs/none/what-if", WhatIf()).status_code == 404


def test_a_job_that_would_fit_nowhere_says_why(user: Users, run: RunView) -> None:
    found = asked(user("op"), run, {"data.sequence_length": 65536}).draft
    assert found.num_fitting == 0
    assert found.reason is not None and found.reason.code is ReasonCode.BAD_CONFIG_OR_DATA


def test_tuned_it_has_the_least_change_that_fits(user: Users) -> None:
    run = user("op").registered(name="late", constraints=ConstraintsSpec(deadline="1970-01-12T00:00:00+00:00"))
    assert run.run.state is JobState.FAILED_NO_RESOURCE
    view = user("op").ask("POST", f"/runs/{run.run.run_key}/what-if", WhatIfView, WhatIf(tune=True))
    assert view.draft.num_fitting > 0
    assert [each.partition(":")[0] for each in view.draft.tuned] == ["constraints.deadline"]
    changed, own = job_from_yaml(view.yaml_text), run.run.job
    assert changed.constraints.deadline != own.constraints.deadline
    assert replace(changed, constraints=own.constraints) == own


def test_a_job_that_fits_is_not_tuned(user: Users, run: RunView) -> None:
    view = user("op").ask("POST", f"/runs/{run.run.run_key}/what-if", WhatIfView, WhatIf(tune=True))
    assert view.draft.tuned == ()
    assert job_from_yaml(view.yaml_text) == run.run.job


def test_memory_that_a_run_was_seen_to_need_beyond_its_plan_is_kept_free(services: Services, run: RunView) -> None:
    extra = 10 * GIB  # more than any card of the cluster has
    job, changes = tuned(services, run.run.job, CONFIG, extra_bytes_per_gpu=extra)
    assert (job, changes) == (run.run.job, ())
    assert tuned(services, run.run.job, CONFIG)[1] == ()


def test_a_run_that_needs_more_than_any_card_has_is_not_said_to_fit(
    services: Services, user: Users, run: RunView
) -> None:
    key = run.run.run_key
    enqueue(services, key)
    with services.ledger.transaction() as tx:
        tx.put_attempt(replace(tx.attempts(key)[-1], extra_bytes_per_gpu=10 * GIB))
    view = user("op").ask("POST", f"/runs/{key}/what-if", WhatIfView, WhatIf(tune=True))
    assert (view.draft.tuned, view.draft.num_fitting) == ((), 0)


def test_texts_that_are_hidden_of_the_run_are_hidden_here_and_in_refusals(services: Services, user: Users) -> None:
    plain, hidden = registration("hidden"), "s3://of-a-connection/words"
    job = replace(plain.job, data=replace(plain.job.data, path=hidden))
    run = user("op").ask("POST", "/runs", RunView, replace(plain, job=job, masked=("data.path",)))
    assert hidden not in repr(asked(user("op"), run))
    response = user("op").send("POST", f"/runs/{run.run.run_key}/what-if", WhatIf(changes={"data.sequence_length": 1}))
    assert response.status_code == 400
    assert hidden not in response.text


def test_so_many_changes_are_none_of_a_person_s(user: Users, run: RunView) -> None:
    changes = {f"training.x{number}": 1 for number in range(65)}
    response = user("op").send("POST", f"/runs/{run.run.run_key}/what-if", WhatIf(changes=changes))
    assert response.status_code == 400
