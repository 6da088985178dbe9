// Who had how many GPUs when, from the leases of the ledger: stacked over time, and in a table.
import uPlot from "./uPlot.js";
import { Refusal, Shown, el, get, hours, notice, parts, table, zone } from "./page.js";

const EVERY_MS = 60_000;
const HOUR_S = 3600;
const HEIGHT = 220;
const NUM_COLOURS = 8;
const DAYS = [1, 2, 4, 7].map((each) => each * 24 * HOUR_S);
const PERIODS = { "last day": [24, 24], "last 7 days": [168, 28], "last 30 days": [720, 30] };
const BY = { team: "team", user: "owner", job: "job", queue: "queue", "GPU type": "gpu_type" };
const MEASURES = { "GPU-hours": "gpu_hours", cost: "cost" };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const ink = (index) => (index < NUM_COLOURS ? colour(`term-${index}`) : colour("faint"));
const hour = (s) => hours(s).slice(0, -3);
const day = (s) => { const { month, day: number } = parts(s); return `${month}-${number}`; };
const moment = (s) => `${day(s)} ${hour(s)}`;
const figure = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 }));
const costOf = (row) => (row.cost === null ? "–" : figure(row.cost));

// Each name's values, one upon the other; the last part reaches to the end.
class Stack {
  constructor(title) {
    this.title = title;
    this.node = el("figure", { class: "stack" });
    this.mark = null;
  }

  // values: by name. unit: of an axis; line: a constant to compare with, [words, value].
  update(edges, values, unit, line = null) {
    const mark = JSON.stringify([edges, values, unit, line, zone(), document.documentElement.dataset.theme, this.node.clientWidth]);
    if (mark === this.mark || !this.node.clientWidth) return;
    this.mark = mark;
    this.plot?.destroy();
    this.node.replaceChildren(el("figcaption", {}, this.title(unit)));
    this.plot = new uPlot(this.options(edges, values, unit, line), this.columns(edges, values, line), this.node);
  }

  columns(edges, values, line) {
    const below = edges.map(() => 0);
    const stacked = values.map(([, each]) => edges.map((_, index) => (below[index] += each[Math.min(index, each.length - 1)] ?? 0)));
    return [edges, ...stacked.reverse(), ...(line ? [edges.map(() => line[1])] : [])];
  }

  options(edges, values, unit, line) {
    const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, labelGap: 4 };
    const isLong = edges.at(-1) - edges[0] > 2 * 24 * HOUR_S;
    const series = values.map(([name, own], index) => ({
      label: name, stroke: ink(index), fill: ink(index), width: 0, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }),
      value: (_, __, ___, at) => (at === null ? "–" : figure(own[Math.min(at, own.length - 1)])),
    })).reverse();
    if (line) series.push({ label: line[0], stroke: colour("capacity"), width: 1.6, dash: [6, 4], points: { show: false }, value: () => figure(line[1]) });
    const here = zone();
    return {
      width: Math.max(420, this.node.clientWidth), height: HEIGHT, tzDate: (s) => uPlot.tzDate(new Date(s * 1000), here), padding: [8, 8, 0, 0], cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, __, high) => [0, (high || 1) * 1.08] } },
      axes: [{ ...axis, label: `time, ${here}`, labelSize: 18, size: 34, values: (_, ticks) => ticks.map(isLong ? day : hour), ...(isLong ? { incrs: DAYS } : {}) }, { ...axis, label: unit, labelSize: 20, size: 64 }],
      series: [{ label: "from", value: (_, at) => (at ? moment(at) : "–") }, ...series],
    };
  }
}

function named(words, options) {
  return el("select", { "aria-label": words }, Object.keys(options).map((each) => el("option", {}, each)));
}

function amounts({ whole }) {
  return table([
    [whole.by.replace("owner", "user").replace("gpu_type", "GPU type"), (row) => row.name],
    ["GPU-hours", (row) => figure(row.gpu_hours), "number"], ["cost", costOf, "number"], ["runs", (row) => row.num_runs, "number"],
  ], [...whole.rows, { ...whole.total, name: "all" }], { narrow: true });
}

export class Usage {
  constructor() {
    this.types = new Stack(() => "GPUs in use by type, last day; the mean of each hour");
    this.chart = new Stack((unit) => `${unit} by ${this.by.value}, ${this.period.value}, in each ${this.partWords}`);
    [this.period, this.by, this.measure] = [named("period", PERIODS), named("by", BY), named("measure", MEASURES)];
    this.period.value = "last 7 days";
    this.words = new Shown();
    this.node = el("section", { class: "usage" }, el("h2", {}, "Use of the GPUs"), this.types.node,
      el("h2", {}, "GPU-hours and cost"), el("div", { class: "bar" }, this.measure, el("span", { class: "faint" }, "by"), this.by, this.period),
      this.chart.node, this.words.node);
    for (const each of [this.period, this.by, this.measure]) each.addEventListener("change", () => this.ask());
    this.asked = 0;
  }

  // At most once a minute: leases end seldom, and the chart has parts of an hour at least.
  refresh(numGpus) {
    this.numGpus = numGpus;
    if (Date.now() - this.asked > EVERY_MS) this.ask();
    else this.draw();
  }

  async ask() {
    this.asked = Date.now();
    const [numHours, numParts] = PERIODS[this.period.value];
    this.partWords = numHours === numParts ? "hour" : `${numHours / numParts} hours`;
    try {
      [this.day, this.found] = await Promise.all([history(24, 24, "gpu_type"), history(numHours, numParts, BY[this.by.value])]);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.words.show(error.message, () => [notice(error.message, error.remedy, "bad")]);
      return;
    }
    this.draw();
  }

  draw() {
    if (!this.found) return;
    const { day: today, found } = this;
    const mean = ({ name, gpu_hours: hours }) => [name, hours.map((each, index) => each * HOUR_S / (today.edges_s[index + 1] - today.edges_s[index]))];
    this.types.update(today.edges_s, today.series.map(mean), "GPUs", ["all GPUs there are now", this.numGpus]);
    const key = MEASURES[this.measure.value];
    const unit = key === "cost" ? "cost, in the prices of the cluster file" : "GPU-hours";
    this.chart.node.hidden = !found.series.length;
    if (found.series.length) this.chart.update(found.edges_s, found.series.map((each) => [each.name, each[key]]), unit);
    this.words.show(found.whole, () => (found.whole.rows.length ? [amounts(found)] : [notice("No run held a GPU in that time.")]));
  }
}

function history(numHours, numParts, by) {
  const since = Math.max(0, Math.floor(Date.now() / 1000) - numHours * HOUR_S);
  return get(`usage/history?since_s=${since}&by=${by}&num_parts=${numParts}`);
}
