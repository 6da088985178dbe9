// What all pages share: elements, numbers as people read them, and the API.
// Text only ever enters the document as text nodes, never as markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

const SIZES = [["TiB", 1024 ** 4], ["GiB", 1024 ** 3], ["MiB", 1024 ** 2], ["KiB", 1024]];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const sign = count < 0 ? "-" : "";
  const size = Math.abs(count);
  for (const [unit, factor] of SIZES) {
    if (size >= factor) {
      const value = size / factor;
      return `${sign}${value.toFixed(value < 100 ? 1 : 0)} ${unit}`;
    }
  }
  return `${sign}${size.toFixed(0)} B`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.1) return `${(1000 * seconds).toFixed(1)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const total = Math.round(seconds);
  const minutes = Math.floor(total / 60);
  const two = (number) => String(number).padStart(2, "0");
  if (minutes < 60) return `${minutes} min ${two(total % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

// The time zone that the reader chose in Airflow, which keeps it in this origin's storage; else the browser's.
export function zone() {
  return format().resolvedOptions().timeZone;
}

// Making a format takes longer than using it a hundred times.
const formats = new Map();
const TWO = Object.fromEntries(["month", "day", "hour", "minute", "second"].map((each) => [each, "2-digit"]));

function format() {
  let chosen = null;
  try {
    chosen = localStorage.getItem("timezone");
  } catch { /* storage may be closed to a framed page */ }
  if (!formats.has(chosen)) formats.set(chosen, formatOf(chosen));
  return formats.get(chosen);
}

function formatOf(chosen) {
  const options = { hourCycle: "h23", year: "numeric", ...TWO };
  try {
    return new Intl.DateTimeFormat("en", { timeZone: JSON.parse(chosen) || undefined, ...options });
  } catch { /* a zone that this browser does not know */ }
  return new Intl.DateTimeFormat("en", options);
}

// The parts of a moment there, two digits each but for the year; 24 hours.
export function parts(epochSeconds) {
  return Object.fromEntries(format().formatToParts(epochSeconds * 1000).map(({ type, value }) => [type, value]));
}

export function hours(epochSeconds) {
  const { hour, minute, second } = parts(epochSeconds);
  return `${hour}:${minute}:${second}`;
}

// The time of today, else with its day.
export function clock(epochSeconds) {
  if (!epochSeconds) return "–";
  const day = ({ year, month, day: number }) => `${year}-${month}-${number}`;
  const at = parts(epochSeconds);
  return day(at) === day(parts(Date.now() / 1000)) ? hours(epochSeconds) : `${day(at)} ${at.hour}:${at.minute}`;
}

// A plus where more was measured than predicted; from three times as much on, how many times.
export function difference(measured, predicted) {
  const times = measured / predicted;
  if (times >= 3) return `${times.toFixed(times < 10 ? 1 : 0)} times`;
  const value = Math.round(1000 * (times - 1)) / 10;
  return `${value > 0 ? "+" : ""}${value.toFixed(1)} %`;
}

// The general sentence of each reason code, for reasons without particulars.
let sentences = null;

export async function loadSentences() {
  sentences ??= await get("reasons");
}

// A reason is one sentence of the case, its code, and the smallest change that would help.
export function reason(value) {
  if (!value) return el("span", { class: "faint" }, "–");
  const words = value.detail || sentences?.[value.code] || "";
  return el("div", {}, words, " ", codeLink(value.code),
    value.remedy ? el("div", { class: "remedy" }, value.remedy) : null);
}

// A reason code, which leads to its section of the runbook, in a page of its own.
export function codeLink(code) {
  const link = el("a", { class: "faint", href: `../manual/runbook#${code.toLowerCase()}`, target: "_blank" }, el("code", {}, code));
  link.addEventListener("click", (event) => {
    if (window.top === window) return;
    event.preventDefault();
    leaveTo(link.href, "_blank");
  });
  return link;
}

// A link to Airflow's page of the DAG run, its tab Training open. It leaves the frame, whose sandbox lets no link do so:
// the page around it, of the same origin, follows it.
export function runLink(dagId, runId, attributes, ...children) {
  return airflowLink(`dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}/plugin/frenzy_training`, attributes, ...children);
}

// The same to any of Airflow's pages.
export function airflowLink(path, attributes, ...children) {
  const link = el("a", { target: "_top", href: `../../${path}`, ...attributes }, ...children);
  link.addEventListener("click", (event) => {
    if (window.top === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    leaveTo(link.href);
  });
  return link;
}

export function leaveTo(href, target = "") {
  const outside = window.top.document.createElement("a");
  outside.href = new URL(href, location.href).href;
  outside.target = target;
  window.top.document.body.append(outside);
  outside.click();
  outside.remove();
}

const ASKS_FOR_MS = 8000;

// A button, and the words of what became of it. act(say) may refuse. question: asked before it acts; the sandbox of
// Airflow's frames knows no dialogs.
export function actionButton(title, act, question = null) {
  const button = el("button", { type: "button" }, title);
  const words = el("span", { class: "faint", role: "status" });
  const say = (...what) => words.replaceChildren(" ", ...what);
  let isAsked = !question;
  let armed = null;
  const ask = () => { isAsked = !question; button.textContent = title; };
  button.addEventListener("click", async (event) => {
    if (event.detail > 1) return; // the second of a double click is no answer
    if (!isAsked) {
      isAsked = true;
      button.textContent = question;
      armed = setTimeout(ask, ASKS_FOR_MS);
      return;
    }
    clearTimeout(armed);
    button.disabled = true;
    try {
      await act(say);
    } catch (error) {
      button.disabled = false;
      ask();
      say(error.message, " ", error.remedy || "");
      if (!(error instanceof Refusal)) throw error;
    }
  });
  return el("span", { class: "action" }, button, words);
}

// A text to be taken along, with a button that does so; selected, where the browser does not let the page copy.
export function copied(text) {
  const words = el("code", {}, text);
  const copy = actionButton("Copy", async (say) => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      getSelection().selectAllChildren(words);
      say("Selected: press Ctrl+C.");
    }
    copy.querySelector("button").disabled = false;
  });
  return el("span", { class: "copied" }, words, " ", copy);
}

const TONES = { SUCCEEDED: "good", RECOVERING: "warn", CHECKPOINTING: "warn", CANCELLED: "warn" };

export function state(name) {
  const tone = TONES[name] || (name.startsWith("FAILED") ? "bad" : "");
  return el("span", { class: `state ${tone}` }, name.toLowerCase().replaceAll("_", " "));
}

export function isFinal(name) {
  return name === "SUCCEEDED" || name === "CANCELLED" || name.startsWith("FAILED");
}

// columns: [heading, cell(row), class]. Rows may carry a class through rowClass(row); a narrow table is as wide as
// its cells, any other as wide as the page.
export function table(columns, rows, { rowClass = null, narrow = false } = {}) {
  const head = columns.map(([title, , kind]) => el("th", { class: kind }, title));
  const line = (row) => el("tr", { class: rowClass ? rowClass(row) : null },
    columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row))));
  return el("div", { class: "scroll" },
    el("table", { class: narrow ? "narrow" : null }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows.map(line))));
}

