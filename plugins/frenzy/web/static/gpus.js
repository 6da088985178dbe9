// The page GPUs: what is free, who holds what until when, who waits and why, who ended.
import { NodeMap } from "./node_map.js";
import { Shown, airflowLink, bytes, clock, codeLink, duration, el, get, notice, reason, repeat, runLink, state, table } from "./page.js";
import { VirtualTable } from "./virtual_table.js";

const EVERY_MS = 4000;
const MOST_ENDED = 30;
const MOST_NODES = 4;

let names = new Map();
let now = 0;
let page = null;

// A name that shows only what has it.
function only(kind, value) {
  const link = el("a", { href: "#", class: "faint", title: `only this ${kind}` }, value);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    page.pick(kind, value);
  });
  return link;
}

const listed = (links) => links.flatMap((each, index) => (index ? [" · ", each] : [each]));

function job(row) {
  const of = [row.owner && only("user", row.owner), row.team !== "default" && only("team", row.team), row.queue !== "default" && only("queue", row.queue)];
  return [runLink(row.dag_id, row.run_id, { title: row.run_id }, row.job_name), el("div", {}, listed(of.filter(Boolean)))];
}

function standing(row) {
  return [state(row.state), row.reason ? el("div", {}, codeLink(row.reason.code)) : null];
}

// One line; the whole sentence and the remedy are the title, and stand on the run's page.
function short(value) {
  if (!value) return el("span", { class: "faint" }, "–");
  const whole = [value.detail || value.code, value.remedy].filter(Boolean).join(" → ");
  return el("span", { title: whole }, value.detail || value.code, value.remedy ? el("div", { class: "remedy" }, value.remedy) : null);
}

function beneath(words, more, title = null) {
  return [el("span", { title }, words), more ? el("div", { class: "faint" }, more) : null];
}

const WAITING = [
  ["place", (row) => beneath(row.position, row.priority ? `priority ${row.priority}` : null), "number", "90px"],
  ["job", job, null, "170px"],
  ["state", standing, null, "225px"],
  ["waits, would start", (row) => beneath(duration(Math.max(0, now - row.waiting_since_s)), row.expected_start_s ? clock(row.expected_start_s) : "not known"), "number", "150px"],
  ["why, and what would help", (row) => short(row.reason), "why", "auto"],
  ["wants", (row) => (row.wanted_plan_id ? el("code", {}, row.wanted_plan_id) : "–"), null, "200px"],
];

const RUNNING = [
  ["job", job, null, "170px"],
  ["state", standing, null, "225px"],
  ["GPUs", (row) => [`${row.num_gpus} × `, only("GPU type", row.gpu_type),
    el("div", { title: row.nodes.join(", ") }, listed(row.nodes.slice(0, MOST_NODES).map((each) => only("node", each))), row.nodes.length > MOST_NODES ? " …" : null)], null, "200px"],
  ["step", (row) => beneath(row.total_steps ? `${row.last_step} / ${row.total_steps}` : row.last_step, row.last_loss === null ? null : `loss ${row.last_loss.toFixed(4)}`), "number", "125px"],
  ["memory", (row) => beneath(bytes(row.measured_peak_bytes), `of ${bytes(row.capacity_bytes)}`, "the highest that was measured on one GPU"), "number", "110px"],
  ["held until", (row) => beneath(clock(row.expected_end_s), row.num_reschedules ? `moved ${row.num_reschedules} time${row.num_reschedules === 1 ? "" : "s"}` : null), "number", "150px"],
  ["note", (row) => short(row.reason), "why", "auto"],
];

function preparing(queue) {
  return table([
    ["job", job], ["since", (row) => duration(Math.max(0, now - row.since_s)), "number"], ["how far", (row) => row.progress],
  ], queue.preparing);
}

export function ended(views) {
  const rows = views.filter((each) => each.run.state === "SUCCEEDED" || each.run.state === "CANCELLED" || each.run.state.startsWith("FAILED"))
    .sort((one, other) => other.run.updated_s - one.run.updated_s);
  if (!rows.length) return notice("Nothing has ended yet.");
  return table([
    ["job", ({ run }) => runLink(run.identity.dag_id, run.identity.run_id, {}, run.job.name)],
    ["state", ({ run }) => state(run.state)],
    ["ended", ({ run }) => clock(run.updated_s), "number"],
    ["attempts", ({ attempts }) => attempts.length, "number"],
    ["steps", ({ attempts }) => attempts.at(-1)?.last_step ?? "–", "number"],
    ["loss", ({ attempts }) => attempts.at(-1)?.last_loss?.toFixed(4) ?? "–", "number"],
    ["reason", ({ run }) => (run.reason ? reason(run.reason) : "–"), "why"],
  ], rows.slice(0, MOST_ENDED));
}

