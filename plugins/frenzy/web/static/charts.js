// Loss, speed and memory of a run over one axis of time, with uPlot. A cursor in one chart shows in all.
import uPlot from "./uPlot.js";
import { bytes, el, hours, zone } from "./page.js";
import { timed } from "./plans.js";

const HEIGHT = { loss: 200, speed: 160, memory: 250 };
// Of what a run took until now: how far beyond it a forecast is drawn at most.
const AHEAD = 0.2;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// All attempts' steps one after the other; a step of nothing parts them. Times only go up.
export function points(memory, attempts) {
  const columns = { time: [], step: [], loss: [], validation: [], speed: [], foreseen: [], measured: [], least: [], predicted: [], required: [], capacity: [], forecast: [] };
  const push = (values) => { for (const key of Object.keys(columns)) columns[key].push(values[key] ?? null); };
  let last = 0;
  for (const attempt of memory.attempts) {
    const known = attempts.find((each) => each.attempt === attempt.attempt);
    const tokens = timed(known?.plan, "step_time_s");
    if (columns.time.length && attempt.steps.length) push({ time: (last += 1e-3) });
    for (const each of attempt.steps) {
      last = Math.max(each.time_s, last + 1e-3);
      push({
        time: last, step: each.step, loss: each.loss, validation: each.validation_loss, speed: each.tokens_per_s,
        foreseen: tokens && each.step_time_s ? (each.tokens_per_s * each.step_time_s) / tokens : null,
        measured: each.allocated_peak_bytes, least: each.least_peak_bytes || each.allocated_peak_bytes, predicted: attempt.predicted_peak_bytes,
        required: attempt.required_bytes, capacity: attempt.capacity_bytes,
      });
    }
  }
  return columns;
}

// Where an attempt's memory was going when it was last looked at: [from, bytes, until, bytes], at most to the card's end.
// The forecast is of the run's end, so the line is drawn to where that was to be.
export function forecasts(memory, attempts, totalSteps) {
  const found = [];
  for (const attempt of attempts) {
    const last = memory.attempts.find((each) => each.attempt === attempt.attempt)?.steps.at(-1);
    const more = attempt.forecast_extra_bytes_per_gpu - attempt.extra_bytes_per_gpu;
    const left = (totalSteps - (last?.step ?? totalSteps)) * (attempt.step_time_s || 0);
    if (!last || !(more > 0) || !(left > 0)) continue;
    const room = Math.max(0, attempt.plan.gpu_memory_bytes - last.allocated_peak_bytes);
    const part = Math.min(1, room / more);
    found.push([last.time_s, last.allocated_peak_bytes, last.time_s + part * left, last.allocated_peak_bytes + part * more]);
  }
  return found;
}

// The ends of the axis of time, with room for the forecast of a run that is on.
export function ahead([begin, until], lines, isOn) {
  const most = until + AHEAD * (until - begin);
  return [begin, isOn ? Math.min(most, Math.max(until, ...lines.map((each) => each[2]))) : until];
}

function gibTicks(_, low, high) {
  const unit = 2 ** Math.floor(Math.log2(Math.max(1, (high - low) / 4)));
  const ticks = [];
  for (let value = Math.ceil(low / unit) * unit; value <= high; value += unit) ticks.push(value);
  return ticks;
}

function line(label, name, value, more) {
  return { label, stroke: colour(name), width: 1.6, value: (_, v) => (v === null || v === undefined ? "–" : value(v)), ...more };
}

const QUIET = { points: { show: false } };
const DASH = { predicted: { ...QUIET, dash: [7, 4] }, required: { ...QUIET, dash: [2, 3] } };

const KINDS = {
  loss: {
    title: "Loss", label: "nats per token", keys: ["loss", "validation"], scale: {},
    series: (isText) => [line("training", "measured", (v) => v.toFixed(4)),
      line("validation", "predicted", (v) => (isText ? `${v.toFixed(4)} (perplexity ${Math.exp(v).toFixed(2)})` : v.toFixed(4)), { spanGaps: true, points: { show: true } })],
    axis: {},
  },
  speed: {
    title: "Speed, all GPUs together", label: "tokens / s", keys: ["speed", "foreseen"], scale: { range: (_, low, high) => [0, (high || 1) * 1.1] },
    series: () => [line("measured", "measured", (v) => v.toFixed(0)),
      line("predicted", "predicted", (v) => v.toFixed(0), DASH.predicted)], axis: {},
  },
  memory: {
    title: "Memory of one GPU", label: "memory, held by tensors", keys: ["measured", "least", "predicted", "required", "capacity", "forecast"],
    scale: { range: (_, low, high) => [0, (high || 1) * 1.06] },
    series: () => [line("measured, fullest GPU", "measured", bytes), line("emptiest GPU", "measured", bytes, { ...QUIET, width: 0.8 }),
      line("predicted peak", "predicted", bytes, DASH.predicted), line("required with margin", "required", bytes, DASH.required),
      line("capacity", "capacity", bytes, QUIET), line("forecast", "saving", bytes, { ...QUIET, dash: [3, 3] })],
    bands: [["measured", "least", "measured"], ["required", "predicted", "predicted"]],
    axis: { splits: (u, _, low, high) => gibTicks(u, low, high), values: (_, ticks) => ticks.map(bytes) },
  },
};

