// The tab Training of a DAG run: why it is where it is, what it did, how it goes, what was planned, what was written.
import { Charts, ahead, forecasts, isOfText, outlook, points } from "./charts.js";
import { Logs } from "./logs.js";
import { modelCard, modelOf } from "./model.js";
import { Shown, actionButton, bytes, codeLink, el, get, isFinal, leaveTo, notice, post, repeat, runLink, runsOfPage, state, table } from "./page.js";
import { account, attemptsTable, plansOf } from "./plans.js";
import { handOver, resume, runAgain } from "./starting.js";
import { checkpoints, range, timeline } from "./timeline.js";
import { WhatIf } from "./what_if.js";

const EVERY_MS = 2000;
const EVALUATION_S = 600;
const TUNED = ["FAILED_NO_RESOURCE", "FAILED_OOM", "FAILED_HOST_OOM"];

class Training {
  constructor(runKey) {
    this.runKey = runKey;
    this.charts = new Charts();
    this.saved = [];
    this.logs = new Logs(runKey);
    this.whatIf = new WhatIf(runKey);
    this.places = Object.fromEntries(["head", "actions", "why", "when", "model", "memory", "ranks", "trackers", "account", "attempts", "plans"].map((name) => [name, new Shown()]));
    const { head, actions, why, when, model, memory, account: spent, attempts, plans } = this.places;
    this.curves = el("div", { hidden: "" }, this.charts.node, memory.node, this.places.ranks.node, this.places.trackers.node);
    this.output = el("details", { hidden: "" }, el("summary", {}, "Workers' output"), this.logs.node);
    this.output.addEventListener("toggle", () => this.output.open && this.logs.begin());
    plans.node.id = `plans-${runKey}`;
    this.node = el("section", { id: `run-${runKey}` },
      head.node, actions.node, why.node, when.node, model.node, this.curves, spent.node, attempts.node, plans.node, this.whatIf.node, this.output);
  }

  async update(view) {
    const { run, attempts } = view;
    const { head, actions, why, memory, account: spent, attempts: tried, plans } = this.places;
    head.show([run.job.name, run.state], () => [heading(run)]);
    actions.show(isFinal(run.state) ? run.state : "on", () => [el("p", {}, this.actionsOf(run))]);
    const words = view.why || (view.preparation ? "Its data are being prepared; it holds no GPU meanwhile." : "It is being planned.");
    const far = view.preparation ? preparationText(view.preparation) : null;
    why.show([words, far, run.reason, run.state], () => [notice(words, far, tone(run.state)), code(run.reason)]);
    this.showTime(view);
    spent.show([attempts, isFinal(run.state) || Math.round(Date.now() / 10000)], () => (attempts.length
      ? [el("h2", {}, "Predicted and measured"), account(attempts, run.state),
        el("p", { class: "faint" }, "Predicted by the first plan for all steps, without starting and without moves; GPU-hours and cost count all the time that GPUs were held.")] : []));
    tried.show(attempts, () => (attempts.length ? [el("h2", {}, "Attempts"), attemptsTable(attempts)] : []));
    plans.show([view.candidates, attempts.map((each) => each.plan)], () => (view.candidates.length ? plansOf(view) : []));
    this.whatIf.update(view);
    this.curves.hidden = this.output.hidden = !attempts.length;
    if (!attempts.length) return;
    await this.draw(view, memory);
    this.showTime(view);
    this.logs.update(attempts, this.output.open);
  }

  showTime(view) {
    const { run, attempts } = view;
    const span = isFinal(run.state) ? range(view) : this.span ?? range(view);
    this.places.when.show([span.map(Math.round), attempts.length, run.state, this.saved],
      () => (isFinal(run.state) && !attempts.length ? [] : [timeline(view, span, this.saved)]));
  }

  // Whether there is more to come: an evaluation ends after the training.
  async showModel({ run }) {
    if (run.state !== "SUCCEEDED") return false;
    const found = await modelOf(run);
    if (found) this.places.model.show(found, () => [el("h2", {}, "Model"), modelCard(found)]);
    const isFresh = Date.now() / 1000 - run.updated_s < EVALUATION_S;
    return isFresh && run.job.evaluation?.enabled !== false && !found?.evaluations.length;
  }

  // What the reader may ask for in this state; whether they may at all is for the API to say.
  actionsOf(run) {
    const reason = { code: "CANCELLED_BY_USER", detail: "", remedy: null };
    if (!isFinal(run.state)) {
      return [actionButton("Cancel the run", async (say) => {
        await post(`runs/${encodeURIComponent(this.runKey)}/cancel`, { reason });
        say("It is being cancelled.");
      }, "Really cancel it; its newest checkpoint is kept")];
    }
    const again = actionButton("Run again", async (say) => {
      const runId = await runAgain(run.identity);
      say(runLink(run.identity.dag_id, runId, {}, "Open the new run"));
    });
    if (run.state === "SUCCEEDED") return [again];
    const tune = TUNED.includes(run.state) && run.model_config !== null ? actionButton("Tune to fit", (say) => this.tune(say)) : null;
    const isHopeless = run.state === "FAILED_NO_RESOURCE" && !run.num_attempts; // there is nothing that it could go on from
    return [isHopeless ? null : actionButton("Resume", async (say) => {
      await resume(run.identity);
      say("It goes on from its newest checkpoint.");
      this.isResumed = true;
      look();
    }), again, tune];
  }

