// What a run leaves: the model's place and size, how good it is, and what it writes.
import { Refusal, airflowLink, bytes, duration, el, fetchJson, get } from "./page.js";

const EVALUATION = "EvaluateOperator";

// What its DAG run's evaluations of the same map index returned; nothing where the reader may not see it in Airflow.
async function evaluations({ dag_id, run_id, map_index }) {
  const run = `../../api/v2/dags/${encodeURIComponent(dag_id)}/dagRuns/${encodeURIComponent(run_id)}`;
  try {
    const { task_instances: tasks } = await fetchJson(`${run}/taskInstances?state=success&map_index=${map_index}&limit=100`);
    const found = tasks.filter((each) => each.operator === EVALUATION);
    return await Promise.all(found.map(async (task) => {
      const task_id = encodeURIComponent(task.task_id);
      const { value } = await fetchJson(`${run}/taskInstances/${task_id}/xcomEntries/return_value?map_index=${task.map_index}`);
      return typeof value === "string" ? JSON.parse(value) : value;
    }));
  } catch (error) {
    if (error instanceof Refusal) return [];
    throw error;
  }
}

function score(found) {
  return `${found.perplexity?.toFixed(2) ?? "–"} on ${found.held_out ? "held-out text" : "training text"}`;
}

// The Assets that its DAG run updated, its model among them; nothing where the reader may not see them in Airflow.
async function assets({ dag_id, run_id }) {
  const of = `source_dag_id=${encodeURIComponent(dag_id)}&source_run_id=${encodeURIComponent(run_id)}`;
  try {
    const { asset_events: events } = await fetchJson(`../../api/v2/assets/events?${of}&limit=50`);
    return Array.from(new Map(events.map((each) => [each.uri, each.asset_id])), ([uri, id]) => ({ uri, id }));
  } catch (error) {
    if (error instanceof Refusal) return [];
    throw error;
  }
}

export async function modelOf({ run_key, identity }) {
  const [model] = await get(`models?run_key=${encodeURIComponent(run_key)}`);
  if (!model) return null;
  const [found, updated] = await Promise.all([evaluations(identity), assets(identity)]);
  return { ...model, evaluations: found, assets: updated };
}

export function modelCard(model) {
  const rows = [
    ["path", model.path ? el("code", {}, model.path) : "removed by frenzy clean"],
    ["size", bytes(model.num_bytes)],
    ["trained", `${model.steps} steps in ${duration(model.run_s)} on ${model.plan_id}, ${model.num_attempts} attempt${model.num_attempts === 1 ? "" : "s"}`],
    ["loss", model.loss === null ? "–" : model.loss.toFixed(4)],
    ...model.evaluations.flatMap((each) => [
      ["perplexity", score(each)],
      ["sample", el("pre", { class: "sample" }, `${each.prompt ?? ""}${each.sample ?? ""}`)]]),
    ...(model.assets.length ? [["Assets", model.assets.map(({ uri, id }) => el("div", {}, airflowLink(`assets/${id}`, {}, uri)))]] : []),
  ];
  return el("dl", { class: "facts" }, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