// Query values percent-decoded, with "+" left alone: run ids carry time zones such as +00:00.
export function query(name) {
  for (const pair of location.search.slice(1).split("&")) {
    const [key, ...rest] = pair.split("=");
    if (decodeURIComponent(key) === name) return decodeURIComponent(rest.join("="));
  }
  return null;
}

export class Refusal extends Error {
  constructor(message, remedy, { status = null, violations = [] } = {}) {
    super(message);
    Object.assign(this, { remedy, status, violations });
  }
}

// Python writes NaN and Infinity, which JSON does not know; they are read as null.
function parse(text) {
  if (!/NaN|Infinity/.test(text)) return JSON.parse(text);
  return JSON.parse(text.replace(/([:[,]\s*)(?:NaN|-?Infinity)(?=\s*[,}\]])/g, "$1null"));
}

export function get(path) {
  return fetchJson(`../api/v1/${path}`);
}

export function post(path, message) {
  return fetchJson(`../api/v1/${path}`, { method: "POST", body: JSON.stringify(message), headers: { "Content-Type": "application/json" } });
}

// What an address answers, with the reader's session. Raises Refusal.
export async function fetchJson(address, { headers = {}, ...options } = {}) {
  let response;
  try {
    response = await fetch(address, { headers: { Accept: "application/json", ...headers }, cache: "no-store", ...options });
  } catch {
    throw new Refusal("Airflow's API server does not answer.", "It is asked again every few seconds.");
  }
  if (response.ok) return parse(await response.text());
  const { status } = response;
  if (status === 401) throw new Refusal("The session has ended.", "Log in to Airflow again.", { status });
  let detail = {};
  try {
    detail = (await response.json()).detail || {};
  } catch { /* the reply is not ours; its status says enough */ }
  const usual = status === 403 ? ["You may not do this.", "Ask an administrator."] : [`The API answered ${status}.`, null];
  throw new Refusal(detail.message || usual[0], detail.remedy || usual[1], { status, violations: detail.violations });
}

export function runsOfPage() {
  const dag = query("dag_id");
  const run = query("run_id");
  if (!dag || !run) throw new Refusal("This page belongs to a DAG run.", "Open it from the run's tab.");
  return get(`runs/by-dag/${encodeURIComponent(dag)}/${encodeURIComponent(run)}`);
}

// What the reader unfolded stays unfolded.
function keepOpen(before, after) {
  const unfolded = before.querySelectorAll("details[open] > summary");
  const titles = new Set(Array.from(unfolded, (summary) => summary.textContent));
  for (const summary of after.querySelectorAll("details > summary")) {
    summary.parentElement.open = titles.has(summary.textContent);
  }
}

// A part of a page that is made again only when what it shows has changed.
export class Shown {
  constructor() {
    this.node = el("div");
    this.mark = null;
  }

  show(value, make) {
    const mark = JSON.stringify(value);
    if (mark === this.mark) return;
    this.mark = mark;
    const fresh = el("div", {}, make());
    keepOpen(this.node, fresh);
    this.node.replaceChildren(...fresh.childNodes);
  }
}

// update(main) brings the page up to date, and says whether to look again; what is returned looks at once. A refusal stands above what was shown last.
export function repeat(update, everyMs) {
  const main = document.querySelector("main");
  const trouble = new Shown();
  main.before(trouble.node);
  let timer = null;
  async function turn() {
    clearTimeout(timer);
    let again = true;
    let refused = null;
    try {
      await loadSentences();
      again = await update(main);
    } catch (error) {
      if (!(error instanceof Refusal)) console.error(error);
      refused = error instanceof Refusal ? [error.message, error.remedy] : ["This page met a fault of its own.", String(error)];
    }
    trouble.show(refused, () => (refused ? [notice(...refused, "bad")] : []));
    clearTimeout(timer);
    if (again) timer = setTimeout(turn, document.hidden ? 4 * everyMs : everyMs);
  }
  turn();
  return turn;
}

export function notice(message, remedy, tone) {
  return el("div", { class: `notice ${tone || ""}`, role: "status" }, message,
    remedy ? el("div", { class: "remedy" }, remedy) : null);
}
