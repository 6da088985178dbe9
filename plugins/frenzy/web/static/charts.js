// Loss, speed and memory of a run over one axis of time, with uPlot. A cursor in one chart shows in all.
import uPlot from "./uPlot.js";
import { bytes, el } from "./page.js";

const HEIGHT = { loss: 190, speed: 150, memory: 230 };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// All attempts' steps one after the other; a step of nothing parts them. Times only go up.
export function points(memory, attempts) {
  const columns = { time: [], step: [], loss: [], validation: [], speed: [], foreseen: [], measured: [], predicted: [], required: [], capacity: [] };
  const push = (values) => { for (const key of Object.keys(columns)) columns[key].push(values[key] ?? null); };
  let last = 0;
  for (const attempt of memory.attempts) {
    const known = attempts.find((each) => each.attempt === attempt.attempt);
    const tokens = known ? known.plan.step_time_s : null;
    if (columns.time.length && attempt.steps.length) push({ time: (last += 1e-3) });
    for (const each of attempt.steps) {
      last = Math.max(each.time_s, last + 1e-3);
      push({
        time: last, step: each.step, loss: each.loss, validation: each.validation_loss, speed: each.tokens_per_s,
        foreseen: tokens && each.step_time_s ? (each.tokens_per_s * each.step_time_s) / tokens : null,
        measured: each.allocated_peak_bytes, predicted: attempt.predicted_peak_bytes,
        required: attempt.required_bytes, capacity: attempt.capacity_bytes,
      });
    }
  }
  return columns;
}

function gibTicks(_, low, high) {
  const unit = 2 ** Math.floor(Math.log2(Math.max(1, (high - low) / 4)));
  const ticks = [];
  for (let value = Math.ceil(low / unit) * unit; value <= high; value += unit) ticks.push(value);
  return ticks;
}

const two = (number) => String(number).padStart(2, "0");
const hours = (s) => { const at = new Date(s * 1000); return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`; };

function line(label, name, value, more) {
  return { label, stroke: colour(name), width: 1.6, value: (_, v) => (v === null || v === undefined ? "–" : value(v)), ...more };
}

const QUIET = { points: { show: false } };
const DASH = { predicted: { ...QUIET, dash: [7, 4] }, required: { ...QUIET, dash: [2, 3] } };

const KINDS = {
  loss: {
    title: "loss", keys: ["loss", "validation"], scale: {},
    series: () => [line("training", "measured", (v) => v.toFixed(4)),
      line("validation", "predicted", (v) => `${v.toFixed(4)} (perplexity ${Math.exp(v).toFixed(2)})`, { spanGaps: true, points: { show: true } })],
    axis: {},
  },
  speed: {
    title: "tokens per second", keys: ["speed", "foreseen"], scale: { range: (_, low, high) => [0, (high || 1) * 1.1] },
    series: () => [line("measured", "measured", (v) => v.toFixed(0)),
      line("predicted", "predicted", (v) => v.toFixed(0), DASH.predicted)], axis: {},
  },
  memory: {
    title: "memory of one GPU", keys: ["measured", "predicted", "required", "capacity"],
    scale: { range: (_, low, high) => [0, (high || 1) * 1.06] },
    series: () => [line("measured, worst GPU", "measured", bytes), line("predicted peak", "predicted", bytes, DASH.predicted),
      line("required with margin", "required", bytes, DASH.required), line("capacity", "capacity", bytes, QUIET)],
    axis: { splits: (u, _, low, high) => gibTicks(u, low, high), values: (_, ticks) => ticks.map(bytes) },
  },
};

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

// A run without validations has no line for them.
function shown(kind, columns) {
  const { keys, series } = KINDS[kind];
  const kept = keys.map((key) => key !== "validation" || columns[key].some((value) => value !== null));
  return { keys: keys.filter((_, index) => kept[index]), series: series().filter((_, index) => kept[index]) };
}

export class Charts {
  constructor() {
    this.node = el("div", { class: "charts" });
    this.plots = [];
    this.shape = "";
  }

  // span: the ends of the axis of time. spans: of the attempts.
  update(columns, span, spans) {
    this.spans = spans;
    const shape = JSON.stringify([document.documentElement.dataset.theme, this.node.clientWidth, shown("loss", columns).keys]);
    if (shape !== this.shape) this.draw(columns, shape);
    for (const [kind, plot] of this.plots) {
      plot.setData([columns.time, columns.step, ...shown(kind, columns).keys.map((key) => columns[key])], false);
      plot.setScale("x", { min: span[0], max: span[1] });
    }
  }

  draw(columns, shape) {
    for (const [, plot] of this.plots) plot.destroy();
    this.shape = shape;
    const width = Math.max(420, this.node.clientWidth);
    this.node.replaceChildren();
    this.plots = Object.entries(KINDS).map(([kind, { title, scale, axis }]) => {
      const { keys, series } = shown(kind, columns);
      const ink = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
      const figure = el("figure", {}, el("figcaption", {}, title));
      const plot = new uPlot({
        width, height: HEIGHT[kind], padding: [8, 8, 0, 0],
        cursor: { sync: { key: "training" }, drag: { x: false, y: false } },
        legend: { live: true },
        scales: { x: { time: true }, y: scale, step: { auto: false, range: [0, 1] } },
        axes: [{ ...ink, values: (_, ticks) => ticks.map(hours) }, { ...ink, size: 84, ...axis }],
        series: [{ label: "time", value: (_, v) => (v ? hours(v) : "–") },
          { label: "step", scale: "step", show: true, width: 0, points: { show: false }, value: (_, v) => v ?? "–" },
          ...series.map((each) => ({ spanGaps: false, ...each }))],
        hooks: { drawClear: [bands(() => this.spans)] },
      }, [columns.time, columns.step, ...keys.map((key) => columns[key])], figure);
      this.node.append(figure);
      return [kind, plot];
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
