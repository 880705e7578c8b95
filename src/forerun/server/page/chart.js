// Acceptance over time: a bar per step, as high as its draft is deep, filled as far as it was accepted.

const SHOWN = 72; // steps
const MEAN = 16; // steps that the line is a mean of
const [WIDTH, HEIGHT] = [360, 64];

const depths = new WeakMap(); // step -> depth of its draft

function depthOf(step) {
  if (!depths.has(step)) {
    const found = [];
    for (const [, , , parent] of step.draft) found.push(1 + (parent < 0 ? 0 : found[parent]));
    depths.set(step, Math.max(0, ...found));
  }
  return depths.get(step);
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const bars = (tops, each) => tops.map((top, at) => `M${at * each} ${HEIGHT}V${top}h${each - 1.5}V${HEIGHT}Z`).join("");

/** Draw the steps around the selected one, or the latest. */
export function draw(parent, steps, selected) {
  const end = selected === null ? steps.length : Math.min(steps.length, Math.max(SHOWN, selected + SHOWN / 2));
  const from = Math.max(0, end - SHOWN);
  const shown = steps.slice(from, end);
  const top = Math.max(4, ...shown.map(depthOf));
  const each = WIDTH / SHOWN;
  const y = (tokens) => HEIGHT - (tokens / top) * (HEIGHT - 6);
  const made = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "data-from": from });
  const accepted = steps.reduce((sum, step) => sum + step.path.length, 0);
  const mean = (accepted / Math.max(1, steps.length)).toFixed(2);
  made.setAttribute("aria-label", `${steps.length} steps, on average ${mean} drafted tokens accepted`);
  made.append(
    shape("path", { class: "drafted", d: bars(shown.map((step) => y(depthOf(step))), each) }),
    shape("path", { class: "accepted", d: bars(shown.map((step) => y(step.path.length)), each) }),
    shape("path", { class: "mean", d: line(steps, from, end, (at) => (at + 0.5) * each, y) }),
  );
  if (selected !== null) {
    made.append(shape("rect", { class: "chosen", x: (selected - from) * each - 1, y: 1, width: each, height: HEIGHT - 2 }));
  }
  parent.replaceChildren(made);
}

function line(steps, from, end, x, y) {
  const points = [];
  for (let at = from; at < end; at++) {
    const last = steps.slice(Math.max(0, at + 1 - MEAN), at + 1);
    const mean = last.reduce((sum, step) => sum + step.path.length, 0) / last.length;
    points.push(`${x(at - from)} ${y(mean)}`);
  }
  return points.length > 1 ? `M${points.join("L")}` : "";
}

/** Which step is at a place of the chart, if one is. */
export function stepAt(parent, x) {
  const made = parent.firstElementChild;
  if (!made) return null;
  const { left, width } = made.getBoundingClientRect();
  return Number(made.dataset.from) + Math.floor(((x - left) / width) * SHOWN);
}
