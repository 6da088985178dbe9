// What a run's job would get with other values: the answer of the page New job, beside the run's own plan.
import { Refusal, Shown, actionButton, bytes, difference, duration, el, get, leaveTo, notice, post, reason, table } from "./page.js";
import { costOf, memoryCell, planId, plansOf, settings, termNames, timed } from "./plans.js";
import { isRefused, notesOf, planOf, refusal, startOf, trainsFor } from "./verdict.js";
import { handOver } from "./starting.js";

const PAUSE_MS = 350;
const AGAIN_MS = 1000;
const ADAPTERS = { "all weights": null, LoRA: "none", QLoRA: "nf4" };

function select(options, value) {
  const node = el("select", {}, Object.entries(options).map(([text, each]) => el("option", { value: each ?? "" }, text)));
  node.value = value ?? "";
  return node;
}

const same = (names) => Object.fromEntries(names.map((each) => [each, each]));
const ofJob = (job, path) => path.split(".").reduce((inner, name) => inner?.[name], job);

function number(value, more = {}) {
  const node = el("input", { type: "number", min: 1, step: 1, ...more });
  node.value = value ?? "";
  return node;
}

const isGiven = (node) => node.value !== "";
const numberIn = (node) => (isGiven(node) ? Number(node.value) : null);
const textIn = (node) => node.value || null;

// [title, path, what is asked for it, its value]
const FIELDS = [
  ["sequence length", "data.sequence_length", (value) => number(value, { min: 8 }), numberIn],
  ["global batch", "training.global_batch_size", (value) => number(value), numberIn],
  ["GPUs at most", "constraints.max_gpus", (value) => number(value, { placeholder: "any" }), numberIn],
  ["loss", "training.loss", (value) => select(same(["torch", "fused"]), value), textIn],
  ["precision", "training.precision", (value) => select(same(["bf16", "fp16", "fp32", "autocast-bf16"]), value), textIn],
  ["optimizer", "training.optimizer", (value) => select(same(["adamw", "adamw-8bit", "sgd"]), value), textIn],
  ["checkpointing", "training.gradient_checkpointing", (value) => select(same(["auto", "on", "off"]), value), textIn],
  ["attention", "training.attention", (value) => select(same(["sdpa", "eager", "flash_attention_2", "flash_attention_3"]), value), textIn],
  ["objective", "objective", (value) => select(same(["time", "cost"]), value), textIn],
];

function beside(value, own, words) {
  return own && value !== null && value !== own ? [words(value), el("div", { class: "faint" }, difference(value, own))] : words(value);
}

function comparison(own, plan, draft) {
  const rows = [["the run's own", own, "–"], plan ? ["what if", plan, startOf(draft)] : null].filter((each) => each && each[1]);
  const names = termNames(rows.map((each) => ({ plan: each[1] })));
  const mine = (row) => (row[1] === own ? null : own);
  return table([
    ["", ([title]) => el("b", {}, title)],
    ["plan", ([, each]) => [el("code", {}, planId(each)), el("div", { class: "faint" }, settings(each))]],
    ["memory of one GPU", ([, each]) => memoryCell(each, names), "memory"],
    ["required", (row) => beside(row[1].memory.required_bytes, mine(row)?.memory.required_bytes, bytes), "number"],
    ["step", (row) => beside(timed(row[1], "step_time_s"), timed(mine(row), "step_time_s"), duration), "number"],
    ["time", (row) => beside(timed(row[1], "predicted_run_s"), timed(mine(row), "predicted_run_s"), duration), "number"],
    ["cost", (row) => beside(timed(row[1], "predicted_cost"), timed(mine(row), "predicted_cost"), costOf), "number"],
    ["would start", ([, , start]) => start, "why"],
  ], rows);
}

export class WhatIf {
  constructor(runKey) {
    this.runKey = runKey;
    this.asked = 0;
    this.answer = null;
    this.answered = new Shown();
    Object.assign(this.answered.node, { className: "answer" }).setAttribute("aria-live", "polite");
    this.controls = el("form", { class: "controls" });
    this.controls.addEventListener("input", () => this.changed(PAUSE_MS));
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    this.open = actionButton("Open in New job", () => {
      handOver(this.answer.yaml_text);
      leaveTo("../../plugin/frenzy_new_job");
    });
    this.button = this.open.querySelector("button");
    this.reset = el("button", { type: "button" }, "As it is");
    this.reset.addEventListener("click", () => this.fill());
    this.node = el("details", { hidden: "", class: "what-if" }, el("summary", {}, "What if"),
      el("p", { class: "faint" }, "Other values, planned and decided at once as the page New job does; the run stays as it is."),
      this.controls, el("p", {}, this.open, this.reset), this.answered.node);
    this.node.addEventListener("toggle", () => this.node.open && this.begin());
  }

