// Every plan that was considered, its memory by term, and why it ranks there; and what the attempts ran on.
import { bytes, difference, duration, el, isFinal, reason, svg, table } from "./page.js";

const SHOWN = 8;
const BAR = { width: 260, height: 16 };
const NUM_COLOURS = 8;

export function termNames(candidates) {
  const totals = new Map();
  for (const { plan } of candidates) {
    for (const term of plan.memory.terms) totals.set(term.name, (totals.get(term.name) || 0) + term.num_bytes);
  }
  return [...totals.entries()].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

function colour(names, name) {
  return `term-${Math.min(names.indexOf(name), NUM_COLOURS - 1)}`;
}

// The whole bar is the card, or what the plan requires where that is more.
function memoryBar(plan, names) {
  const most = Math.max(plan.gpu_memory_bytes, plan.memory.required_bytes, 1);
  const width = (value) => (BAR.width * value) / most;
  const picture = svg("svg", { class: "bar", viewBox: `0 0 ${BAR.width} ${BAR.height}`, role: "img",
    "aria-label": `predicted ${bytes(plan.memory.peak_allocated_bytes)} of ${bytes(plan.gpu_memory_bytes)}` });
  let left = 0;
  for (const term of plan.memory.terms) {
    picture.append(svg("rect", { class: colour(names, term.name), x: left.toFixed(2), y: 3, height: 10,
      width: Math.max(0, width(term.num_bytes)).toFixed(2) },
      svg("title", {}, `${term.name}: ${bytes(term.num_bytes)}${term.equation ? ` = ${term.equation}` : ""}`)));
    left += width(term.num_bytes);
  }
  for (const [kind, value] of [["required", plan.memory.required_bytes], ["capacity", plan.gpu_memory_bytes]]) {
    const at = Math.min(width(value), BAR.width - 1);
    picture.append(svg("line", { class: kind, x1: at, x2: at, y1: 0, y2: BAR.height },
      svg("title", {}, `${kind}: ${bytes(value)}`)));
  }
  return picture;
}

function hostTerms(memory) {
  return (memory.host_terms || []).map((term) =>
    `${term.name}: ${bytes(term.num_bytes)} a ${term.of_each_rank ? "rank" : "node"}`).join("\n");
}

export function memoryCell(plan, names) {
  const { peak_allocated_bytes: peak, required_bytes: required, host_bytes: host, at } = plan.memory;
  return [memoryBar(plan, names),
    el("div", { title: at ? `peak at ${at}` : null }, `peak ${bytes(peak)}, needs ${bytes(required)} of ${bytes(plan.gpu_memory_bytes)}`),
    host ? el("div", { class: "faint", title: hostTerms(plan.memory) || null }, `host memory of a node ${bytes(host)}`) : null];
}

export function settings(plan) {
  const parts = [`ZeRO ${plan.zero_stage}`, `micro-batch ${plan.micro_batch_size} × ${plan.accumulation_steps}`];
  if (plan.tp > 1) parts.push(`tensor parallel ${plan.tp}`);
  if (plan.activation_checkpointing) parts.push("checkpointing");
  if (plan.offload_optimizer) parts.push("offload");
  return parts.join(", ");
}

// That of a script without a model is assumed.
export function isTimed({ memory }) {
  return !(memory.is_declared || memory.learnt_from || memory.is_rehearsal);
}

// A step's, a run's time, or its cost; null where it is assumed.
export const timed = (plan, field) => (plan && isTimed(plan) ? plan[field] : null);

export const costOf = (cost) => cost?.toFixed(4) ?? "–";

function planTable(candidates, names, chosen) {
  const attempts = (plan_id) => chosen.get(plan_id) || [];
  return table([
    ["rank", (each) => each.rank ?? "–", "number"],
    ["plan", (each) => [el("code", {}, each.plan_id), el("div", { class: "faint" }, settings(each.plan)),
      attempts(each.plan_id).length ? el("div", { class: "good" }, `ran as attempt ${attempts(each.plan_id).join(", ")}`) : null]],
    ["memory of one GPU", (each) => memoryCell(each.plan, names), "memory"],
    ["time", (each) => duration(timed(each.plan, "predicted_run_s")), "number"],
    ["cost", (each) => costOf(timed(each.plan, "predicted_cost")), "number"],
    ["reason", (each) => reason(each.reason), "why"],
  ], candidates, { rowClass: (each) => (attempts(each.plan_id).length ? "chosen" : null) });
}

export function planId(plan) {
  const parts = [`${plan.num_gpus}x${plan.gpu_type}`, `z${plan.zero_stage}`, `mb${plan.micro_batch_size}`];
  if (plan.tp > 1) parts.push(`tp${plan.tp}`);
  if (plan.activation_checkpointing) parts.push("ckpt");
  if (plan.offload_optimizer) parts.push("offload");
  return parts.join("-");
}

function chosenPlans(attempts) {
  const chosen = new Map();
  for (const attempt of attempts) {
    const id = planId(attempt.plan);
    chosen.set(id, [...(chosen.get(id) || []), attempt.attempt]);
  }
  return chosen;
}

function folded(title, node) {
  return el("details", {}, el("summary", {}, title), node);
}

function legend(names) {
  return el("div", { class: "legend" },
    names.slice(0, NUM_COLOURS).map((name, index) => el("span", { class: `swatch term-${index}` }, el("i", {}, name))),
    el("span", { class: "is-required" }, el("i", {}, "required")), el("span", { class: "is-capacity" }, el("i", {}, "card")));
}

function offBy(attempt) {
  const measured = attempt.explained_peak_bytes;
  const predicted = attempt.plan.memory.is_rehearsal ? 0 : attempt.plan.memory.peak_allocated_bytes;
  return measured && predicted ? [`off by ${difference(measured, predicted)}`] : [];
}

function took(attempt) {
  const began = attempt.first_step_s;
  if (!began) return "–";
  return duration((attempt.ended_s || Date.now() / 1000) - began);
}

// Measured, and in grey below it what was predicted.
function both(measured, predicted, ...more) {
  return [measured, [`predicted ${predicted}`, ...more].map((each) => el("div", { class: "faint" }, each))];
}

export function attemptsTable(attempts) {
  return table([
    ["attempt", (each) => each.attempt, "number"],
    ["plan", (each) => [el("code", {}, planId(each.plan)),
      el("div", { class: "faint" }, each.placement.allocations.map((one) => `${one.num_gpus} on ${one.node}`).join(", "))]],
    ["because", (each) => reason(each.next_attempt.reason), "why"],
    ["up to step", (each) => each.last_step, "number"],
    ["trained", took, "number"],
    ["step", (each) => both(duration(each.step_time_s), duration(timed(each.plan, "step_time_s"))), "number"],
    ["peak of one GPU", (each) => both(bytes(each.explained_peak_bytes), bytes(each.plan.memory.peak_allocated_bytes), ...offBy(each)), "number"],
    ["highest", (each) => [bytes(each.measured_peak_bytes), el("div", { class: "faint" }, `of ${bytes(each.plan.gpu_memory_bytes)}`)], "number"],
    ["outcome", (each) => (each.outcome ? reason(each.outcome) : "under way"), "why"],
  ], attempts);
}

const sum = (attempts, each) => attempts.reduce((all, one) => all + each(one), 0);
const held = (attempt) => (attempt.ended_s || Date.now() / 1000) - attempt.created_s;
const price = (plan) => (plan.predicted_run_s ? plan.predicted_cost / plan.predicted_run_s : 0);
const figure = (value) => value?.toPrecision(3) ?? "–";
const isPriced = (each) => each.plan.predicted_cost !== null;

// The whole run beside what its first plan promised; only a run that succeeded has made all steps of that.
export function account(attempts, state) {
  const isOver = isFinal(state);
  const [first] = attempts;
  const predicted_s = timed(first.plan, "predicted_run_s");
  const trained = attempts.filter((each) => each.first_step_s);
  const rows = [
    ["training", predicted_s, sum(trained, (each) => (each.ended_s || Date.now() / 1000) - each.first_step_s), duration],
    ["GPU-hours", predicted_s && (first.plan.num_gpus * predicted_s) / 3600, sum(attempts, (each) => (each.plan.num_gpus * held(each)) / 3600), figure],
    attempts.some(isPriced) ? ["cost", timed(first.plan, "predicted_cost"), attempts.every(isPriced) ? sum(attempts, (each) => price(each.plan) * held(each)) : null, figure]
      : ["cost", null, null, () => "no prices in the cluster file"],
  ];
  return table([
    ["", ([name]) => name], ["predicted", ([, predicted, , words]) => words(predicted), "number"],
    [isOver ? "measured" : "until now", ([, , measured, words]) => words(measured), "number"],
    ["difference", ([, predicted, measured]) => (state === "SUCCEEDED" && predicted && measured !== null ? difference(measured, predicted) : "–"), "number"],
  ], rows, { narrow: true });
}

// counts: of all that fit and of all that do not, where the view has not all of them.
export function plansOf(view, counts = null) {
  const candidates = view.candidates.map((each) => ({ ...each, plan_id: planId(each.plan) }));
  const feasible = candidates.filter((each) => each.rank !== null).sort((a, b) => a.rank - b.rank);
  const refused = candidates.filter((each) => each.rank === null);
  const names = termNames(candidates);
  const chosen = chosenPlans(view.attempts);
  const [fit, unfit] = counts || [feasible.length, refused.length];
  const show = (rows) => planTable(rows, names, chosen);
  return [
    el("h2", {}, fit ? `${fit} plan${fit === 1 ? "" : "s"} that fit, best first` : "No plan fits"),
    candidates.length ? legend(names) : null,
    feasible.length ? show(feasible.slice(0, SHOWN)) : null,
    feasible.length > SHOWN ? folded(`${feasible.length - SHOWN} more`, show(feasible.slice(SHOWN))) : null,
    !refused.length ? null : fit ? folded(`${unfit} refused, and why`, show(refused)) : show(refused),
  ];
}