  // The least change with which it fits, for the page New job, where it is looked at and run.
  async tune(say) {
    const { draft, yaml_text: text } = await post(`runs/${encodeURIComponent(this.runKey)}/what-if`, { tune: true });
    const open = actionButton("Open in New job, to run it", () => { handOver(text); leaveTo("../../plugin/frenzy_new_job"); });
    if (draft.tuned.length) say(`It would fit with ${draft.tuned.join(" and ")}. `, open);
    else if (draft.num_fitting) say("It fits as it is, by what is known now: run it again.");
    else say("No change of the job was found that makes it fit this cluster. ", draft.reason?.remedy || "");
  }

  async draw(view, memory) {
    const found = await get(`runs/${encodeURIComponent(this.runKey)}/memory`);
    const columns = points(found, view.attempts);
    this.curves.hidden = !columns.time.length;
    if (!columns.time.length) return;
    this.saved = checkpoints(found, view.attempts);
    const lines = forecasts(found, view.attempts, view.run.total_steps);
    const [begin, until] = range(view);
    this.span = ahead([begin, until], lines, !isFinal(view.run.state));
    this.charts.update(columns, this.span, view.attempts.map((each) => [each.created_s, each.ended_s ?? until]), lines, isOfText(view.run));
    const words = outlook(view.attempts);
    memory.show(words, () => (words ? [notice(words, null, "warn")] : []));
    const last = [...found.attempts].reverse().find((each) => each.ranks.length > 1);
    this.places.ranks.show(last?.ranks, () => (last ? [ranksTable(last, this.places.ranks.node)] : []));
    await this.showTrackers();
  }

  async showTrackers() {
    const tracked = await get(`runs/${encodeURIComponent(this.runKey)}/trackers`);
    this.places.trackers.show(tracked, () => (tracked.length ? [el("h2", {}, "Trackers"), trackersList(tracked)] : []));
  }
}

// Memory of every rank, the fullest first: which GPU is the one that the plan has to be made for. It stays open while it goes on.
function ranksTable({ attempt, ranks, num_gpus: total }, before) {
  const rows = [...ranks].sort((one, other) => other.peak_bytes - one.peak_bytes || one.rank - other.rank);
  const share = (each) => `${(100 * each.peak_bytes / each.capacity_bytes).toFixed(0)} %`;
  const columns = [
    ["rank", (each) => each.rank, "number"], ["node", (each) => each.node ?? "–"], ["peak", (each) => bytes(each.peak_bytes), "number"],
    ["of its memory", share, "number"], ["last step", (each) => `${bytes(each.last_bytes)} (step ${each.last_step})`, "number"]];
  if (rows.some((each) => each.num_alloc_retries)) columns.push(["allocator retries", (each) => each.num_alloc_retries, "number"]);
  const [{ rank, peak_bytes: peak }] = rows;
  const words = `Memory of each rank in attempt ${attempt}: ${rows.length} of ${total}, rank ${rank} the fullest with ${bytes(peak)}`;
  return el("details", { open: before.querySelector("details")?.open ? "" : null }, el("summary", {}, words), table(columns, rows, { narrow: true }));
}

// What workers wrote stands in it: only an address of the web becomes a link.
function trackersList(tracked) {
  const place = (each) => (/^https?:\/\//.test(each.place)
    ? el("a", { href: each.place, target: "_blank", rel: "noopener noreferrer" }, each.place) : el("code", {}, each.place || "–"));
  return el("dl", { class: "facts" }, tracked.map((each) => [
    el("dt", {}, each.kind),
    el("dd", {}, place(each), ` to step ${each.last_step}`, each.problem ? notice("It gets no more of this run.", each.problem, "warn") : null)]));
}

function preparationText({ progress }) {
  if (!progress) return "starting";
  return progress.done === null ? progress.phase : `${progress.phase} (${progress.done.toLocaleString("en")})`;
}

function tone(name) {
  return name.startsWith("FAILED") ? "bad" : "";
}

function code(reason) {
  return reason ? el("p", { class: "faint" }, "reason ", codeLink(reason.code)) : null;
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
let isThere = false;

// Where a link leads to is there when its run was drawn, once.
function goTo(id) {
  const found = document.getElementById(id);
  if (isThere || !found?.firstChild) return;
  isThere = true;
  found.scrollIntoView();
}

const look = repeat(async (main) => {
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
    if (!isFinal(view.run.state)) sections.get(key).isResumed = false;
    again ||= awaitsMore || sections.get(key).isResumed || !isFinal(view.run.state);
  }
  goTo(location.hash.slice(1));
  return again;
}, EVERY_MS);
