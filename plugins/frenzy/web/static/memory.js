// The Memory tab of a DAG run: what was predicted, what each step took, and what there was.
import { bytes, duration, el, get, isFinal, keepFresh, notice, percent, reason, runHeading, runsOfPage, svg, table } from "./page.js";

const WIDTH = 960;
const HEIGHT = 340;
const MARGIN = { left: 74, right: 16, top: 30, bottom: 34 };

function niceTicks(top, wanted) {
  const rough = top / wanted;
  const unit = 2 ** Math.floor(Math.log2(rough || 1));
  const step = rough > 1.5 * unit ? 2 * unit : unit;
  const ticks = [];
  for (let value = 0; value <= top; value += step) ticks.push(value);
  return ticks;
}

function stepTicks(first, last) {
  const span = Math.max(1, last - first);
  const unit = 10 ** Math.floor(Math.log10(span / 5 || 1));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * unit).find((each) => span / each <= 10));
  const ticks = [];
  for (let value = Math.ceil(first / step) * step; value <= last; value += step) ticks.push(value);
  return ticks;
}

// Each attempt with the steps it covers; one that has not made a step yet follows the one before.
function spans(attempts) {
  let end = 1;
  return attempts.map((attempt) => {
    const first = attempt.steps.length ? attempt.steps[0].step : end;
    const last = attempt.steps.length ? attempt.steps.at(-1).step : first;
    end = Math.max(end, last);
    return { attempt, first, last: Math.max(last, first + 1) };
  });
}

function scales(pieces) {
  const first = Math.min(...pieces.map((piece) => piece.first));
  const last = Math.max(...pieces.map((piece) => piece.last));
  const top = 1.08 * Math.max(...pieces.flatMap(({ attempt }) => [
    attempt.capacity_bytes, attempt.required_bytes, ...attempt.steps.map((each) => each.allocated_peak_bytes)]));
  const inner = { width: WIDTH - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
  return {
    first, last, top,
    x: (step) => MARGIN.left + (inner.width * (step - first)) / Math.max(1, last - first),
    y: (value) => MARGIN.top + inner.height * (1 - value / top),
  };
}

function axes({ x, y, top, first, last }) {
  const right = WIDTH - MARGIN.right;
  const bottom = HEIGHT - MARGIN.bottom;
  return [
    niceTicks(top, 5).map((value) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, bytes(value))]),
    stepTicks(first, last).map((step) =>
      svg("text", { x: x(step), y: bottom + 16, "text-anchor": "middle" }, step)),
    svg("text", { x: right, y: HEIGHT - 4, "text-anchor": "end" }, "optimizer step"),
  ];
}

function level(kind, value, piece, { x, y }, title) {
  return svg("line", { class: `level ${kind}`, x1: x(piece.first), x2: x(piece.last), y1: y(value), y2: y(value) },
    svg("title", {}, `${title}: ${bytes(value)}`));
}

function drawAttempt(piece, index, scale) {
  const { attempt } = piece;
  const { x, y } = scale;
  const points = attempt.steps.map((each) => `${x(each.step).toFixed(1)},${y(each.allocated_peak_bytes).toFixed(1)}`);
  return svg("g", {},
    index % 2 ? null : svg("rect", { class: "stripe", x: x(piece.first), y: MARGIN.top,
      width: x(piece.last) - x(piece.first), height: HEIGHT - MARGIN.top - MARGIN.bottom }),
    level("capacity", attempt.capacity_bytes, piece, scale, "capacity of each GPU"),
    level("required", attempt.required_bytes, piece, scale, "required"),
    level("predicted", attempt.predicted_peak_bytes, piece, scale, "predicted peak"),
    attempt.growth_step ? svg("line", { class: "growth", x1: x(attempt.growth_step), x2: x(attempt.growth_step),
      y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }, svg("title", {}, `growth nobody predicted since step ${attempt.growth_step}`)) : null,
    svg("polyline", { class: "curve", points: points.join(" ") }),
    points.length === 1 ? svg("circle", { class: "dot", r: 3, cx: points[0].split(",")[0], cy: points[0].split(",")[1] }) : null,
    svg("text", { class: "strong", x: x(piece.first) + 4, y: MARGIN.top - 4 - 12 * (index % 2) },
      `${attempt.attempt}: ${attempt.plan_id}`));
}

