// What a draft says: what is refused of a specification, with which plan it would start, and when.
import { clock, duration, el, notice, table } from "./page.js";
import { isTimed, planId } from "./plans.js";

// A run of it would end at once: no plan fits, or there is none for its model.
export function isRefused(draft) {
  return Boolean(draft.reason) && !draft.num_fitting;
}

// The plan that it would start with, else the best one.
export function planOf(draft) {
  const plans = draft.candidates.map((each) => each.plan);
  return plans.find((each) => planId(each) === draft.plan_id) || draft.candidates.find((each) => each.rank === 1)?.plan;
}

// What is not known yet, and what a user may not expect of the model.
export function notesOf(draft) {
  return [draft.note, ...draft.model_notes].filter(Boolean).map((each) => notice(each, null, "warn"));
}

export function startOf(draft) {
  if (draft.plan_id) return "now";
  return `it would wait, as number ${draft.position ?? "–"} in the queue`
    + (draft.expected_start_s ? `; expected at ${clock(draft.expected_start_s)}` : "");
}

export function trainsFor(plan, draft) {
  return `${isTimed(plan) ? duration(plan.predicted_run_s) : "a time that is not known"} for ${draft.total_steps.toLocaleString("en")} steps`;
}

export function refusal({ message, remedy, violations }) {
  if (!violations?.length) return [notice(message, remedy, "bad")];
  return [
    notice(`Refused: ${violations.length} field${violations.length === 1 ? "" : "s"}.`, remedy, "bad"),
    table([["field", (each) => el("code", {}, each.path)], ["value", (each) => el("code", {}, each.value)],
      ["allowed", (each) => each.allowed, "why"]], violations),
  ];
}
