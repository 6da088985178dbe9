"""The pages as people see them: inside Airflow's own, in a real browser, with a reader's session."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from tests.e2e.accessibility import faults, keyboard_faults
from tests.e2e.browser import MISSING, Browser, browser, program
from tests.e2e.together import Together
from tests.e2e.walker import MODEL, Walker
from tests.embedded_stack import Stack

from frenzy.cli.embedded.airflow_env import SERVICE_USER
from frenzy.core.runs.ledger import DataFacts, JobState, RunIdentity
from frenzy.core.runs.protocol import CancelRun, PlaceView, RegisterRun, RunView
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.units import format_bytes

pytestmark = pytest.mark.thorough

# What is there once a page has all that it shows.
SHOWN = {"training": ".uplot canvas", "gpus": ".usage .uplot canvas", "new_job": "#preset option[value=tiny]"}
# No slash: Airflow's DAG ids have none.
HOSTILE = '"><img src=x onerror=alert(1)><svg onload=alert(2)>'
FRAMED = "Array.from(document.querySelectorAll('iframe')).some((f) => f.contentDocument?.querySelector('h1'))"


DOCUMENT = (
    "Array.from(document.querySelectorAll('iframe'))"
    ".find((f) => f.contentDocument?.querySelector('h1')).contentDocument"
)


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    if program() is None:
        pytest.skip(MISSING)
    with browser() as opened:
        opened.window(1400, 1000)
        yield opened


@pytest.fixture(scope="module")
def viewer(page: Browser, stack: Stack) -> Browser:
    page.cookie(stack.base_url, "_token", stack.token("viewer"))
    return page


@pytest.fixture
def writer(page: Browser, stack: Stack) -> Iterator[Browser]:
    """A user who may run jobs; the viewer's session comes back after them."""
    page.cookie(stack.base_url, "_token", stack.token("ada"))
    yield page
    page.cookie(stack.base_url, "_token", stack.token("viewer"))


@pytest.fixture
def admin(page: Browser, stack: Stack) -> Iterator[Browser]:
    """Who may see all of every run; then the viewer again."""
    page.cookie(stack.base_url, "_token", stack.token("admin"))
    yield page
    page.dark(False)
    page.cookie(stack.base_url, "_token", stack.token("viewer"))


@pytest.fixture(scope="module")
def trained(walker: Walker, together: Together) -> RunView:
    """A run that has ended."""
    return walker.succeed(*together.evaluated)


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
    best = next(each for each in trained.candidates if each.rank == 1)
    assert best.plan.plan_id in text
    assert "BEST_PLAN" in text
    assert "ran as attempt 1" in text


def test_training_tab_leads_to_the_model_and_says_how_good_it_is(
    viewer: Browser, trained: RunView, stack: Stack
) -> None:
    viewer.open(tab_of(trained, stack, "training"))
    viewer.wait_for(f"{FRAMED} && {DOCUMENT}.querySelector('.facts')?.innerText.includes('perplexity')")
    assert f"{trained.run.run_key}/model" in viewer.text()


def test_workers_output_is_shown_to_who_may_read_it(page: Browser, trained: RunView, stack: Stack) -> None:
    page.cookie(stack.base_url, "_token", stack.token("admin"))
    page.open(tab_of(trained, stack, "training"))
    page.wait_for(f"{FRAMED} && {is_there('section > details:not([hidden])')}")
    page.evaluate(f"{element('section > details')}.open = true")
    page.wait_for(is_there("select[aria-label=rank] option"))
    choose(page, "select[aria-label=rank]", "0")
    page.wait_for(f"{element('.log')}.textContent.includes('step')")
    page.cookie(stack.base_url, "_token", stack.token("viewer"))


def test_what_if_is_answered_beside_the_run_s_own_plan_and_opens_as_a_new_job(
    admin: Browser, trained: RunView, stack: Stack
) -> None:
    admin.open(tab_of(trained, stack, "training"))
    admin.wait_for(f"{FRAMED} && {is_there('.what-if:not([hidden])')}")
    admin.evaluate(f"{element('.what-if')}.open = true")
    admin.wait_for(is_there(".answer table"))
    types(admin, ".controls input", "16")
    admin.wait_for(f"{element('.answer')}.innerText.includes('%')")
    press(admin, "Open in New job")
    admin.wait_for(f"{FRAMED} && {is_there('#job')} && {element('#job')}.value.includes('sequence_length: 16')")
    admin.wait_for(f"{element('#verdict')}.innerText.includes('BEST_PLAN')")