function totals(queue, gpus) {
  const sum = (rows, count) => rows.reduce((all, row) => all + count(row), 0);
  const held = sum(gpus.types, (row) => row.num_gpus - row.num_free);
  const figures = [
    ["waiting", queue.waiting.length], ["running", queue.running.length],
    ["GPUs held", `${held} of ${sum(gpus.types, (row) => row.num_gpus)}`],
    ["free", sum(gpus.types, (row) => row.num_free)], ["suspect", sum(gpus.types, (row) => row.num_suspect)],
    ["nodes not ready", gpus.nodes.filter((row) => row.state !== "ready").length],
  ];
  return el("dl", { class: "totals" }, figures.map(([name, value]) => el("div", {}, el("dd", {}, value), el("dt", {}, name))));
}

function meter(row) {
  const used = row.num_gpus - row.num_free;
  return el("meter", { min: 0, max: Math.max(1, row.num_gpus), value: used, title: `${used} of ${row.num_gpus} held` });
}

function speed(flops) {
  return flops >= 1e12 ? `${(flops / 1e12).toPrecision(3)} TFLOP/s` : `${(flops / 1e9).toPrecision(3)} GFLOP/s`;
}

// GPUs of nodes that take no work.
function notReady(gpus, type) {
  return gpus.nodes.filter((row) => row.gpu_type === type && row.state !== "ready").reduce((all, row) => all + row.num_gpus, 0);
}

function types(gpus) {
  return table([
    ["GPU type", (row) => only("GPU type", row.gpu_type)], ["kind", (row) => row.kind],
    ["memory", (row) => bytes(row.memory_bytes), "number"], ["held", meter],
    ["free", (row) => `${row.num_free} / ${row.num_gpus}`, "number"], ["drained or lost", (row) => notReady(gpus, row.gpu_type), "number"], ["suspect", (row) => row.num_suspect, "number"],
    ["speed", (row) => speed(row.flops_per_s), "number"], ["Airflow pool", (row) => airflowLink("pools", {}, el("code", {}, row.pool))],
  ], gpus.types, { narrow: true });
}

function shares(queue) {
  return table([
    ["queue", (row) => row.queue], ["weight", (row) => row.weight, "number"], ["waiting", (row) => row.num_waiting, "number"],
    ["running", (row) => row.num_running, "number"], ["GPUs held", (row) => row.num_gpus, "number"],
    ["held, by speed", (row) => row.held.toPrecision(3), "number"], ["right to, by speed", (row) => row.share.toPrecision(3), "number"],
  ], queue.shares, { narrow: true });
}

function quotas(queue) {
  return table([
    ["of", (row) => (row.name === "*" ? `each other ${row.holder}` : `${row.holder} ${row.name}`)],
    ["GPU type", (row) => (row.gpu_type ? [el("code", {}, row.gpu_type), row.limits_nothing ? ", which the cluster does not have" : null] : "all")],
    ["GPUs held", (row) => (row.name === "*" ? "–" : row.held), "number"], ["at most", (row) => row.max_gpus, "number"],
  ], queue.quotas, { narrow: true });
}

// What a row has of each kind that is chosen from. A plan that is wanted is of a type, too.
const KINDS = {
  user: (row) => row.owner, team: (row) => row.team, queue: (row) => row.queue,
  "GPU type": (row) => row.gpu_type || row.wanted_plan_id?.match(/^\d+x(.+?)-z\d/)?.[1], reason: (row) => row.reason?.code,
};

