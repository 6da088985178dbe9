// When a job runs by itself: a choice that writes the section `trigger` of the text beside it.
import { clock, el } from "./page.js";

const BY_HAND = "";
const KINDS = {
  "only when it is started": BY_HAND, "every hour": "@hourly", "every day": "@daily", "every week": "@weekly", "every month": "@monthly",
  "by a cron expression…": "cron", "when Assets are updated…": "assets",
};
const PRESETS = Object.values(KINDS).filter((each) => each.startsWith("@"));
const EXAMPLES = { cron: "30 3 * * 1-5", assets: "frenzy://models/base, s3://bucket/corpus" };
const FIRST = { cron: "30 3 * * *", assets: "frenzy://models/base" };

// Whether its sections can be told by their lines: a mapping in block style, and nothing behind its end.
export function hasPlainSections(text) {
  const [first = ""] = text.split("\n").filter((line) => line.trim() && !/^(#|---\s*$)/.test(line));
  const [value = ""] = text.match(/^(["']?)trigger\1\s*:\s*[[{].*$/m) ?? [];
  return !/^\s*[{[]/.test(first) && !/^(\.\.\.|--- )/m.test(text) && (!value || /[\]}]\s*(#.*)?$/.test(value));
}

// A line of comment within a section: something indented follows.
function isWithin(lines, at) {
  const next = lines.slice(at).find((line) => line.trim() && !line.startsWith("#"));
  return lines[at].startsWith("#") && next !== undefined && /^\s/.test(next);
}

// The text with another section `trigger`; the rest stays as it is written.
export function withTrigger(text, { cron, assets, max_active_runs: runs }) {
  const lines = text.trimEnd().split("\n");
  const from = lines.findIndex((line) => /^(["']?)trigger\1\s*:/.test(line));
  const fresh = [cron ? `  cron: ${JSON.stringify(cron)}` : null, assets.length ? `  assets: ${JSON.stringify(assets)}` : null,
    runs === null ? null : `  max_active_runs: ${runs}`].filter(Boolean);
  const section = fresh.length ? ["trigger:", ...fresh] : [];
  if (from < 0) return [...lines, ...section, ""].join("\n");
  let to = from + 1;
  while (to < lines.length && (/^(\s|$)/.test(lines[to]) || isWithin(lines, to))) to += 1;
  while (to > from + 1 && !lines[to - 1].trim()) to -= 1;
  return [...lines.slice(0, from), ...section, ...lines.slice(to), ""].join("\n");
}

export function scheduleWords({ trigger, next_starts_s: starts }) {
  if (trigger.assets.length) return `when ${trigger.assets.length === 1 ? "this Asset was" : "all of these Assets were"} updated: ${trigger.assets.join(", ")}`;
  if (trigger.cron) return `${trigger.cron} (UTC), next at ${starts.map(clock).join(", ")}`;
  return "only when it is started";
}

export class Schedule {
  // write(edit): has the text edited. The choice follows the text, and the text the choice.
  constructor(write) {
    this.write = write;
    this.trigger = { cron: null, assets: [], max_active_runs: null };
    this.kind = el("select", {}, Object.entries(KINDS).map(([words, value]) => el("option", { value }, words)));
    this.value = el("input", { type: "text", size: "34", spellcheck: "false", hidden: "", "aria-label": "cron expression or Assets" });
    this.byHand = el("span", { class: "faint", hidden: "" }, " This text is not in block style: write its section trigger by hand.");
    this.node = el("span", { class: "schedule" }, el("label", {}, "It runs ", this.kind), this.value, this.byHand);
    this.kind.addEventListener("change", () => this.chosen());
    this.value.addEventListener("input", () => this.typed());
  }

  chosen() {
    const kind = this.kind.value;
    this.value.value = FIRST[kind] || "";
    this.look(kind);
    this.typed();
  }

  typed() {
    const [kind, text] = [this.kind.value, this.value.value.trim()];
    const cron = kind === "cron" ? text : kind;
    const trigger = { ...this.trigger, cron: null, assets: [] };
    if (kind === "assets") trigger.assets = text.split(/[\s,]+/).filter(Boolean);
    else if (cron) trigger.cron = cron;
    this.write((before) => {
      this.byHand.hidden = hasPlainSections(before);
      return this.byHand.hidden ? withTrigger(before, trigger) : before;
    });
  }

  look(kind) {
    this.value.hidden = !EXAMPLES[kind];
    this.value.placeholder = EXAMPLES[kind] || "";
  }

  // What the text was found to say; nothing is taken from under the reader's hands.
  follow(trigger) {
    this.trigger = trigger;
    if (document.activeElement === this.value) return;
    const kind = trigger.assets.length ? "assets" : !trigger.cron ? BY_HAND : PRESETS.includes(trigger.cron) && this.kind.value !== "cron" ? trigger.cron : "cron";
    this.kind.value = kind;
    this.value.value = { assets: trigger.assets.join(", "), cron: trigger.cron }[kind] || "";
    this.look(kind);
  }
}
