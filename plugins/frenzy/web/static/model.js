// What a run leaves: the model's place and size, how good it is, and what it writes.
import { Refusal, airflowLink, bytes, copied, duration, el, fetchJson, get, table } from "./page.js";

const EVALUATION = "EvaluateOperator";
const FEW_FILES = 12;
const MOST_FILES = 500;

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

// Its files; why not, where the reader may not take them.
async function files(runKey) {
  try {
    return { files: await get(`runs/${encodeURIComponent(runKey)}/model`) };
  } catch (error) {
    if (error instanceof Refusal) return { files: [], refused: [error.message, error.remedy] };
    throw error;
  }
}

export async function modelOf({ run_key, identity }) {
  const [model] = await get(`models?run_key=${encodeURIComponent(run_key)}`);
  if (!model) return null;
  const [found, updated, known] = await Promise.all([evaluations(identity), assets(identity), model.path ? files(run_key) : { files: [] }]);
  return { ...model, evaluations: found, assets: updated, ...known };
}

// A file that the browser keeps. Airflow's frames may start downloads.
function fileLink(runKey, name) {
  const path = name.split("/").map(encodeURIComponent).join("/");
  return el("a", { href: `../api/v1/runs/${encodeURIComponent(runKey)}/model/${path}`, download: name.split("/").at(-1) }, name);
}

// All at once: by the command line, which makes the folder and goes on after a broken transfer.
function download({ run_key: runKey, job_name: job, files: listed, refused }) {
  if (refused) return el("span", { class: "faint" }, refused.filter(Boolean).join(" "));
  const list = table([["file", ({ name }) => fileLink(runKey, name)], ["size", (each) => bytes(each.num_bytes), "number"]], listed.slice(0, MOST_FILES), { narrow: true });
  const more = listed.length - MOST_FILES;
  return [listed.length > FEW_FILES ? el("details", {}, el("summary", {}, `${listed.length} files`), list) : list,
    more > 0 ? el("p", { class: "faint" }, `${more} more; the command has all.`) : null,
    el("p", {}, "all of them: ", copied(`frenzy models ${runKey} --download ${job}`))];
}

export function modelCard(model) {
  const rows = [
    ["path", model.path ? el("code", {}, model.path) : "removed by frenzy clean"],
    ["size", bytes(model.num_bytes)],
    ...(model.path ? [["download", download(model)]] : []),
    ["trained", `${model.steps} steps in ${duration(model.run_s)} on ${model.plan_id}, ${model.num_attempts} attempt${model.num_attempts === 1 ? "" : "s"}`],
    ["loss", model.loss === null ? "–" : model.loss.toFixed(4)],
    ...model.evaluations.flatMap((each) => [
      ["perplexity", score(each)],
      ["sample", el("pre", { class: "sample" }, `${each.prompt ?? ""}${each.sample ?? ""}`)]]),
    ...(model.assets.length ? [["Assets", model.assets.map(({ uri, id }) => el("div", {}, airflowLink(`assets/${id}`, {}, uri)))]] : []),
  ];
  return el("dl", { class: "facts" }, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