// A row is shown if it has all that is chosen, and each word stands somewhere in it.
function filtered(rows, words, chosen) {
  const kinds = Object.entries(chosen).filter(([, value]) => value);
  if (!words.length && !kinds.length) return rows;
  return rows.filter((row) => {
    if (!kinds.every(([kind, value]) => KINDS[kind](row) === value)) return false;
    const text = [row.job_name, row.owner, row.team, row.queue, row.state, row.gpu_type, row.wanted_plan_id, row.plan_id,
      row.reason?.code, row.reason?.detail, ...(row.nodes || [])].filter(Boolean).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

class Page {
  constructor(main) {
    const part = () => new Shown();
    Object.assign(this, { totals: part(), counts: part(), runs: part(), types: part(), rules: part(), ended: part(), preparing: part() });
    this.search = el("input", { type: "search", placeholder: "job, user, team, queue, GPU type, node or reason", "aria-label": "filter" });
    this.search.addEventListener("input", () => this.tables());
    this.choices = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, el("select", { "aria-label": kind })]));
    for (const each of Object.values(this.choices)) each.addEventListener("change", () => this.tables());
    this.offered = {};
    this.map = new NodeMap((key) => names.get(key) || "a run that you may not see", (node) => this.pick("node", node));
    this.waiting = new VirtualTable(WAITING);
    this.running = new VirtualTable(RUNNING);
    this.usage = el("div");
    this.headings = [el("h2", {}, "Waiting"), el("h2", {}, "Running")];
    main.replaceChildren(el("h1", {}, "GPUs"), this.totals.node, this.types.node, el("h2", {}, "Nodes"), this.map.node,
      el("div", { class: "bar" }, this.search, Object.values(this.choices)), this.headings[0], this.waiting.node, this.headings[1], this.running.node,
      this.preparing.node, this.rules.node, this.usage, el("h2", {}, "Ended"), this.ended.node);
  }

  update(queue, gpus, runs) {
    now = queue.now_s;
    this.queue = queue;
    names = new Map(queue.running.map((row) => [row.run_key, row.job_name]));
    this.totals.show([queue.waiting.length, queue.running.length, gpus.types, gpus.nodes.map((row) => row.state)], () => [totals(queue, gpus)]);
    this.types.show(gpus.types.map((each) => [each, notReady(gpus, each.gpu_type)]), () => [types(gpus)]);
    const nodes = JSON.stringify(gpus.nodes);
    if (nodes !== this.nodes) {
      this.nodes = nodes;
      this.map.update(gpus.nodes);
    }
    this.preparing.show(queue.preparing, () => (queue.preparing.length ? [el("h2", {}, "Data being prepared"),
      el("p", { class: "faint" }, "These hold no GPU, and wait for none yet."), preparing(queue)] : []));
    this.rules.show([queue.shares, queue.quotas], () => [
      queue.shares.length ? [el("h2", {}, "Queues"),
        el("p", { class: "faint" }, "By speed, a GPU counts as its type's part of the fastest type's: "
          + `the cluster has ${queue.shares[0].total.toPrecision(3)}.`), shares(queue)] : null,
      queue.quotas.length ? [el("h2", {}, "Quotas"), quotas(queue)] : null]);
    this.ended.show(runs.map((each) => [each.run.run_key, each.run.state, each.run.updated_s]), () => [ended(runs)]);
    this.tables();
  }

  // Those values that there are; what is chosen stays.
  offer() {
    const rows = [...this.queue.waiting, ...this.queue.running];
    for (const [kind, select] of Object.entries(this.choices)) {
      const values = Array.from(new Set(rows.map(KINDS[kind]).filter(Boolean))).sort();
      if (select.value && !values.includes(select.value)) values.push(select.value);
      if (values.join("\n") === this.offered[kind]) continue;
      this.offered[kind] = values.join("\n");
      const { value } = select;
      select.replaceChildren(el("option", { value: "" }, `any ${kind}`), ...values.map((each) => el("option", { value: each }, each)));
      select.value = value;
    }
  }

  pick(kind, value) {
    const select = this.choices[kind];
    if (select && !Array.from(select.options, (each) => each.value).includes(value)) select.append(el("option", { value }, value));
    (select ?? this.search).value = value;
    this.tables();
    this.search.scrollIntoView({ block: "nearest" });
  }

  tables() {
    this.offer();
    const chosen = Object.fromEntries(Object.entries(this.choices).map(([kind, select]) => [kind, select.value]));
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [name, index] of [["waiting", 0], ["running", 1]]) {
      const all = this.queue?.[name] || [];
      const shown = filtered(all, words, chosen);
      const title = name === "waiting" ? "Waiting" : "Running";
      this.headings[index].textContent = shown.length < all.length ? `${title}: ${shown.length} of ${all.length}` : `${title}: ${all.length}`;
      this[name].update(shown);
      this[name].node.hidden = !shown.length;
    }
  }
}

// Charts come after the tables: their library is the largest file of all.
async function showUsage(page, gpus) {
  if (!page.charts) {
    const { Usage } = await import("./usage.js");
    page.charts ??= new Usage();
    page.usage.replaceChildren(page.charts.node);
  }
  page.charts.refresh(gpus.types.reduce((all, row) => all + row.num_gpus, 0));
}

repeat(async (main) => {
  const [queue, gpus, runs] = await Promise.all([get("queue"), get("gpus"), get("runs?limit=60")]);
  page ??= new Page(main);
  page.update(queue, gpus, runs);
  showUsage(page, gpus);
  return true;
}, EVERY_MS);
