// A long table of which only the rows in sight are in the document. All rows have one height.
import { el } from "./page.js";

const ROW_PX = 46;
const BEYOND = 6;

export class VirtualTable {
  // columns: [heading, cell(row), class, width]
  constructor(columns, { tall = 12 } = {}) {
    this.columns = columns;
    this.rows = [];
    this.range = "";
    this.above = el("tr", { "aria-hidden": "true" });
    this.below = el("tr", { "aria-hidden": "true" });
    this.body = el("tbody");
    this.table = el("table", { class: "virtual" },
      el("colgroup", {}, columns.map(([, , , width]) => { const col = el("col"); col.style.width = width; return col; })),
      el("thead", {}, el("tr", {}, columns.map(([title, , kind]) => el("th", { class: kind, scope: "col" }, title)))), this.body);
    this.node = el("div", { class: "scroll virtual", tabindex: "0" }, this.table);
    this.node.style.maxHeight = `${ROW_PX * tall + 34}px`;
    this.node.addEventListener("scroll", () => this.draw());
  }

  update(rows) {
    this.rows = rows;
    this.range = "";
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.draw();
  }

  draw() {
    const height = this.node.clientHeight || parseInt(this.node.style.maxHeight, 10);
    const first = Math.max(0, Math.min(Math.floor(this.node.scrollTop / ROW_PX) - BEYOND, this.rows.length));
    const last = Math.min(this.rows.length, Math.ceil((this.node.scrollTop + height) / ROW_PX) + BEYOND);
    if (this.range === `${first}-${last}`) return;
    this.range = `${first}-${last}`;
    this.above.style.height = `${first * ROW_PX}px`;
    this.below.style.height = `${(this.rows.length - last) * ROW_PX}px`;
    const line = (row, index) => {
      const made = el("tr", { "aria-rowindex": first + index + 2 }, this.columns.map(([, cell, kind]) => el("td", { class: kind }, el("div", {}, cell(row)))));
      made.style.height = `${ROW_PX}px`;
      return made;
    };
    this.body.replaceChildren(this.above, ...this.rows.slice(first, last).map(line), this.below);
  }
}
