// The tab Training of a DAG run: why it is where it is, what it did, how it goes, what was planned, what was written.
import { Charts, outlook, points } from "./charts.js";
import { Logs } from "./logs.js";
import { modelCard, modelOf } from "./model.js";
import { Refusal, Shown, el, get, isFinal, notice, post, repeat, runsOfPage, state } from "./page.js";
import { attemptsTable, plansOf } from "./plans.js";
import { range, timeline } from "./timeline.js";

const EVERY_MS = 2000;
const EVALUATION_S = 600;

class Training {
  constructor(runKey) {
    this.runKey = runKey;
    this.charts = new Charts();
    this.logs = new Logs(runKey);
    this.places = Object.fromEntries(["head", "why", "when", "model", "memory", "attempts", "plans"].map((name) => [name, new Shown()]));
    const { head, why, when, model, memory, attempts, plans } = this.places;
    this.curves = el("div", { hidden: "" }, this.charts.node, memory.node);
    this.output = el("details", { hidden: "" }, el("summary", {}, "Workers' output"), this.logs.node);
    this.output.addEventListener("toggle", () => this.output.open && this.logs.begin());
    this.node = el("section", { id: `run-${runKey}` },
      head.node, why.node, when.node, model.node, this.curves, attempts.node, plans.node, this.output);
  }

  async update(view) {
    const { run, attempts } = view;
    const { head, why, when, memory, attempts: tried, plans } = this.places;
    head.show([run.job.name, run.state], () => [heading(run), isFinal(run.state) ? null : this.cancelButton()]);
    const words = view.why || (view.preparation ? "Its data are being prepared; it holds no GPU meanwhile." : "It is being planned.");
    const far = view.preparation ? preparationText(view.preparation) : null;
    why.show([words, far, run.reason, run.state], () => [notice(words, far, tone(run.state)), code(run.reason)]);
    when.show([Math.round(range(view)[1]), attempts.length, run.state], () => [timeline(view)]);
    tried.show(attempts, () => (attempts.length ? [el("h2", {}, "Attempts"), attemptsTable(attempts)] : []));
    plans.show([run.candidates, attempts.map((each) => each.plan)], () => (run.candidates.length ? plansOf(view) : []));
    this.curves.hidden = this.output.hidden = !attempts.length;
    if (!attempts.length) return;
    await this.draw(view, memory);
    this.logs.update(attempts, this.output.open);
  }

  // Whether there is more to come: an evaluation ends after the training.
  async showModel({ run }) {
    if (run.state !== "SUCCEEDED") return false;
    const found = await modelOf(run);
    if (found) this.places.model.show(found, () => [el("h2", {}, "Model"), modelCard(found)]);
    const isFresh = Date.now() / 1000 - run.updated_s < EVALUATION_S;
    return isFresh && run.job.evaluation?.enabled !== false && !found?.evaluations.length;
  }

  cancelButton() {
    const button = el("button", { type: "button" }, "Cancel the run");
    const words = el("span", { class: "faint", role: "status" });
    button.addEventListener("click", async () => {
      if (!confirm("Cancel this run? Its newest checkpoint is kept.")) return;
      button.disabled = true;
      try {
        await post(`runs/${encodeURIComponent(this.runKey)}/cancel`, { reason: { code: "CANCELLED_BY_USER", detail: "", remedy: null } });
        words.textContent = " It is being cancelled.";
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        button.disabled = false;
        words.textContent = ` ${error.message} ${error.remedy || ""}`;
      }
    });
    return el("p", {}, button, words);
  }

  async draw(view, memory) {
    const found = await get(`runs/${encodeURIComponent(this.runKey)}/memory`);
    const columns = points(found, view.attempts);
    this.curves.hidden = !columns.time.length;
    if (!columns.time.length) return;
    const until = range(view)[1];
    this.charts.update(columns, range(view), view.attempts.map((each) => [each.created_s, each.ended_s ?? until]));
    const words = outlook(view.attempts);
    memory.show(words, () => (words ? [notice(words, null, "warn")] : []));
  }
}

function preparationText({ progress }) {
  if (!progress) return "starting";
  return progress.done === null ? progress.phase : `${progress.phase} (${progress.done.toLocaleString("en")})`;
}

function tone(name) {
  return name.startsWith("FAILED") ? "bad" : "";
}

function code(reason) {
  return reason ? el("p", { class: "faint" }, "reason ", el("code", {}, reason.code)) : null;
}

function heading(run) {
  return [
    el("h1", {}, `${run.job.name} `, state(run.state)),
    el("p", { class: "faint" }, "run ", el("code", {}, run.run_key),
      run.owner ? ` of ${run.owner}` : "", ` · team ${run.job.team} · queue ${run.job.queue}`,
      run.identity.map_index >= 0 ? ` · map index ${run.identity.map_index}` : "",
      run.identity.task_group ? ` · ${run.identity.task_group}` : ""),
  ];
}

const sections = new Map();

repeat(async (main) => {
  const views = await runsOfPage();
  if (!views.length) {
    main.replaceChildren(notice("This DAG run has no training run yet.", "It appears when the profile task has run."));
    sections.clear();
    return true;
  }
  if (!sections.size) main.replaceChildren();
  let again = false;
  for (const view of views) {
    const key = view.run.run_key;
    if (!sections.has(key)) {
      sections.set(key, new Training(key));
      main.append(sections.get(key).node);
    }
    await sections.get(key).update(view);
    const awaitsMore = await sections.get(key).showModel(view);
    again ||= awaitsMore || !isFinal(view.run.state);
  }
  return again;
}, EVERY_MS);
