// The draft of a step as a tree: depth from left to right, what was accepted in colour, and the model's token after it.

import { classOf } from "./sources.js";
import { visible } from "./text.js";

const ROW = 30;
const GLYPH = 7.3; // width of a character at the size that page.css gives
const GAP = 18;
const LONGEST = 14; // characters of a label

function svg(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function label(text) {
  const shown = [...visible(text)];
  return shown.length > LONGEST ? `${shown.slice(0, LONGEST - 1).join("")}…` : shown.join("");
}

/** The nodes to draw: the draft's, and the token that the model added, each under `parent` (-1: the text so far). */
function nodesOf(step) {
  const accepted = new Set(step.path);
  const nodes = step.draft.map(([, text, source, parent], at) => ({ text, source, parent, accepted: accepted.has(at) }));
  for (const [, text, source] of step.tokens.slice(step.path.length)) {
    nodes.push({ text, source, parent: step.path.at(-1) ?? -1, accepted: true, own: true });
  }
  return nodes;
}

/** Gives every node its depth and its row: leaves get a row each, and the first child is level with its parent. */
function place(nodes) {
  const children = new Map([[-1, []]]);
  nodes.forEach((node, at) => {
    children.set(at, []);
    children.get(node.parent).push(at);
    node.depth = node.parent < 0 ? 1 : nodes[node.parent].depth + 1;
  });
  let rows = 0;
  const walk = (at, row) => {
    if (at >= 0) nodes[at].row = row;
    const order = children.get(at).sort((a, b) => nodes[b].accepted - nodes[a].accepted);
    order.forEach((child, place) => walk(child, place === 0 ? row : ++rows));
  };
  walk(-1, 0);
  return rows + 1;
}

function columns(nodes) {
  const widths = [];
  for (const node of nodes) {
    node.label = label(node.text);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.label.length * GLYPH + 14);
  }
  const lefts = [];
  let x = 14;
  for (let depth = 1; depth < widths.length; depth++) {
    lefts[depth] = x + GAP;
    x += GAP + widths[depth];
  }
  return { lefts, width: x + 2 };
}

/** What a person who does not see the tree is told. */
export function described(step) {
  const said = step.draft.map(([, text], at) => `“${text}” ${step.path.includes(at) ? "accepted" : "refused"}`);
  const own = step.tokens.slice(step.path.length).map(([, text]) => `the model added “${text}”`);
  return [...said, ...own].join(", ") || "nothing was drafted";
}

/** Draw a step's tree into an element, in place of what was there. */
export function draw(parent, step) {
  const nodes = nodesOf(step);
  const rows = place(nodes);
  const { lefts, width } = columns(nodes);
  const height = rows * ROW + 6;
  const made = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(step) });
  const middle = (row) => row * ROW + ROW / 2 + 3;
  made.append(svg("circle", { cx: 8, cy: middle(0), r: 4, class: "root" }));
  const right = (at) => (at < 0 ? 12 : lefts[nodes[at].depth] + nodes[at].label.length * GLYPH + 14);
  const links = nodes.map((node) => {
    const [x, y, left, row] = [right(node.parent), middle(nodes[node.parent]?.row ?? 0), lefts[node.depth], middle(node.row)];
    const bend = left - GAP / 2;
    const path = `M${x} ${y}H${bend - GAP / 4}C${bend} ${y} ${bend - 4} ${row} ${left} ${row}`;
    return svg("path", { d: y === row ? `M${x} ${y}H${left}` : path, class: node.accepted ? "link accepted" : "link" });
  });
  made.append(...links, ...nodes.map((node) => box(node, lefts[node.depth], middle(node.row))));
  parent.replaceChildren(made);
}

function box(node, x, y) {
  const state = node.own ? "own" : node.accepted ? "accepted" : "refused";
  const group = svg("g", { class: `node ${state} ${classOf(node.source)}` });
  const width = node.label.length * GLYPH + 14;
  group.append(
    svg("title", {}, `${node.source}: ${JSON.stringify(node.text)}`),
    svg("rect", { x, y: y - 11, width, height: 22, rx: 5 }),
    svg("text", { x: x + 7, y: y + 4 }, node.label),
  );
  return group;
}
