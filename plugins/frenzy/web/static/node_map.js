// All nodes and their GPUs as one picture, coloured by job: a canvas, so that a thousand nodes are one element.
import { el } from "./page.js";

const CELL = 9;
const GAP = 2;
const BETWEEN = 10;
const LABEL = 16;

// Hues far apart for neighbours; the same job has the same hue in all pictures.
function hue(key) {
  let hash = 0;
  for (const letter of key) hash = (hash * 31 + letter.charCodeAt(0)) % 100003;
  return (hash * 137.508) % 360;
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// One letter for each GPU of a node: whose it is, or what else it is.
function cells(node) {
  const held = node.holders.flatMap((each) => Array.from({ length: each.num_gpus }, () => each.run_key));
  const rest = Math.max(0, node.num_gpus - node.num_free - held.length);
  const free = Math.max(0, node.num_gpus - held.length - rest);
  return [...held, ...Array(rest).fill("other"), ...Array(free).fill(null)];
}

export class NodeMap {
  // pick(node): what a click asks for.
  constructor(nameOf, pick) {
    this.nameOf = nameOf;
    this.canvas = el("canvas", { role: "img" });
    this.words = el("div", { class: "readout", "aria-live": "polite" }, "Each square is a GPU, each colour a job; empty is free, grey is not to be seen. Point at a node to see who holds it; a click shows its jobs.");
    this.picture = el("div", { class: "map" }, this.canvas);
    this.node = el("figure", {}, this.picture, this.words);
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => { const found = this.at(event); if (found) pick(found.node.node); });
    this.boxes = [];
  }

  update(nodes) {
    this.nodes = nodes;
    this.draw();
  }

  draw() {
    const width = Math.max(320, (this.picture.clientWidth || 900) - 16);
    const places = this.arrange(width);
    const height = places.height;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.setAttribute("aria-label", `${this.nodes.length} nodes; the tables below say the same in words`);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const [line, faint, other, bad] = ["line", "faint", "faint", "warn"].map(ink);
    for (const { text, x, y } of places.labels) {
      pen.fillStyle = faint;
      pen.fillText(text, x, y);
    }
    for (const { node, x, y, columns } of this.boxes) {
      cells(node).forEach((key, index) => {
        const left = x + (index % columns) * (CELL + GAP);
        const top = y + Math.floor(index / columns) * (CELL + GAP);
        if (key === null) {
          pen.strokeStyle = node.state === "ready" ? line : bad;
          pen.strokeRect(left + 0.5, top + 0.5, CELL - 1, CELL - 1);
        } else {
          pen.fillStyle = key === "other" ? other : `hsl(${hue(key)} 60% 50%)`;
          pen.fillRect(left, top, CELL, CELL);
        }
      });
    }
  }

  // Nodes of one type beside each other, four GPUs to a row.
  arrange(width) {
    this.boxes = [];
    const labels = [];
    let y = 0;
    const types = new Map();
    for (const node of this.nodes) types.set(node.gpu_type, [...(types.get(node.gpu_type) || []), node]);
    for (const [type, nodes] of types) {
      labels.push({ text: `${type}: ${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}`, x: 0, y: y + LABEL - 4 });
      y += LABEL;
      let x = 0;
      let tallest = 0;
      for (const node of nodes) {
        const columns = Math.min(4, Math.max(1, node.num_gpus));
        const wide = columns * (CELL + GAP) - GAP;
        const tall = Math.ceil(Math.max(1, node.num_gpus) / columns) * (CELL + GAP) - GAP;
        if (x && x + wide > width) {
          x = 0;
          y += tallest + BETWEEN;
          tallest = 0;
        }
        this.boxes.push({ node, x, y, wide, tall, columns });
        tallest = Math.max(tallest, tall);
        x += wide + BETWEEN;
      }
      y += tallest + BETWEEN;
    }
    return { labels, height: Math.max(LABEL, y) };
  }

  at({ offsetX, offsetY }) {
    return this.boxes.find((each) => offsetX >= each.x - GAP && offsetX <= each.x + each.wide + GAP
      && offsetY >= each.y - GAP && offsetY <= each.y + each.tall + GAP);
  }

  point(event) {
    const found = this.at(event);
    if (!found) return;
    const { node } = found;
    const who = node.holders.map((each) => `${each.num_gpus} by ${this.nameOf(each.run_key)}`).join(", ");
    this.words.textContent = `${node.node} (${node.gpu_type}, ${node.state}): ${node.num_free} of ${node.num_gpus} free`
      + (who ? `; held: ${who}` : "");
  }
}
