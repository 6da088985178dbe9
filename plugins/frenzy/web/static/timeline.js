// The whole run on one axis of time: what it did when, attempt by attempt.
import { clock, duration, el, isFinal, zone } from "./page.js";

const PHASES = {
  planning: "planned, its data prepared",
  waiting: "waits for GPUs",
  starting: "starts: until the first step",
  training: "trains",
  saving: "saves and stops",
};

// From when to when, in seconds of the epoch. A run that goes on ends now. A resumed run was made anew after its first attempts.
export function range(view) {
  const { run, attempts } = view;
  const begin = Math.min(run.created_s, ...attempts.map((each) => each.created_s));
  const last = Math.max(run.updated_s, ...attempts.map((each) => each.ended_s || 0));
  const until = isFinal(run.state) ? last : Date.now() / 1000;
  return [begin, Math.max(until, begin + 1)];
}

// [from, to, phase, attempt]: what is no part of an attempt is planning or waiting. A gap is between the end and a resume.
function segments(view) {
  const [begin, until] = range(view);
  const found = [];
  let at = begin;
  const upTo = (end, phase, attempt) => {
    const stop = Math.min(end ?? until, until);
    if (stop > at) found.push([at, stop, phase, attempt]);
    at = Math.max(at, stop);
  };
  const queued = view.events.find(({ kind, text }) => kind === "state" && text.startsWith("QUEUED"))?.time_s;
  const wait = (end, isFirst) => {
    if (isFirst) upTo(Math.min(queued ?? Infinity, end ?? until), "planning", null);
    upTo(end, "waiting", null);
  };
  const resumed = () => { at = Math.max(at, view.run.created_s); };
  for (const attempt of view.attempts) {
    if (attempt.created_s >= view.run.created_s) resumed();
    wait(attempt.created_s, attempt.attempt === 1);
    const ended = attempt.ended_s ?? until;
    upTo(Math.min(attempt.first_step_s ?? ended, attempt.stop_asked_s ?? ended, ended), "starting", attempt);
    upTo(Math.min(attempt.stop_asked_s ?? ended, ended), "training", attempt);
    upTo(ended, "saving", attempt);
  }
  resumed();
  if (!isFinal(view.run.state)) wait(until, !view.attempts.length);
  return found;
}

function place(node, from, to, [begin, until]) {
  const whole = until - begin;
  node.style.left = `${(100 * (from - begin)) / whole}%`;
  node.style.width = `${Math.max(0.15, (100 * (to - from)) / whole)}%`;
  return node;
}

const EVENTS = ["pressure", "pool", "lease", "releases"];

// [when, step] of the newest checkpoint of each attempt; its time is that of the step.
export function checkpoints(memory, attempts) {
  return attempts.flatMap(({ attempt, checkpoint_step: step }) => {
    const steps = memory.attempts.find((each) => each.attempt === attempt)?.steps ?? [];
    const at = steps.filter((each) => each.step <= step).at(-1);
    return at ? [[at.time_s, step]] : [];
  });
}

// What went wrong, steps that are made again, and checkpoints.
function marks(view, span, saved) {
  const mark = (at, text, kind = "") => place(el("i", { class: `mark ${kind}`, title: `${clock(at)}  ${text}` }), at, at, span);
  const lost = view.attempts.slice(1).map((attempt, index) => [view.attempts[index], lostSteps(view.attempts[index], attempt)]);
  return [...view.events.filter((each) => EVENTS.includes(each.kind)).map((each) => mark(each.time_s, each.text)),
    ...lost.filter(([, steps]) => steps).map(([before, steps]) => mark(before.ended_s, `${steps} steps are made again`)),
    ...saved.map(([at, step]) => mark(at, `checkpoint of step ${step}`, "saved"))];
}

// Of one attempt, those that the next one makes again.
export function lostSteps(before, after) {
  return Math.max(0, before.last_step - (after.next_attempt.checkpoint_step ?? 0));
}

// span: the ends of the axis, those of the charts below. saved: checkpoints.
export function timeline(view, span = range(view), saved = []) {
  const until = range(view)[1];
  const bands = view.attempts.map((attempt) => place(
    el("span", { class: "band", title: `attempt ${attempt.attempt}: ${attempt.outcome?.detail || attempt.outcome?.code || "under way"}` },
      String(attempt.attempt)),
    attempt.created_s, attempt.ended_s ?? until, span));
  const parts = segments(view).map(([from, to, phase, attempt]) => place(
    el("span", { class: `phase ${phase}`, title: `${PHASES[phase]}${attempt ? ` (attempt ${attempt.attempt})` : ""}: `
      + `${clock(from)} to ${clock(to)}, ${duration(to - from)}` }), from, to, span));
  const spent = new Map();
  for (const [from, to, phase] of segments(view)) spent.set(phase, (spent.get(phase) || 0) + to - from);
  return el("figure", { class: "timeline" },
    el("div", { class: "bands", "aria-hidden": "true" }, bands),
    el("div", { class: "phases", role: "img", "aria-label": Array.from(spent, ([phase, s]) => `${PHASES[phase]} ${duration(s)}`).join(", ") },
      parts, marks(view, span, saved)),
    el("div", { class: "ends faint" }, el("span", {}, clock(span[0])), el("span", {}, `${clock(span[1])} ${zone()}`)),
    el("div", { class: "legend" }, Array.from(spent, ([phase, s]) =>
      el("span", { class: `swatch phase-${phase}` }, el("i", {}, `${PHASES[phase]} ${duration(s)}`))),
    saved.length ? el("span", { class: "swatch mark-saved" }, el("i", {}, "newest checkpoint of an attempt")) : null));
}