// Moving over the chart names the step under the pointer.
function readout(picture, pieces, scale) {
  const line = svg("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
  const words = el("div", { class: "readout", "aria-hidden": "true" });
  picture.append(line);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = pieces.flatMap(({ attempt }) => attempt.steps.map((each) => ({ attempt, each })))
      .reduce((best, next) => (best && Math.abs(scale.x(best.each.step) - at) <= Math.abs(scale.x(next.each.step) - at) ? best : next), null);
    if (!near) return;
    line.setAttribute("visibility", "visible");
    line.setAttribute("x1", scale.x(near.each.step));
    line.setAttribute("x2", scale.x(near.each.step));
    const { each, attempt } = near;
    words.textContent = `attempt ${attempt.attempt}, step ${each.step}: ${bytes(each.allocated_peak_bytes)} of ${bytes(attempt.capacity_bytes)}`
      + `, loss ${each.loss === null ? "–" : each.loss.toFixed(4)}, ${duration(each.step_time_s)} a step on ${each.num_ranks} GPU${each.num_ranks === 1 ? "" : "s"}`;
  });
  return words;
}

function chart(attempts) {
  const pieces = spans(attempts);
  const scale = scales(pieces);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": "Memory of one GPU by optimizer step, with the prediction and the capacity of each attempt" });
  picture.append(...[axes(scale)].flat(Infinity), ...pieces.map((piece, index) => drawAttempt(piece, index, scale)));
  const words = readout(picture, pieces, scale);
  return el("figure", {},
    el("div", { class: "legend" },
      el("span", { class: "is-measured" }, el("i", {}, "measured, worst GPU")),
      el("span", { class: "is-predicted" }, el("i", {}, "predicted peak")),
      el("span", { class: "is-required" }, el("i", {}, "required with margin")),
      el("span", { class: "is-capacity" }, el("i", {}, "capacity"))),
    picture, words);
}

function offBy(attempt) {
  const measured = attempt.ledger?.explained_peak_bytes;
  return measured ? percent(attempt.predicted_peak_bytes, measured) : "–";
}

function attemptsTable(attempts) {
  return table([
    ["attempt", (each) => each.attempt, "number"],
    ["plan", (each) => el("code", {}, each.plan_id)],
    ["steps", (each) => (each.steps.length ? `${each.steps[0].step}–${each.steps.at(-1).step}` : "–"), "number"],
    ["predicted", (each) => bytes(each.predicted_peak_bytes), "number"],
    ["measured", (each) => bytes(each.ledger?.explained_peak_bytes), "number"],
    ["off by", offBy, "number"],
    ["highest", (each) => bytes(each.ledger?.measured_peak_bytes), "number"],
    ["capacity", (each) => bytes(each.capacity_bytes), "number"],
    ["grows from", (each) => (each.growth_step ? `step ${each.growth_step}` : "–"), "number"],
    ["outcome", (each) => (each.outcome ? reason(each.outcome) : "running"), "why"],
  ], attempts);
}

async function section(view) {
  const memory = await get(`runs/${encodeURIComponent(view.run.run_key)}/memory`);
  // The curve is the telemetry; the figures are the ledger's, the same that the command prints.
  const ledger = new Map(view.attempts.map((each) => [each.attempt, each]));
  const attempts = memory.attempts.map((each) => ({ ...each, ledger: ledger.get(each.attempt) }));
  const body = attempts.length
    ? [chart(attempts), el("h2", {}, "Attempts"), attemptsTable(attempts),
      el("p", { class: "faint" }, "Measured: highest peak of any GPU before memory grew for a reason the plan cannot know; the prediction is judged by it.")]
    : notice("No attempt has been launched yet.", "The Plan tab shows what would run, the Queue page why it waits.");
  return el("section", {}, runHeading(view.run, "Memory of one GPU"), body);
}

keepFresh(async () => {
  const views = await runsOfPage();
  if (!views.length) return [[notice("This DAG run has no training run yet.", "It appears when the profile task has run.")], true];
  return [await Promise.all(views.map(section)), views.some((view) => !isFinal(view.run.state))];
}, 2000);
