"""What the page New job asks: presets, and what would become of the text in its field."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import FastAPI
from tests.in_memory.sources import FixedQueues
from tests.unit.installation import CONFIG, in_memory_services
from tests.unit.web.conftest import ApiUser, app_over

from frenzy.adapters.spec.job_spec import job_from_yaml, shown_yaml
from frenzy.app.services import Services
from frenzy.core.runs.protocol import JobDraft, PlaceView, SubmitJob, SubmittedJob
from frenzy.core.runs.views import DraftView, Preset, QueueView
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode, SpecError
from frenzy.core.values.job import TrainingJob, TriggerSpec
from frenzy.core.values.queue_rules import QueueRule, QueueRules
from frenzy.core.values.sources import SourceRules
from frenzy.offline import plan_offline
from frenzy.settings import CHECKOUT, Settings
from frenzy.web.model_reader import ModelReader
from frenzy.web.new_job import presets

Users = Callable[[str | None], ApiUser]
YAML: Final = f"""
name: words
model: {{config: {json.dumps(CONFIG)}}}
data: {{path: words.txt, sequence_length: 128}}
training: {{max_steps: 100, global_batch_size: 8}}
"""
ELSEWHERE: Final = YAML.replace(f"config: {json.dumps(CONFIG)}", "path: /models/words")
TO_ADA: Final = QueueRules(queues=(QueueRule(name="default"), QueueRule(name="fast", users=("ada",))))


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModels(ModelReader):
    """Knows the config of every job; asked: of which. trouble: raised instead. gate: held while it is closed.
    other: fields of the config.
    """

    asked: list[str] = field(default_factory=list)
    trouble: list[Exception] = field(default_factory=list)
    other: dict[str, Any] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def config_of(self, job: TrainingJob, rules: SourceRules) -> Mapping[str, Any]:
        self.asked.append(job.name)
        self.entered.release()
        assert self.gate.wait(30)
        for each in self.trouble:
            raise each
        return {**CONFIG, **self.other}


@pytest.fixture
def models() -> FakeModels:
    made = FakeModels()
    made.gate.set()
    return made


@pytest.fixture
def services() -> Services:
    return in_memory_services(queues=FixedQueues(TO_ADA))


@pytest.fixture
def app(services: Services, models: FakeModels) -> FastAPI:
    return app_over(services, models=models)


def drafted(user: ApiUser, text: str = YAML) -> DraftView:
    return user.ask("POST", "/draft", DraftView, JobDraft(yaml_text=text))


def refused(user: ApiUser, text: str) -> tuple[int, Any]:
    response = user.send("POST", "/draft", JobDraft(yaml_text=text))
    return response.status_code, response.json()["detail"]


def test_a_job_that_could_start_says_so_with_its_plan_and_stores_nothing(user: Users) -> None:
    view = drafted(user("ada"))
    best = view.candidates[0]
    assert (view.name, view.dag_id, view.total_steps, view.note) == ("words", "job_words", 100, None)
    assert (best.rank, view.num_fitting > 0) == (1, True)
    assert best.plan.predicted_run_s > 0
    assert view.plan_id in {each.plan.plan_id for each in view.candidates}
    assert view.reason is not None and "words" not in user("op").send("GET", "/jobs").text
    assert user("op").send("GET", "/runs").json() == []


def test_a_draft_says_what_is_trained_and_which_default_is_seldom_meant(user: Users, models: FakeModels) -> None:
    view = drafted(user("ada"))
    assert view.model is not None and view.model.startswith("gpt2 of ") and "102,400 tokens in 100 steps" in view.model
    models.other["vocab_size"] = 50257
    (note,) = drafted(user("ada")).model_notes
    assert note.startswith("model.tokenizer is byte")


def test_a_name_that_is_stored_says_that_it_is_replaced(user: Users) -> None:
    assert not drafted(user("ada")).replaces
    user("ada").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    assert drafted(user("ada")).replaces


def test_plans_are_those_that_a_run_then_gets(user: Users) -> None:
    view = drafted(user("ada"))
    run = user("op").registered(name="words")
    assert {each.plan.plan_id for each in view.candidates} == {each.plan.plan_id for each in run.candidates}


def test_a_job_that_would_wait_is_told_its_place_and_why(user: Users) -> None:
    for number in range(5):
        view = user("op").registered(name=f"holder-{number}")
        user("op").ask("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView)
    waiting = user("op").ask("GET", "/queue", QueueView).waiting
    view = drafted(user("ada"))
    assert (view.plan_id, view.position) == (None, len(waiting) + 1)
    assert view.reason is not None
    assert view.reason.code is waiting[-1].reason.code


def test_a_job_that_never_fits_is_told_the_remedy(user: Users) -> None:
    view = drafted(user("ada"), YAML.replace("sequence_length: 128", "sequence_length: 65536"))
    assert (view.num_fitting, view.plan_id) == (0, None)
    assert view.reason is not None and view.reason.remedy


def test_gpus_that_were_added_a_moment_ago_count_before_a_job_is_said_to_fit_nowhere(
    user: Users, services: Services
) -> None:
    there = services.inventory.cluster()
    before = replace(there, gpu_types=tuple(replace(each, memory_bytes=2**20) for each in there.gpu_types))
    with services.ledger.transaction() as tx:
        tx.put_cluster(before)
    assert drafted(user("ada")).num_fitting > 0


def test_every_violation_is_told_as_at_a_submission(user: Users, models: FakeModels) -> None:
    text = YAML.replace("max_steps: 100", "max_steps: 0").replace("sequence_length", "seq_length")
    draft = refused(user("ada"), text)
    submission = user("ada").send("POST", "/jobs", SubmitJob(yaml_text=text))
    assert draft == (submission.status_code, submission.json()["detail"])
    assert {"data.seq_length", "training.max_steps"} <= {each["path"] for each in draft[1]["violations"]}
    assert models.asked == []


@pytest.mark.parametrize("text", ["", "- 1", "name: [", "a: 1\na: 2"])
def test_what_is_no_job_is_refused_as_at_a_submission(text: str, user: Users) -> None:
    status, detail = refused(user("ada"), text)
    assert (status, detail["code"]) == (400, "SPEC_REFUSED")
    assert detail == user("ada").send("POST", "/jobs", SubmitJob(yaml_text=text)).json()["detail"]


def test_a_viewer_reads_presets_and_is_refused_plans(user: Users, models: FakeModels) -> None:
    assert user("viewer").ask("GET", "/presets", tuple[Preset, ...])
    status, detail = refused(user("viewer"), YAML)
    assert (status, detail["code"]) == (403, "NOT_ALLOWED")
    assert "role" in detail["remedy"]
    assert models.asked == []


def test_who_may_not_use_the_queue_is_told_before_any_model_is_read(user: Users, models: FakeModels) -> None:
    status, detail = refused(user("eve"), f"{ELSEWHERE}queue: fast\n")
    assert (status, [each["path"] for each in detail["violations"]]) == (400, ["queue"])
    assert models.asked == []
    assert drafted(user("ada"), f"{YAML}queue: fast\n").num_fitting


def test_another_s_job_is_not_planned_under_its_name(user: Users, models: FakeModels) -> None:
    user("ada").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    assert refused(user("eve"), YAML)[0] == 403
    assert models.asked == []
    assert drafted(user("ada")).num_fitting


def test_no_model_is_read_of_what_another_s_run_left(user: Users, models: FakeModels) -> None:
    run_key = user("op").registered(name="of-op").run.run_key
    status, detail = refused(user("eve"), ELSEWHERE.replace("/models/words", f"/runs/{run_key}/model"))
    assert (status, [each["path"] for each in detail["violations"]]) == (400, ["model.path"])
    assert models.asked == []


def test_a_model_that_only_the_workers_see_is_no_refusal(user: Users, models: FakeModels) -> None:
    reason = Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail="No such folder.")
    models.trouble.append(PermanentError(reason))
    view = drafted(user("ada"), ELSEWHERE)
    assert (view.candidates, view.reason) == ((), None)
    assert view.note is not None and "No such folder." in view.note


def test_times_of_uncounted_data_say_what_they_are_for(user: Users) -> None:
    view = drafted(user("ada"), YAML.replace("max_steps: 100", "epochs: 2"))
    assert view.total_steps == 1000
    assert view.note is not None and "1000 steps" in view.note


def test_the_page_waits_for_the_dag_of_this_very_text(user: Users) -> None:
    text = f"{YAML}env: {{PLACE: hidden-place}}\n"
    shown = drafted(user("ada"), text).shown
    assert shown == shown_yaml(job_from_yaml(text))
    assert "hidden-place" not in shown


def test_a_body_that_no_job_needs_is_refused(user: Users, models: FakeModels) -> None:
    long = user("ada").send("POST", "/draft", JobDraft(yaml_text=YAML + "#" * 1024**2))
    assert long.status_code == 400
    longer = user("ada").send("POST", "/draft", JobDraft(yaml_text=YAML + "#" * 5 * 1024**2))
    assert longer.status_code == 413
    assert models.asked == []


def test_two_are_planned_at_a_time_and_others_come_again(user: Users, models: FakeModels) -> None:
    models.gate.clear()
    answers: list[int] = []

    def ask() -> None:
        answers.append(user("ada").send("POST", "/draft", JobDraft(yaml_text=YAML)).status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for each in threads:
        each.start()
        assert models.entered.acquire(timeout=30)
    third = user("ada").send("POST", "/draft", JobDraft(yaml_text=YAML))
    assert (third.status_code, third.headers["Retry-After"]) == (503, "1")
    models.gate.set()
    for each in threads:
        each.join()
    assert answers == [200, 200]
    assert drafted(user("ada")).num_fitting


def test_presets_are_jobs_with_a_title_each(user: Users) -> None:
    found = user("viewer").ask("GET", "/presets", tuple[Preset, ...])
    builtin = ["tiny", "1b-from-scratch", "8b-lora", "8b-full", "70b-qlora"]
    recipes = ["chat-lora", "chat-full", "preferences", "classification", "continued-pretraining"]
    assert [each.name for each in found] == builtin + recipes
    for each in found:
        job = job_from_yaml(each.yaml_text)
        assert job.model.config or job.memory
        assert (job.workload is None) == (each.name in builtin)
        assert each.title.endswith(".")


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("ada", "ada-tiny"),
        ("Ada.Lovelace@example.com", "ada-lovelace-tiny"),
        ("-__-", "tiny"),
        ("", "tiny"),
        ("u" * 80, "u" * 58 + "-tiny"),
    ],
)
def test_a_preset_becomes_a_job_of_the_user_s_own_name(user: str, name: str) -> None:
    named, shipped = (job_from_yaml(each[0].yaml_text) for each in (presets(user), presets()))
    assert named == replace(shipped, name=name)


def test_presets_are_named_after_who_asks(user: Users) -> None:
    found = user("ada").ask("GET", "/presets", tuple[Preset, ...])
    assert {job_from_yaml(each.yaml_text).name for each in found} == {f"ada-{each.name}" for each in found}


def test_a_schedule_is_shown_with_its_next_starts(user: Users) -> None:
    plain, timed = drafted(user("ada")), drafted(user("ada"), f"{YAML}trigger: {{cron: '@daily'}}\n")
    assert (plain.trigger, plain.next_starts_s) == (TriggerSpec(), ())
    assert timed.trigger.cron == "@daily"
    assert [later - each for each, later in pairwise(timed.next_starts_s)] == [86400.0, 86400.0]


def test_a_schedule_that_airflow_would_not_take_is_no_job(user: Users) -> None:
    text = f"{YAML}trigger: {{cron: '0 3 * *'}}\n"
    status, detail = refused(user("ada"), text)
    assert (status, [each["path"] for each in detail["violations"]]) == (400, ["trigger.cron"])
    assert user("ada").send("POST", "/jobs", SubmitJob(yaml_text=text)).status_code == 400


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_a_preset_fits_a_server_with_eight_cards(preset: Preset, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    planned = plan_offline(
        job_from_yaml(preset.yaml_text), settings, CHECKOUT / "include/clusters/single-node.yaml", "closed-form"
    )
    assert planned.refusal is None


def test_a_config_in_the_job_is_completed() -> None:
    config = ModelReader().config_of(job_from_yaml(YAML), SourceRules())
    assert config["n_embd"] == CONFIG["n_embd"]
    assert "layer_norm_epsilon" in config


def test_a_job_that_fits_nowhere_is_tuned_on_request_and_no_other_is(user: Users) -> None:
    late = f"{YAML}constraints: {{deadline: '1970-01-12T00:00:00+00:00'}}\n"
    assert drafted(user("op"), late).num_fitting == 0
    message = JobDraft(yaml_text=late, tune=True)
    view = user("op").ask("POST", "/draft", DraftView, message)
    assert view.tuned_yaml is not None and view.num_fitting > 0
    assert view.shown == shown_yaml(job_from_yaml(view.tuned_yaml))
    assert drafted(user("op"), view.tuned_yaml).num_fitting == view.num_fitting
    fits = user("op").ask("POST", "/draft", DraftView, replace(message, yaml_text=YAML))
    assert (fits.tuned, fits.tuned_yaml) == ((), None)


def test_a_folder_is_read_within_the_rules_relative_to_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "models/words"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    job = job_from_yaml(ELSEWHERE.replace("/models/words", "models/words"))
    reader = ModelReader(folders=(tmp_path,))
    assert reader.config_of(job, SourceRules())["n_embd"] == CONFIG["n_embd"]
    with pytest.raises(PermanentError, match="data is not read from there"):
        reader.config_of(job, SourceRules(closed=(str(folder),)))


def test_a_config_that_would_fill_the_server_s_memory_is_refused() -> None:
    job = job_from_yaml(YAML)
    many = {"model_type": "qwen3", "num_labels": 1_000_000_000}
    with pytest.raises(FrenzyError, match=r"memory|MemoryError"):
        ModelReader().config_of(replace(job, model=replace(job.model, config=many)), SourceRules())


def test_a_config_file_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(" " * 5 * 1024**2, encoding="utf-8")
    job = job_from_yaml(ELSEWHERE.replace("/models/words", str(tmp_path)))
    with pytest.raises(SpecError, match="longer than"):
        ModelReader().config_of(job, SourceRules())


def test_a_folder_that_is_not_here_may_be_where_workers_are(tmp_path: Path) -> None:
    job = job_from_yaml(ELSEWHERE.replace("/models/words", str(tmp_path / "absent")))
    with pytest.raises(PermanentError, match="can be read"):
        ModelReader().config_of(job, SourceRules())


def test_a_job_without_a_model_needs_no_config() -> None:
    job = job_from_yaml(YAML)
    script = replace(job, model=replace(job.model, config=None))
    assert ModelReader().config_of(script, SourceRules()) == {}