def test_new_job_is_planned_while_it_is_written_and_run_from_its_page(
    writer: Browser, walker: Walker, stack: Stack
) -> None:
    writer.complaints.clear()
    writer.open(f"{stack.base_url}/plugin/frenzy_new_job")
    writer.wait_for(f"{FRAMED} && {is_there('#preset option[value=tiny]')}")
    assert writer.evaluate(f"{element('.run button')}.disabled")
    choose(writer, "#preset", "tiny")
    writer.wait_for(f"{DOCUMENT}.body.innerText.includes('that fit, best first')")
    assert "steps" in writer.evaluate(f"{element('#verdict')}.innerText")
    writes(writer, "max_steps: 20", "max_steps: none")
    writer.wait_for(f"{element('#verdict')}.innerText.includes('training.max_steps')")
    assert writer.evaluate(f"{element('.run button')}.disabled")
    assert [each for each in writer.complaints if "400" not in each and ("/frenzy/" in each or "dialog" in each)] == []
    writes(writer, "max_steps: none", "max_steps: 2000")
    choose(writer, ".schedule select", "cron")
    types(writer, ".schedule input", "0 0 30 2 *")
    writer.wait_for(f"{element('#verdict')}.innerText.includes('trigger.cron')")
    choose(writer, ".schedule select", "assets")
    types(writer, ".schedule input", "frenzy://models/nobodys")
    press(writer, "Save as job")
    writer.wait_for(is_there(".run a[href$='dags/job_ada-tiny']"))
    dag = walker.airflow("GET", "/dags/job_ada-tiny")
    assert "Asset" in dag["timetable_summary"] or "nobodys" in dag["timetable_summary"]
    assert not dag["is_paused"]
    press(writer, "Run once")
    writer.wait_for(is_there(".run a[href*='/runs/']"))
    writer.evaluate(f"{element('.run a[href*=runs]')}.click()")
    writer.wait_for(f"location.pathname.includes('/dags/job_ada-tiny/runs/') && {FRAMED}")
    run_id = str(writer.evaluate("decodeURIComponent(location.pathname.split('/runs/')[1].split('/')[0])"))
    assert walker.wait_for_step("job_ada-tiny", run_id, 1).run.owner == "ada"
    press(writer, "Cancel the run")
    press(writer, "Really cancel it")
    walker.wait_for_state("job_ada-tiny", run_id, JobState.CANCELLED)
    press(writer, "Resume")
    walker.wait_for_state("job_ada-tiny", run_id, JobState.QUEUED, JobState.STARTING, JobState.RUNNING)
    press(writer, "Cancel the run")
    press(writer, "Really cancel it")
    walker.wait_for_end("job_ada-tiny", run_id)
    press(writer, "Run again")
    writer.wait_for(f"{DOCUMENT}.body.innerText.includes('Open the new run')")
    runs = walker.airflow("GET", "/dags/job_ada-tiny/dagRuns")["dag_runs"]
    (again,) = {each["dag_run_id"] for each in runs} - {run_id}
    walker.cancel("job_ada-tiny", again)


def test_new_job_says_to_a_viewer_that_they_may_not(viewer: Browser, stack: Stack) -> None:
    viewer.open(f"{stack.base_url}/plugin/frenzy_new_job")
    viewer.wait_for(f"{FRAMED} && {is_there('#preset option[value=tiny]')}")
    choose(viewer, "#preset", "tiny")
    viewer.wait_for(f"{element('#verdict')}.innerText.includes('You may not do this.')")
    assert viewer.evaluate(f"{element('.run button')}.disabled")


def element(selector: str) -> str:
    """The first element of the page in the frame."""
    return f"{DOCUMENT}.querySelector({selector!r})"


def is_there(selector: str) -> str:
    return f"Boolean({element(selector)})"


def choose(browser: Browser, selector: str, value: str) -> None:
    browser.evaluate(
        f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change')); }})({element(selector)})",
    )


def types(browser: Browser, selector: str, text: str) -> None:
    browser.evaluate(
        f"(e => {{ e.value = {text!r}; e.dispatchEvent(new Event('input', {{ bubbles: true }})); }})"
        f"({element(selector)})",
    )


def writes(browser: Browser, before: str, after: str) -> None:
    """Edits the specification."""
    browser.evaluate(
        f"(e => {{ e.value = e.value.replace({before!r}, {after!r}); e.dispatchEvent(new Event('input')); }})"
        f"({element('#job')})",
    )


def press(browser: Browser, title: str) -> None:
    """Once the button is there and lets itself be pressed."""
    buttons = f"Array.from({DOCUMENT}.querySelectorAll('button:not(:disabled)'))"
    found = f"{buttons}.find((each) => each.textContent.startsWith({title!r}))"
    browser.wait_for(f"{FRAMED} && Boolean({found})")
    browser.evaluate(f"{found}.click()")


def test_gpus_page_hangs_in_the_navigation(viewer: Browser, trained: RunView, stack: Stack) -> None:
    viewer.open(f"{stack.base_url}/plugin/frenzy_gpus")
    viewer.wait_for(FRAMED)
    viewer.wait_for(f"{DOCUMENT}.body.innerText.includes('Ended')")
    text = viewer.text()
    for word in ("Waiting", "Running", "GPUs held", "t-small", "gpu_t-small", trained.run.job.name):
        assert word in text


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["training", "gpus", "new_job"])
def test_a_page_is_read_and_used_by_everybody_and_makes_no_complaint(
    name: str, dark: bool, admin: Browser, trained: RunView, stack: Stack
) -> None:
    identity = trained.run.identity
    query = f"dag_id={identity.dag_id}&run_id={quote(identity.run_id, safe='')}"
    admin.complaints.clear()
    admin.dark(dark)
    admin.open(f"{stack.base_url}/frenzy/pages/{name}?{query}")
    admin.wait_for(f"location.pathname.endsWith('/{name}') && Boolean(document.querySelector(\"main h1\"))")
    admin.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    admin.wait_for(f"Boolean(document.querySelector('{SHOWN[name]}'))")
    assert faults(admin) == []
    assert keyboard_faults(admin) == []
    assert [each for each in admin.complaints if "favicon" not in each] == []
    admin.evaluate("document.documentElement.style.setProperty('--faint', 'var(--line)')")
    assert any(each.startswith("contrast") for each in faults(admin)), "letters in the colour of lines would be found"


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
    for name in ("training", "gpus", "new_job"):
        answer = httpx.get(f"{stack.base_url}/frenzy/pages/{name}", trust_env=False)
        assert answer.status_code == 401
