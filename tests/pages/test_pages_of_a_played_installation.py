"""The pages in a browser, without Airflow around them: what is there, whether all can read it, and where links lead."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from tests.e2e.accessibility import faults, keyboard_faults, layout_faults
from tests.e2e.browser import Browser
from tests.pages.stage import MODEL, Stage, stage

RUNS = ("moved", "crashed", "refused", "running", "waiting")
PAGES = [("gpus", None), ("new_job", None), *(("training", each) for each in RUNS)]
WIDTHS = {1440: False, 1024: True}
"""Windows that the pages are looked at in; the narrow one in dark colours."""


def show(page: Browser, address: str, *, width: int = 1440, dark: bool = False, heading: bool = True) -> None:
    page.open("about:blank")
    page.wait_for("location.href === 'about:blank'")
    page.complaints.clear()
    page.window(width, 900)
    page.dark(dark)
    page.open(address)
    page.wait_for(f"location.href === {json.dumps(address)}")
    if heading:
        page.wait_for("Boolean(document.querySelector('main h1'))")


def press(page: Browser, title: str) -> None:
    found = f"Array.from(document.querySelectorAll('button')).find((e) => e.textContent === {title!r} && !e.disabled)"
    page.wait_for(f"Boolean({found})")
    page.evaluate(f"{found}.click()")


def says(page: Browser, words: str) -> None:
    page.wait_for(f"document.body?.innerText.includes({words!r})")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("name", "run"), PAGES, ids=lambda each: each)
def test_everybody_can_read_and_use_a_page_and_nothing_lies_upon_anything(
    name: str, run: str | None, width: int, page: Browser, played: Stage
) -> None:
    show(page, played.page(name, run), width=width, dark=WIDTHS[width])
    if run in ("moved", "running"):
        page.wait_for("document.querySelectorAll('.charts canvas').length === 3")
    assert layout_faults(page) == []
    assert faults(page) == []
    assert keyboard_faults(page) == []
    assert page.complaints == []


def test_a_run_that_moved_says_what_it_took_and_where_its_memory_was_going(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    says(page, "Predicted and measured")
    page.wait_for("document.querySelectorAll('.charts canvas').length === 3")
    legends = page.evaluate("Array.from(document.querySelectorAll('.charts .u-legend'), (e) => e.innerText).join(' ')")
    for line in ("validation", "predicted", "required with margin", "capacity", "forecast"):
        assert line in legends
    assert page.evaluate("document.querySelectorAll('.timeline .band').length") == 2
    for words in ("perplexity", "frenzy://models/moved", "s3://plays/new.jsonl", "GPU-hours", "went on from step 90"):
        says(page, words)


def test_a_resumed_run_shows_its_first_attempts_and_no_phase_between_its_end_and_the_resume(
    page: Browser, played: Stage
) -> None:
    show(page, played.page("training", "moved"))
    phases = page.evaluate(
        """(async () => {
          const { timeline } = await import('../static/timeline.js');
          const attempt = (number, from, step, until) => ({ attempt: number, created_s: from, first_step_s: step,
            ended_s: until, last_step: 9, next_attempt: { checkpoint_step: 9 } });
          const run = { created_s: 600, updated_s: 1100, state: 'SUCCEEDED' };
          const attempts = [attempt(1, 100, 200, 350), attempt(2, 700, 800, 1100)];
          const drawn = timeline({ run, events: [], attempts });
          return Array.from(drawn.querySelectorAll('.phase'), (e) => [e.className.split(' ')[1],
            Math.round(10 * parseFloat(e.style.left)), Math.round(10 * parseFloat(e.style.width))]);
        })()"""
    )
    # 100 s to 1,100 s are the axis; per mille of it: where each phase begins, and how long it is.
    assert phases == [
        ["starting", 0, 100],
        ["training", 100, 150],
        ["waiting", 500, 100],
        ["starting", 600, 100],
        ["training", 700, 300],
    ]


def test_waiting_for_the_first_gpus_is_no_planning(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    phases = page.evaluate(
        """(async () => {
          const { timeline } = await import('../static/timeline.js');
          const attempt = { attempt: 1, created_s: 300, first_step_s: 400, ended_s: 500,
            last_step: 9, next_attempt: {} };
          const events = [{ kind: 'state', text: 'QUEUED: WAITING_FOR_QUOTA: It waits.', time_s: 150 }];
          const phases = (state, attempts) => Array.from(
            timeline({ run: { created_s: 100, updated_s: 500, state }, events, attempts }).querySelectorAll('.phase'),
            (e) => e.className.split(' ')[1]);
          return [phases('SUCCEEDED', [attempt]), phases('QUEUED', [])];
        })()"""
    )
    assert phases == [["planning", "waiting", "starting", "training"], ["planning", "waiting"]]


def test_only_all_steps_are_compared_with_what_was_predicted_for_all(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    told = page.evaluate(
        """(async () => {
          const { account } = await import('../static/plans.js');
          const plan = { num_gpus: 1, predicted_run_s: 100, predicted_cost: null, memory: {} };
          const attempts = [{ plan, created_s: 0, first_step_s: 10, ended_s: 1910 }];
          return ['SUCCEEDED', 'CANCELLED'].map((state) => account(attempts, state).innerText);
        })()"""
    )
    assert isinstance(told, list)
    assert "19 times" in told[0] and "19 times" not in told[1]
    assert all("no prices in the cluster file" in each for each in told)


def test_a_loss_that_is_no_language_model_s_has_no_unit_and_speed_without_tokens_no_chart(
    page: Browser, played: Stage
) -> None:
    show(page, played.page("training", "moved"))
    told = page.evaluate(
        """(async () => {
          const { Charts, isOfText } = await import('../static/charts.js');
          const told = [];
          for (const [task, speed] of [['dpo', 0], ['sft', 9]]) {
            const charts = new Charts();
            document.querySelector('main').append(charts.node);
            const of = (value) => [value, value];
            const columns = { time: [1, 2], step: [1, 2], loss: of(1), validation: of(null), speed: of(speed),
              foreseen: of(null), measured: of(1),
              least: of(1), predicted: of(1), required: of(1), capacity: of(1), forecast: of(null) };
            charts.update(columns, [1, 2], [], [], isOfText({ job: { workload: { task } }, model_config: {} }));
            told.push(charts.plots.map((each) => each.axes[1].label));
          }
          return told;
        })()"""
    )
    assert told == [["loss", "memory, held by tensors"], ["nats per token", "tokens / s", "memory, held by tensors"]]


def test_what_nothing_can_run_is_not_resumed_and_what_crashed_is(page: Browser, played: Stage) -> None:
    resume = "Array.from(document.querySelectorAll('button'), (each) => each.textContent).includes('Resume')"
    for run, is_offered in (("crashed", True), ("refused", False)):
        show(page, played.page("training", run))
        says(page, "Run again")
        assert page.evaluate(resume) is is_offered


def test_the_finished_model_is_downloaded_from_a_frame_like_airflow_s(
    page: Browser, played: Stage, tmp_path: Path
) -> None:
    show(page, f"{played.root.removesuffix('/frenzy')}/around", heading=False)
    page.wait_for("Boolean(document.querySelector('main'))")
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    address = json.dumps(played.page("training", "moved"))
    page.evaluate(
        "(f => { f.sandbox = 'allow-scripts allow-same-origin allow-forms allow-downloads';"
        f" f.src = {address}; document.body.replaceChildren(f); }})(document.createElement('iframe'))"
    )
    link = "document.querySelector('iframe').contentDocument?.querySelector('a[download=\"model.safetensors\"]')"
    page.wait_for(f"Boolean({link})")
    assert f"frenzy models {played.runs['moved'].key} --download moved" in page.text()
    page.evaluate(f"{link}.click()")
    place, content = tmp_path / "model.safetensors", MODEL["model.safetensors"]
    for _ in range(100):
        if place.is_file() and place.stat().st_size == len(content):
            break
        page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert place.read_bytes() == content
    assert [each for each in page.complaints if "favicon" not in each] == []


def test_who_may_not_take_the_model_is_told_so(page: Browser) -> None:
    with stage(person="viewer") as seen:
        show(page, seen.page("training", "moved"))
        says(page, "perplexity")
        says(page, "is another's")
        assert page.evaluate("document.querySelectorAll('a[download]').length") == 0


def test_a_model_that_is_being_evaluated_is_said_to_be(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    told = page.evaluate(
        """(async () => {
          const { modelCard } = await import('../static/model.js');
          const model = { num_bytes: 1, steps: 2, run_s: 3, num_attempts: 1, loss: null, assets: [], data: [],
            evaluations: [], evaluating: [{ task_id: 'evaluate', state: 'running' }] };
          return modelCard(model).textContent;
        })()"""
    )
    assert "none: the task evaluate is running" in told


def test_the_newest_checkpoint_of_each_attempt_is_marked_on_the_time_line(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    says(page, "newest checkpoint of an attempt")
    titles = page.evaluate("Array.from(document.querySelectorAll('.timeline .mark.saved'), (e) => e.title)")
    assert len(titles) == 2
    assert titles[0].endswith("checkpoint of step 90")


def test_a_link_to_the_plans_of_a_run_leads_to_them(page: Browser, played: Stage) -> None:
    show(page, f"{played.page('training', 'moved')}#plans-{played.runs['moved'].key}")
    page.wait_for("window.scrollY > 0")
    heading = "document.querySelector('[id^=plans-] h2').getBoundingClientRect().top"
    page.wait_for(f"{heading} >= 0 && {heading} < window.innerHeight")


def test_words_upon_words_would_be_found(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    says(page, "Predicted and measured")
    page.evaluate(
        "for (const each of document.querySelectorAll('h2')) { each.style.position = 'fixed'; each.style.top = 0; }"
    )
    assert any("Attempts" in each for each in layout_faults(page))


def test_lines_that_a_run_does_not_have_are_not_in_its_legend(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "running"))
    page.wait_for("document.querySelectorAll('.charts canvas').length === 3")
    legend = page.evaluate("document.querySelectorAll('.charts .u-legend')[2].innerText")
    assert "emptiest GPU" in legend
    assert "forecast" not in legend


def test_a_legend_has_no_row_of_dashes_where_nobody_points(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "running"))
    page.wait_for("document.querySelectorAll('.charts canvas').length === 3")
    assert "–" not in page.evaluate("document.querySelector('.charts').innerText")


def test_those_that_ended_last_are_listed_first(page: Browser, played: Stage) -> None:
    show(page, played.page("gpus"))
    listed = page.evaluate(
        """(async () => {
          const { ended } = await import('../static/gpus.js');
          const view = (name, at) => ({ attempts: [],
            run: { identity: { dag_id: 'd', run_id: 'r' }, job: { name }, state: 'CANCELLED', updated_s: at } });
          const rows = ended([view('newest', 10), view('longest', 30), view('other', 20)]).querySelectorAll('tbody tr');
          return Array.from(rows, (row) => row.cells[0].innerText);
        })()"""
    )
    assert listed == ["longest", "other", "newest"]


def test_the_memory_of_each_rank_is_told_the_fullest_first(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "running"))
    summary = "[...document.querySelectorAll('summary')].find((each) => each.innerText.startsWith('Memory of each'))"
    page.wait_for(f"Boolean({summary})")
    page.evaluate(f"{summary}.click()")
    cells = "[...each.children].map((cell) => cell.innerText)"
    rows = page.evaluate(f"[...document.querySelectorAll('details[open] tbody tr')].map((each) => {cells})")
    assert [row[0] for row in rows] == sorted(row[0] for row in rows) and len(rows) > 1
    assert all(row[1] and row[3].endswith(" %") for row in rows)
    assert layout_faults(page) == []


def test_a_reason_leads_to_its_section_of_the_runbook(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "crashed"))
    says(page, "WORKER_CRASHED")
    address = str(page.evaluate("document.querySelector('a[href$=\"#worker_crashed\"]').href"))
    show(page, address)
    assert page.evaluate("document.querySelector(':target').textContent") == "WORKER_CRASHED"
    assert faults(page) == []
    assert page.complaints == []


def test_times_are_in_the_zone_that_was_chosen_in_airflow(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "moved"))
    page.evaluate("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    show(page, played.page("training", "moved"))
    says(page, "Asia/Tokyo")
    told = page.evaluate("document.querySelector('.timeline .ends span').textContent")
    began = datetime.fromtimestamp(played.runs["moved"].began_s, ZoneInfo("Asia/Tokyo"))
    assert f"{began:%H:%M}" in str(told)  # of yesterday, there: without seconds
    page.evaluate("localStorage.removeItem('timezone')")


def test_a_job_that_fits_nowhere_is_tuned_and_handed_to_new_job(page: Browser, played: Stage) -> None:
    show(page, played.page("training", "refused"))
    press(page, "Tune to fit")
    says(page, "It would fit with constraints.max_cost")
    page.evaluate("sessionStorage.setItem('frenzy.specification', 'name: other')")
    press(page, "Open in New job, to run it")
    assert "max_cost" in page.evaluate("sessionStorage.getItem('frenzy.specification')")
    page.evaluate("sessionStorage.clear()")


def test_a_specification_is_tuned_where_it_is_written(page: Browser, played: Stage) -> None:
    show(page, played.page("new_job"))
    page.wait_for("Boolean(document.querySelector('#preset option[value=tiny]'))")
    script = "(e => {{ e.value = {0}; e.dispatchEvent(new Event({1!r})); }})(document.querySelector({2!r}))"
    page.evaluate(script.format("'tiny'", "change", "#preset"))
    says(page, "that fit, best first")
    page.evaluate(script.format("e.value + 'constraints:\\n  max_cost: 1.0e-9\\n'", "input", "#job"))
    press(page, "Tune to fit")
    says(page, "Changed so that it fits:")
    assert "1.0e-9" not in page.evaluate("document.querySelector('#job').value")
    assert not page.evaluate("document.querySelector('.run button').disabled")


def test_what_is_chosen_narrows_the_tables(page: Browser, played: Stage) -> None:
    show(page, played.page("gpus"))
    says(page, "Waiting: 2")
    script = "(e => {{ e.value = {0!r}; e.dispatchEvent(new Event({1!r})); }})(document.querySelector({2!r}))"
    page.evaluate(script.format("last-in", "input", "input[type=search]"))
    says(page, "Waiting: 1 of 2")
    page.evaluate(script.format("", "input", "input[type=search]"))
    page.evaluate(script.format("WAITING_FOR_GPUS", "change", "select[aria-label=reason]"))
    says(page, "Running: 0 of 1")


@pytest.mark.parametrize("name", ["gpus", "training"])
def test_where_nothing_ever_ran_the_page_says_so(name: str, page: Browser) -> None:
    with stage(empty=True) as bare:
        query = "?dag_id=job_none&run_id=none" if name == "training" else ""
        show(page, bare.page(name) + query, heading=False)
        says(page, "no training run yet" if name == "training" else "Nothing has ended yet.")
        assert layout_faults(page) == []
        assert page.complaints == []


@pytest.mark.parametrize("name", ["gpus", "new_job"])
def test_a_server_that_does_not_answer_is_told_and_asked_again(name: str, page: Browser, played: Stage) -> None:
    page.call("Network.setBlockedURLs", urls=["*/api/v1/*"])
    show(page, played.page(name), heading=False)
    says(page, "Airflow's API server does not answer.")
    page.call("Network.setBlockedURLs", urls=[])
    if name == "gpus":
        says(page, "Waiting: 2")
