"""The pages as people see them: inside Airflow's own, in a real browser, with a reader's session."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from tests.e2e.browser import Browser, browser
from tests.e2e.walker import MODEL, Walker

from frenzy.cli.embedded.airflow_env import SERVICE_USER
from frenzy.cli.embedded.stack import Stack
from frenzy.core.runs.ledger import DataFacts, RunIdentity
from frenzy.core.runs.protocol import CancelRun, PlaceView, RegisterRun, RunView
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.units import format_bytes

# No slash: Airflow's DAG ids have none.
HOSTILE = '"><img src=x onerror=alert(1)><svg onload=alert(2)>'
FRAMED = "Array.from(document.querySelectorAll('iframe')).some((f) => f.contentDocument?.querySelector('h1'))"


DOCUMENT = (
    "Array.from(document.querySelectorAll('iframe'))"
    ".find((f) => f.contentDocument?.querySelector('h1')).contentDocument"
)


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as opened:
        opened.window(1400, 1000)
        yield opened


@pytest.fixture(scope="module")
def viewer(page: Browser, stack: Stack) -> Browser:
    page.cookie(stack.base_url, "_token", stack.token("viewer"))
    return page


@pytest.fixture(scope="module")
def trained(walker: Walker) -> RunView:
    """A run that has ended."""
    return walker.succeed(*walker.start("pages", evaluation={"enabled": True, "max_new_tokens": 8}))


def tab_of(view: RunView, stack: Stack, tab: str) -> str:
    identity = view.run.identity
    return f"{stack.base_url}/dags/{identity.dag_id}/runs/{quote(identity.run_id)}/plugin/frenzy_{tab}"


def test_training_tab_says_why_and_shows_predicted_measured_and_capacity(
    viewer: Browser, trained: RunView, stack: Stack
) -> None:
    viewer.open(tab_of(trained, stack, "training"))
    viewer.wait_for(FRAMED)
    viewer.wait_for(f"{DOCUMENT}.querySelectorAll('.uplot canvas').length === 3")
    attempt = trained.attempts[0]
    text = viewer.text()
    assert attempt.plan.plan_id in text
    assert format_bytes(attempt.plan.memory.peak_allocated_bytes) in text
    assert format_bytes(attempt.plan.gpu_memory_bytes) in text
    assert format_bytes(attempt.measured_peak_bytes or 0) in text
    assert trained.why in text
    assert "It has trained" in trained.why


def test_training_tab_shows_every_reason_and_the_chosen_plan(viewer: Browser, trained: RunView, stack: Stack) -> None:
    viewer.open(tab_of(trained, stack, "training"))
    viewer.wait_for(f"{FRAMED} && {DOCUMENT}.body.innerText.includes('that fit')")
    text = viewer.text()
    best = next(each for each in trained.run.candidates if each.rank == 1)
    assert best.plan.plan_id in text
    assert "BEST_PLAN" in text
    assert "ran as attempt 1" in text


def test_training_tab_leads_to_the_model_and_says_how_good_it_is(
    viewer: Browser, trained: RunView, stack: Stack
) -> None:
    viewer.open(tab_of(trained, stack, "training"))
    viewer.wait_for(f"{FRAMED} && {DOCUMENT}.querySelector('.facts')?.innerText.includes('perplexity')")
    assert f"{trained.run.run_key}/model" in viewer.text()


def test_gpus_page_hangs_in_the_navigation(viewer: Browser, trained: RunView, stack: Stack) -> None:
    viewer.open(f"{stack.base_url}/plugin/frenzy_gpus")
    viewer.wait_for(FRAMED)
    viewer.wait_for(f"{DOCUMENT}.body.innerText.includes('Ended')")
    text = viewer.text()
    for word in ("Waiting", "Running", "GPUs held", "t-small", "gpu_t-small", trained.run.job.name):
        assert word in text


def test_pages_make_no_complaint(viewer: Browser, trained: RunView, stack: Stack) -> None:
    viewer.complaints.clear()
    viewer.open(tab_of(trained, stack, "training"))
    viewer.wait_for(FRAMED)
    viewer.open(f"{stack.base_url}/plugin/frenzy_gpus")
    viewer.wait_for(FRAMED)
    assert [each for each in viewer.complaints if "/frenzy/" in each or "dialog" in each] == []


def test_hostile_names_are_text(viewer: Browser, walker: Walker, stack: Stack) -> None:
    viewer.complaints.clear()
    identity = RunIdentity(dag_id=HOSTILE, run_id=HOSTILE, task_group=HOSTILE)
    job = TrainingJob(
        name="hostile",
        model=ModelSpec(config=MODEL),
        data=DataSpec(path=str(walker.corpus), sequence_length=32),
        training=TrainingSpec(max_steps=1, global_batch_size=4),
        team=HOSTILE,
    )
    config = {**MODEL, "n_inner": None, "tie_word_embeddings": True, "activation_function": "gelu_new"}
    request = RegisterRun(identity=identity, job=job, model_config=config, data_facts=DataFacts(num_tokens=10_000))
    with walker.reconciliation_paused():
        show_hostile_run(viewer, walker, stack, request)
    assert [each for each in viewer.complaints if "dialog" in each] == []


def show_hostile_run(viewer: Browser, walker: Walker, stack: Stack, request: RegisterRun) -> None:
    view = walker.frenzy("POST", "/runs", RunView, encode(request), user=SERVICE_USER)
    try:
        walker.frenzy("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView, user=SERVICE_USER)
        query = f"dag_id={quote(HOSTILE, safe='')}&run_id={quote(HOSTILE, safe='')}"
        for name, shown in (("training", "hostile"), ("gpus", HOSTILE)):
            viewer.open(f"{stack.base_url}/frenzy/pages/{name}?{query}")
            viewer.wait_for(f"document.body?.innerText.includes({shown!r})")
            assert viewer.evaluate("document.querySelectorAll('main img, main script, main svg[onload]').length") == 0
    finally:
        reason = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="The test is over.")
        walker.frenzy("POST", f"/runs/{view.run.run_key}/cancel", RunView, encode(CancelRun(reason=reason)))


def test_without_a_session_there_is_no_page(stack: Stack) -> None:
    for name in ("training", "gpus"):
        answer = httpx.get(f"{stack.base_url}/frenzy/pages/{name}", trust_env=False)
        assert answer.status_code == 401
