// The Queue page: who waits and why, who runs where, and what is free.
import { bytes, clock, duration, el, get, keepFresh, notice, reason, state, table } from "./page.js";

function job(row) {
  return [el("div", {}, row.job_name), el("code", { class: "faint id", title: row.run_id }, row.run_id)];
}

function belongs(row) {
  return [el("div", {}, row.queue), el("div", { class: "faint" }, row.team)];
}

function waiting(view) {
  if (!view.waiting.length) return notice("Nothing waits.");
  return table([
    ["place", (row) => row.position, "number"],
    ["job", job],
    ["state", (row) => state(row.state)],
    ["waits", (row) => duration(Math.max(0, view.now_s - row.waiting_since_s)), "number"],
    ["why", (row) => reason(row.reason), "why"],
    ["wants", (row) => (row.wanted_plan_id ? el("code", {}, row.wanted_plan_id) : "–")],
    ["expected start", (row) => clock(row.expected_start_s), "number"],
    ["priority", (row) => row.priority, "number"],
    ["queue, team", belongs],
  ], view.waiting);
}

function shares(view) {
  return table([
    ["queue", (row) => row.queue],
    ["weight", (row) => row.weight, "number"],
    ["waiting", (row) => row.num_waiting, "number"],
    ["running", (row) => row.num_running, "number"],
    ["GPUs held", (row) => row.num_gpus, "number"],
    ["held, by speed", (row) => row.held.toPrecision(3), "number"],
    ["right to, by speed", (row) => row.share.toPrecision(3), "number"],
  ], view.shares, { narrow: true });
}

function quotas(view) {
  return table([
    ["of", (row) => (row.name === "*" ? `each other ${row.holder}` : `${row.holder} ${row.name}`)],
    ["GPU type", (row) => (row.gpu_type ? el("code", {}, row.gpu_type) : "all")],
    ["GPUs held", (row) => (row.name === "*" ? "–" : row.held), "number"],
    ["at most", (row) => row.max_gpus, "number"],
  ], view.quotas, { narrow: true });
}

function progress(row) {
  return row.total_steps ? `${row.last_step} / ${row.total_steps}` : row.last_step;
}

function running(view) {
  if (!view.running.length) return notice("Nothing runs.");
  return table([
    ["job", job],
    ["state", (row) => [state(row.state), row.reason ? reason(row.reason) : null], "why"],
    ["attempt", (row) => row.attempt, "number"],
    ["plan, nodes", (row) => [el("code", {}, row.plan_id), row.nodes.map((node) => el("div", {}, node))], "nodes"],
    ["queue, team", belongs],
    ["step", progress, "number"],
    ["loss", (row) => (row.last_loss === null ? "–" : row.last_loss.toFixed(4)), "number"],
    ["predicted", (row) => bytes(row.predicted_peak_bytes), "number"],
    ["measured", (row) => bytes(row.measured_peak_bytes), "number"],
    ["capacity", (row) => bytes(row.capacity_bytes), "number"],
    ["moved", (row) => row.num_reschedules, "number"],
    ["expected end", (row) => clock(row.expected_end_s), "number"],
  ], view.running);
}

function slots(total, free, suspect) {
  if (total > 64) return `${total - free} of ${total} held`;
  const kind = (index) => (index < suspect ? "suspect" : index < total - free ? "held" : null);
  return el("span", { class: "slots", role: "img", "aria-label": `${total - free} of ${total} held` },
    Array.from({ length: total }, (_, index) => el("b", { class: kind(index) })));
}

function speed(flops) {
  return flops >= 1e12 ? `${(flops / 1e12).toPrecision(3)} TFLOP/s` : `${(flops / 1e9).toPrecision(3)} GFLOP/s`;
}

function types(view) {
  return table([
    ["GPU type", (row) => el("code", {}, row.gpu_type)],
    ["kind", (row) => row.kind],
    ["memory", (row) => bytes(row.memory_bytes), "number"],
    ["held", (row) => slots(row.num_gpus, row.num_free, row.num_suspect)],
    ["free", (row) => `${row.num_free} / ${row.num_gpus}`, "number"],
    ["suspect", (row) => row.num_suspect, "number"],
    ["speed", (row) => speed(row.flops_per_s), "number"],
    ["Airflow pool", (row) => el("code", {}, row.pool)],
  ], view.types);
}

function nodes(view) {
  return table([
    ["node", (row) => row.node],
    ["GPU type", (row) => el("code", {}, row.gpu_type)],
    ["state", (row) => row.state],
    ["held", (row) => slots(row.num_gpus, row.num_free, 0)],
    ["free", (row) => `${row.num_free} / ${row.num_gpus}`, "number"],
    ["runs", (row) => row.run_keys.map((key) => el("code", {}, key, " "))],
  ], view.nodes);
}

keepFresh(async () => {
  const [queue, gpus] = await Promise.all([get("queue"), get("gpus")]);
  return [[
    el("h1", {}, "Queue"),
    el("p", { class: "faint" }, "In the order the scheduler looks at them. No GPU is asked for by hand: HAS chooses among the plans that fit."),
    el("h2", {}, "Waiting"), waiting(queue),
    el("h2", {}, "Running"), running(queue),
    ...(queue.shares.length ? [
      el("h2", {}, "Queues"),
      el("p", { class: "faint" },
        "What each holds and has a right to now. By speed, a GPU counts as its type's part of the fastest type's: "
        + `the cluster has ${queue.shares[0].total.toPrecision(3)}.`),
      shares(queue),
    ] : []),
    ...(queue.quotas.length ? [el("h2", {}, "Quotas"), quotas(queue)] : []),
    el("h2", {}, "GPUs by type"), types(gpus),
    el("h2", {}, "Nodes"), nodes(gpus),
  ], true];
}, 2000);