// The forecast of each attempt: it leads where there are no points yet.
function outlooks(linesNow) {
  return (u) => {
    const { ctx } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour("saving");
    ctx.lineWidth = 1.6 * devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const [from, low, until, high] of linesNow()) {
      ctx.beginPath();
      ctx.moveTo(u.valToPos(from, "x", true), u.valToPos(low, "y", true));
      ctx.lineTo(u.valToPos(until, "x", true), u.valToPos(high, "y", true));
      ctx.stroke();
    }
    ctx.restore();
  };
}

// The attempts as bands behind the lines, each with its number.
function bands(spansNow) {
  return (u) => {
    const { ctx } = u;
    ctx.save();
    spansNow().forEach(([from, to], index) => {
      const left = Math.max(u.valToPos(from, "x", true), u.bbox.left);
      const right = Math.min(u.valToPos(to, "x", true), u.bbox.left + u.bbox.width);
      if (index % 2 === 0 && right > left) {
        ctx.fillStyle = colour("raised");
        ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
      }
    });
    ctx.restore();
  };
}

// A run without validations has no line for them, nor one GPU a second line, nor a steady run a forecast.
function shown(kind, columns, lines, isText) {
  const { keys, series } = KINDS[kind];
  const isThere = {
    validation: () => columns.validation.some((value) => value !== null),
    least: () => columns.least.some((value, index) => value !== columns.measured[index]),
    forecast: () => lines.length > 0,
  };
  const kept = keys.map((key) => isThere[key]?.() ?? true);
  return { keys: keys.filter((_, index) => kept[index]), series: series(isText).filter((_, index) => kept[index]) };
}

// A script need not report tokens.
const kindsOf = (columns) => Object.keys(KINDS).filter((kind) => kind !== "speed" || columns.speed.some((value) => value > 0));

// Whether its loss is that of a language model; what a script without a model reports is not known.
export const isOfText = ({ job: { workload }, model_config: model }) => !workload || (Boolean(model) && ["language-model", "sft"].includes(workload.task));

// Between two lines; the first two columns are time and step.
function filled(kind, keys) {
  const at = (key) => keys.indexOf(key) + 2;
  return (KINDS[kind].bands || []).filter(([upper, lower]) => keys.includes(upper) && keys.includes(lower))
    .map(([upper, lower, name]) => ({ series: [at(upper), at(lower)], fill: `color-mix(in srgb, ${colour(name)} 14%, transparent)` }));
}

export class Charts {
  constructor() {
    this.node = el("div", { class: "charts" });
    this.plots = [];
    this.shape = "";
  }

  // span: the ends of the axis of time. spans: of the attempts. lines: as `forecasts` finds them. isText: as `isOfText` says.
  update(columns, span, spans, lines, isText) {
    this.spans = spans;
    this.lines = lines;
    this.isText = isText;
    const keys = kindsOf(columns).map((kind) => shown(kind, columns, lines).keys);
    const shape = JSON.stringify([document.documentElement.dataset.theme, this.node.clientWidth, zone(), keys]);
    if (shape !== this.shape) this.draw(columns, shape);
    this.plots.forEach((plot, index) => {
      plot.setData([columns.time, columns.step, ...keys[index].map((key) => columns[key])], false);
      plot.setScale("x", { min: span[0], max: span[1] });
    });
  }

  draw(columns, shape) {
    for (const plot of this.plots) plot.destroy();
    this.shape = shape;
    const [width, here] = [Math.max(420, this.node.clientWidth), zone()];
    this.node.replaceChildren();
    this.plots = kindsOf(columns).map((kind) => {
      const { title, label, scale, axis } = KINDS[kind];
      const { keys, series } = shown(kind, columns, this.lines, this.isText);
      const ink = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, labelGap: 2 };
      const figure = el("figure", {}, el("figcaption", {}, title));
      this.node.append(figure);
      return new uPlot({
        width, height: HEIGHT[kind], padding: [8, 8, 0, 0],
        cursor: { sync: { key: "training" }, drag: { x: false, y: false } },
        legend: { live: true }, bands: filled(kind, keys),
        tzDate: (s) => uPlot.tzDate(new Date(s * 1000), here),
        scales: { x: { time: true }, y: scale, step: { auto: false, range: [0, 1] } },
        axes: [{ ...ink, label: `time, ${here}`, labelSize: 18, size: 34, space: 84, values: (_, ticks) => ticks.map(hours) },
          { ...ink, label: kind === "loss" && !this.isText ? "loss" : label, labelSize: 20, size: 72, ...axis }],
        series: [{ label: "time", value: (_, v) => (v ? hours(v) : "–") },
          { label: "step", scale: "step", show: true, width: 0, points: { show: false }, value: (_, v) => v ?? "–" },
          ...series.map((each) => ({ spanGaps: false, ...each }))],
        hooks: { drawClear: [bands(() => this.spans)], draw: kind === "memory" ? [outlooks(() => this.lines)] : [] },
      }, [columns.time, columns.step, ...keys.map((key) => columns[key])], figure);
    });
  }
}

export function outlook(attempts) {
  const last = attempts.at(-1);
  if (!last || last.ended_s || !last.growth_step) return null;
  const more = last.forecast_extra_bytes_per_gpu;
  return `Memory grows since step ${last.growth_step} for a reason that the plan cannot know.`
    + (more > 0 ? ` At the run's end it would take ${bytes(more)} more than predicted on each GPU.` : "");
}
