// The page New job: a specification, what would become of it, and the button that runs it.
import { Refusal, Shown, actionButton, airflowLink, bytes, duration, el, get, loadSentences, notice, post, reason, runLink } from "./page.js";
import { costOf, planId, plansOf, timed } from "./plans.js";
import { Schedule, scheduleWords } from "./schedule.js";
import { handedOver, parsed, trigger, unpause } from "./starting.js";
import { isRefused, notesOf, planOf, refusal, startOf, trainsFor } from "./verdict.js";

const PAUSE_MS = 500;
const AGAIN_MS = 1000;

function facts(draft) {
  const plan = planOf(draft);
  if (!plan) return null;
  const rows = [
    ["starts", startOf(draft)],
    [draft.plan_id ? "with" : "best plan", [el("code", {}, planId(plan)), ` ${plan.num_gpus} × ${plan.gpu_type}`]],
    ["trains", [trainsFor(plan, draft), timed(plan, "step_time_s") && `, ${duration(plan.step_time_s)} each`]],
    ["cost", costOf(timed(plan, "predicted_cost"))],
    ["memory", `${bytes(plan.memory.required_bytes)} of ${bytes(plan.gpu_memory_bytes)} on each GPU`],
    ["why", reason(draft.reason)],
    ["model", draft.model],
    ["runs", scheduleWords(draft)],
  ];
  return el("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// tune(say): changes the text as little as makes it fit.
function summary(draft, tune) {
  return [
    draft.replaces ? notice(`Running it replaces the stored job ${draft.name}; give it another name to keep that.`, null, "warn") : null,
    ...notesOf(draft),
    draft.tuned.length ? notice("Changed so that it fits:", draft.tuned.join("; ")) : null,
    isRefused(draft) ? el("div", { class: "notice bad" }, reason(draft.reason)) : facts(draft),
    isRefused(draft) && draft.model ? el("p", { class: "faint" }, `Model: ${draft.model}`) : null,
    isRefused(draft) ? el("p", {}, actionButton("Tune to fit", tune)) : null,
  ];
}

class NewJob {
  constructor(main, presets) {
    this.presets = presets;
    this.asked = 0;
    this.draft = null;
    this.preset = el("select", { id: "preset" }, el("option", { value: "" }, "choose one…"),
      presets.map((each) => el("option", { value: each.name }, each.name)));
    this.title = el("span", { class: "faint" });
    this.text = el("textarea", { id: "job", spellcheck: "false", autocomplete: "off", wrap: "off", rows: "28", "aria-describedby": "verdict" });
    this.verdict = new Shown();
    this.plans = new Shown();
    this.run = actionButton("Run once", (say) => this.start(say));
    this.save = actionButton("Save as job", (say) => this.store(say));
    this.buttons = [this.run, this.save].map((each) => each.querySelector("button"));
    this.schedule = new Schedule((edit) => {
      this.text.value = edit(this.text.value);
      this.changed(PAUSE_MS);
    });
    Object.assign(this.verdict.node, { id: "verdict" }).setAttribute("aria-live", "polite");
    this.preset.addEventListener("change", () => this.choose());
    this.text.addEventListener("input", () => this.changed(PAUSE_MS));
    main.replaceChildren(el("h1", {}, "New job"),
      el("div", { class: "bar" }, el("label", { for: "preset" }, "Start from "), this.preset, this.title),
      el("div", { class: "editor" },
        el("div", {}, el("label", { for: "job", class: "faint" }, "Specification (YAML)"), this.text),
        el("div", {}, el("p", { class: "run" }, this.run, this.save, this.schedule.node), this.verdict.node)),
      this.plans.node);
    this.text.value = handedOver() || "";
    this.changed(0);
  }

  choose() {
    const preset = this.presets.find((each) => each.name === this.preset.value);
    this.title.textContent = preset?.title || "";
    if (!preset) return;
    this.text.value = preset.yaml_text;
    this.changed(0);
  }

  // What is shown is of the text as it was; nothing is run before it was looked at.
  changed(pauseMs) {
    this.asked += 1;
    this.draft = null;
    this.allow();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(this.asked), pauseMs);
  }

  allow() {
    const [run, save] = this.buttons;
    save.disabled = !this.draft;
    run.disabled = !this.draft || isRefused(this.draft);
    this.verdict.node.classList.toggle("stale", !this.draft);
    this.plans.node.classList.toggle("stale", !this.draft);
    this.verdict.node.setAttribute("aria-busy", String(!this.draft));
  }

  async tune(say) {
    const yaml_text = this.text.value;
    const draft = await post("draft", { yaml_text, tune: true });
    if (yaml_text !== this.text.value) throw new Refusal("The text has changed meanwhile, and is left as it is.", "Press again to tune it.");
    if (!draft.tuned_yaml) return say("No change of the job was found that makes it fit this cluster.");
    this.asked += 1;
    this.text.value = draft.tuned_yaml;
    this.accept(draft);
  }

  accept(draft) {
    this.draft = draft;
    this.schedule.follow(draft.trigger);
    this.show(draft, () => summary(draft, (say) => this.tune(say)), draft.candidates);
  }

  async ask(number) {
    const yaml_text = this.text.value;
    if (!yaml_text.trim()) {
      this.show(null, () => [el("p", { class: "faint" }, "Choose a preset or write a job. Its plans appear here while you write; nothing runs before you say so.")], []);
      return;
    }
    try {
      const draft = await post("draft", { yaml_text });
      if (number !== this.asked) return;
      this.accept(draft);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (number !== this.asked) return;
      if (error.status === 503) {
        this.show(error.message, () => [notice("Other jobs are being planned; this one comes next.", null, "warn")], []);
        this.changed(AGAIN_MS);
      }
      else this.show([error.message, error.violations], () => refusal(error), []);
    }
  }

  show(value, make, candidates) {
    this.verdict.show(value, make);
    this.plans.show(candidates, () => (candidates.length
      ? plansOf({ candidates, attempts: [] }, [this.draft.num_fitting, this.draft.num_refused]) : []));
    this.allow();
    this.verdict.node.classList.remove("stale");
    this.verdict.node.setAttribute("aria-busy", "false");
  }

  // Its DAG's id, once Airflow has the DAG of this very text, and whether that is paused.
  async stored(draft, say) {
    say("The job is being stored.");
    const job = await post("jobs", { yaml_text: this.text.value });
    say("The job is stored. Airflow reads its DAG: some seconds, up to a minute where it is busy.");
    return [job, await parsed(job.dag_id, draft.shown, say)];
  }

  // One that was there may have been paused on purpose.
  async store(say) {
    const { draft } = this;
    if (!draft) return;
    try {
      const [job, isPaused] = await this.stored(draft, say);
      const link = airflowLink(`dags/${encodeURIComponent(job.dag_id)}`, {}, `Open the DAG ${job.dag_id}`);
      const isHeld = isPaused && (draft.replaces || !await unpause(job.dag_id));
      const isTimed = draft.trigger.cron && !draft.replaces;
      say(link, isHeld ? "; it is paused: unpause it in Airflow." : isTimed ? "; Airflow starts it at once for the time that passed last." : "");
    } finally {
      this.allow();
    }
  }

  async start(say) {
    const { draft } = this;
    if (!draft) return;
    try {
      const [job, isPaused] = await this.stored(draft, say);
      const runId = await trigger(job.dag_id, {}, "Started on the page New job.");
      say(runLink(job.dag_id, runId, {}, `Open the run of ${job.name}`), isPaused ? "; its DAG is paused: unpause it in Airflow." : "");
    } finally {
      this.allow();
    }
  }
}

async function begin() {
  const main = document.querySelector("main");
  try {
    await loadSentences();
    new NewJob(main, await get("presets"));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    main.replaceChildren(notice(error.message, error.remedy, "bad"));
  }
}

begin();
