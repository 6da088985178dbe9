// What a run leaves: the model's place and size, how good it is, and what it writes.
import { Refusal, airflowLink, bytes, copied, duration, el, fetchJson, get, table } from "./page.js";

const EVALUATION = "EvaluateOperator";
const FEW_FILES = 12;
const MOST_FILES = 500;

// What Airflow says of the run; nothing where the reader may not see it there.
async function seen(ask) {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof Refusal) return [];
    throw error;
  }
}

function inAirflow({ dag_id, run_id }) {
  return `../../api/v2/dags/${encodeURIComponent(dag_id)}/dagRuns/${encodeURIComponent(run_id)}`;
}

async function evaluationTasks(identity, query = "") {
  const { task_instances: tasks } = await fetchJson(`${inAirflow(identity)}/taskInstances?${query}map_index=${identity.map_index}&limit=100`);
  return tasks.filter((each) => each.operator === EVALUATION);
}

// What its DAG run's evaluations of the same map index returned.
async function evaluations(identity) {
  const found = await evaluationTasks(identity, "state=success&");
  return Promise.all(found.map(async (task) => {
    const task_id = encodeURIComponent(task.task_id);
    const { value } = await fetchJson(`${inAirflow(identity)}/taskInstances/${task_id}/xcomEntries/return_value?map_index=${task.map_index}`);
    return typeof value === "string" ? JSON.parse(value) : value;
  }));
}

function score(found) {
  return `${found.perplexity?.toFixed(2) ?? "–"} on ${found.held_out ? "held-out text" : "training text"}`;
}

// The Assets that its DAG run updated, its model among them.
async function assets({ dag_id, run_id }) {
  const of = `source_dag_id=${encodeURIComponent(dag_id)}&source_run_id=${encodeURIComponent(run_id)}`;
  return eachAsset(await fetchJson(`../../api/v2/assets/events?${of}&limit=50`));
}

function eachAsset({ asset_events: events }) {
  return Array.from(new Map(events.map((each) => [each.uri, each.asset_id])), ([uri, id]) => ({ uri, id }));
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
  const [found, updated, data, known] = await Promise.all([
    seen(() => evaluations(identity)), seen(() => assets(identity)),
    seen(async () => eachAsset(await fetchJson(`${inAirflow(identity)}/upstreamAssetEvents`))),
    model.path ? files(run_key) : { files: [] }]);
  const evaluating = found.length ? [] : await seen(() => evaluationTasks(identity));
  return { ...model, evaluations: found, evaluating, assets: updated, data, ...known };
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

function assetLink({ uri, id }) {
  return el("div", {}, airflowLink(`assets/${id}`, {}, uri));
}

export function modelCard(model) {
  const rows = [
    ["path", model.path ? el("code", {}, model.path) : "none is kept: frenzy clean removed it, or the script wrote none into FRENZY_MODEL_DIR"],
    ["size", bytes(model.num_bytes)],
    ...(model.path ? [["download", download(model)]] : []),
    ["trained", `${model.steps} steps in ${duration(model.run_s)} on ${model.plan_id}, ${model.num_attempts} attempt${model.num_attempts === 1 ? "" : "s"}`],
    ["loss", model.loss === null ? "–" : model.loss.toFixed(4)],
    ...model.evaluations.flatMap((each) => [
      ["perplexity", score(each)],
      ["sample", el("pre", { class: "sample" }, `${each.prompt ?? ""}${each.sample ?? ""}`)]]),
    ...model.evaluating.map((each) => ["perplexity", `none: the task ${each.task_id} is ${each.state ?? "not begun"}`]),
    ...(model.data.length ? [["data Assets", model.data.map(assetLink)]] : []),
    ...(model.assets.length ? [["Assets", model.assets.map(assetLink)]] : []),
  ];
  return el("dl", { class: "facts" }, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
