// The workers' output: any attempt, any rank, followed while it grows, searched.
import { Refusal, el, get } from "./page.js";

const MOST_LINES = 5000;

export class Logs {
  constructor(runKey) {
    this.runKey = runKey;
    this.lines = [];
    this.seen = null;
    this.attempt = el("select", { "aria-label": "attempt" });
    this.rank = el("select", { "aria-label": "rank" });
    this.follow = el("input", { type: "checkbox", checked: "" });
    this.search = el("input", { type: "search", placeholder: "lines that contain…", "aria-label": "search the log" });
    this.count = el("span", { class: "faint" });
    this.text = el("pre", { class: "log", tabindex: "0" });
    this.node = el("div", {}, el("div", { class: "bar" }, el("label", {}, "attempt ", this.attempt), el("label", {}, "rank ", this.rank),
      el("label", {}, this.follow, " follow"), this.search, this.count), this.text);
    for (const each of [this.attempt, this.rank]) each.addEventListener("change", () => this.begin());
    this.search.addEventListener("input", () => this.show());
  }

  begin() {
    this.lines = [];
    this.seen = null;
    this.show();
    this.fetch();
  }

  // What there is to choose from; the newest attempt unless the reader chose another.
  update(attempts, isOpen) {
    const wanted = attempts.at(-1);
    if (!wanted) return;
    const known = this.attempt.options.length;
    const newest = !known || this.attempt.value === String(known);
    for (const each of attempts.slice(known)) this.attempt.append(el("option", { value: each.attempt }, each.attempt));
    if (newest && attempts.length > known) this.attempt.value = String(wanted.attempt);
    const chosen = attempts.find((each) => String(each.attempt) === this.attempt.value);
    const ranks = chosen ? chosen.plan.num_gpus : 1;
    if (this.rank.options.length !== ranks) {
      this.rank.replaceChildren(...Array.from({ length: ranks }, (_, rank) => el("option", { value: rank }, rank)));
    }
    if (!isOpen) return;  // not everybody who sees the run may read what its workers wrote
    if (attempts.length > known) this.begin();
    else if (this.follow.checked) this.fetch();
  }

  async fetch() {
    if (!this.attempt.value) return;
    this.again = Boolean(this.busy);
    if (this.busy) return;
    this.busy = true;
    const asked = `${this.attempt.value}/${this.rank.value}`;
    try {
      const offset = this.seen === null ? "" : `&offset=${this.seen}`;
      const part = await get(`runs/${encodeURIComponent(this.runKey)}/logs/part?attempt=${this.attempt.value}&rank=${this.rank.value}${offset}`);
      if (asked !== `${this.attempt.value}/${this.rank.value}`) return;
      this.seen = part.next_offset;
      if (part.text) {
        this.lines = [...this.lines, ...part.text.replace(/\n$/, "").split("\n")].slice(-MOST_LINES);
        this.show();
      }
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.count.textContent = error.message;
    } finally {
      this.busy = false;
      if (this.again) this.fetch();
    }
  }

  show() {
    const word = this.search.value.toLowerCase();
    const shown = word ? this.lines.filter((each) => each.toLowerCase().includes(word)) : this.lines;
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 4;
    this.text.textContent = shown.join("\n") || "No output yet.";
    this.count.textContent = word ? `${shown.length} of ${this.lines.length} lines` : `${this.lines.length} lines`;
    if (atEnd && this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }
}