  // Only who may see the specification is given the model's config with it.
  update({ run, candidates, attempts }) {
    this.run = run;
    this.own = attempts.at(-1)?.plan || candidates.find((each) => each.rank === 1)?.plan || null;
    this.node.hidden = run.model_config === null;
  }

  async begin() {
    if (this.types) return;
    try {
      this.types = (await get("gpus")).types.map((each) => each.gpu_type);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.show(error.message, () => refusal(error));
      return;
    }
    this.fill();
  }

  fill() {
    const { job } = this.run;
    this.fields = FIELDS.map(([title, path, ask, read]) => ({ title, path, read, node: ask(ofJob(job, path)) }));
    this.micro = number(null, { placeholder: "the plan's choice" });
    const written = job.constraints.gpu_types;
    this.type = select({ [written.length ? `as it is: ${written.join(", ")}` : "any"]: "", ...same(this.types) }, "");
    this.adapters = select(ADAPTERS, job.training.lora?.quantization);
    this.rank = number(job.training.lora?.rank ?? 16);
    const [length, batch, ...others] = this.fields;
    const all = [length, batch, { title: "micro-batch", node: this.micro }, { title: "GPU type", node: this.type }, others[0], others[1],
      { title: "trains", node: this.adapters }, { title: "LoRA rank", node: this.rank }, ...others.slice(2)];
    this.controls.replaceChildren(...all.map(({ title, node }) => el("label", {}, el("span", {}, title), node)));
    this.changed(0);
  }

  changes() {
    const { job } = this.run;
    const found = {};
    for (const { path, read, node } of this.fields) {
      if (read(node) !== (ofJob(job, path) ?? null)) found[path] = read(node);
    }
    if (this.type.value) found["constraints.gpu_types"] = [this.type.value];
    const { lora } = job.training;
    this.rank.disabled = !this.adapters.value;
    if (!this.adapters.value) return lora ? { ...found, "training.lora": null } : found;
    if (this.adapters.value !== lora?.quantization) found["training.lora.quantization"] = this.adapters.value;
    if (this.adapters.value === "none" && lora?.double_quantization) found["training.lora.double_quantization"] = false;
    if (numberIn(this.rank) !== lora?.rank) found["training.lora.rank"] = numberIn(this.rank);
    return found;
  }

  changed(pauseMs) {
    this.asked += 1;
    this.answer = null;
    this.button.disabled = true;
    this.answered.node.classList.add("stale");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(this.asked), pauseMs);
  }

  async ask(asked) {
    const message = { changes: this.changes(), micro_batch_size: numberIn(this.micro) };
    try {
      const answer = await post(`runs/${encodeURIComponent(this.runKey)}/what-if`, message);
      if (asked !== this.asked) return;
      this.answer = answer;
      this.button.disabled = false;
      this.show([answer, this.own], () => this.words(answer.draft, message));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (asked !== this.asked) return;
      if (error.status === 503) this.changed(AGAIN_MS);
      else this.show([error.message, error.violations], () => refusal(error));
    }
  }

  show(value, make) {
    this.answered.show(value, make);
    this.answered.node.classList.remove("stale");
  }

  words(draft, { micro_batch_size: micro }) {
    const plan = planOf(draft);
    return [
      ...notesOf(draft),
      isRefused(draft) ? el("div", { class: "notice bad" }, reason(draft.reason)) : null,
      comparison(this.own, plan, draft),
      plan ? el("p", { class: "faint" }, `It would train ${trainsFor(plan, draft)}. `, draft.reason?.detail || "") : null,
      micro ? el("p", { class: "faint" }, "Micro-batches are chosen by the plan; the specification names none, so New job plans with all of them.") : null,
      draft.candidates.length ? el("details", {}, el("summary", {}, `All plans: ${draft.num_fitting} fit, ${draft.num_refused} do not`),
        plansOf({ candidates: draft.candidates, attempts: [] }, [draft.num_fitting, draft.num_refused])) : null,
    ];
  }
}
