// Starting runs by Airflow's own API, with the reader's session and so with their rights.
import { Refusal, fetchJson } from "./page.js";

const PATIENCE_S = 120;
const POLL_MS = 500;
const SILENCE_S = 3;

const HANDED_OVER = "frenzy.specification";

// A specification for the page New job, of the same tab.
export function handOver(text) {
  sessionStorage.setItem(HANDED_OVER, text);
}

// What was handed over; once.
export function handedOver() {
  const text = sessionStorage.getItem(HANDED_OVER);
  sessionStorage.removeItem(HANDED_OVER);
  return text;
}

function airflow(path, body = null, method = "POST") {
  const options = body ? { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } } : {};
  return fetchJson(`../../api/v2/dags/${path}`, options);
}

function place(dagId, runId) {
  return `${encodeURIComponent(dagId)}/dagRuns/${encodeURIComponent(runId)}`;
}

// The new DAG run's id. The page names it, and looks for it when the answer is lost, so that none is started twice.
export async function trigger(dagId, conf, note) {
  const runId = `manual__${new Date().toISOString().replace("Z", "+00:00")}_${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`;
  try {
    await airflow(`${encodeURIComponent(dagId)}/dagRuns`, { dag_run_id: runId, logical_date: null, conf, note });
  } catch (error) {
    if (!(error instanceof Refusal) || !await isThere(dagId, runId)) throw error;
  }
  return runId;
}

async function isThere(dagId, runId) {
  try {
    return Boolean(await airflow(place(dagId, runId)));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return false;
  }
}

// Until Airflow has parsed the DAG of this very specification, which stands in its documentation; whether it is paused.
export async function parsed(dagId, shown, say) {
  const began = Date.now();
  for (;;) {
    const waited = (Date.now() - began) / 1000;
    try {
      const dag = await airflow(`${encodeURIComponent(dagId)}/details`);
      if (!dag.is_stale && dag.doc_md?.includes(shown)) return dag.is_paused;
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    if (waited > PATIENCE_S) {
      throw new Refusal(`The job is stored, but its DAG ${dagId} did not appear within ${PATIENCE_S} s.`,
        "See that the DAG processor runs, then trigger the DAG in Airflow.");
    }
    if (waited > SILENCE_S) say(`Airflow is reading the job's DAG, for ${waited.toFixed(0)} s.`);
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}

// Lets its schedule start runs; whether the reader may say so.
export async function unpause(dagId) {
  try {
    await airflow(`${encodeURIComponent(dagId)}?update_mask=is_paused`, { is_paused: false }, "PATCH");
    return true;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return false;
  }
}

// As `frenzy retry`: the same DAG with the same configuration, from the first step.
export async function runAgain({ dag_id, run_id }) {
  const { conf } = await airflow(place(dag_id, run_id));
  return trigger(dag_id, conf || {}, "Started on the page Training.");
}

// As `frenzy resume`: the same DAG run goes on from its newest checkpoint.
export function resume({ dag_id, run_id, task_group, map_index }) {
  const task = task_group ? `${task_group}.profile` : "profile";
  return airflow(`${encodeURIComponent(dag_id)}/clearTaskInstances`, {
    dry_run: false, dag_run_id: run_id, task_ids: [map_index < 0 ? task : [task, map_index]], only_failed: false,
    include_upstream: false, include_downstream: true, reset_dag_runs: true,
  });
}
