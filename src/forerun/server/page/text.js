// Texts as they are written: one span per step, and in it one per token. What is new is added once per frame.

import { classOf } from "./sources.js";

export function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** One text that the model writes; `steps` are all that came, `selected` is the one looked at. */
export class Answer {
  constructor(parent, opening = "") {
    this.place = element("p", "answer");
    if (opening) this.place.append(element("span", "given", opening));
    this.steps = [];
    this.spans = [];
    this.selected = null;
    this.tokens = 0;
    this.text = "";
    parent.append(this.place);
  }

  /** Take a step in; `draw` shows it. */
  hear(step, text) {
    this.steps.push(step);
    this.tokens += step.tokens.length;
    this.text += text;
  }

  /** Show all steps that are not shown yet. */
  draw() {
    const fresh = this.steps.slice(this.spans.length).map((step, at) => this.#span(step, this.spans.length + at));
    this.spans.push(...fresh);
    this.place.append(...fresh);
  }

  #span(step, number) {
    const span = element("span", "step");
    span.dataset.step = number;
    span.append(...step.tokens.map(([, text, source]) => element("span", `token ${classOf(source)}`, text)));
    return span;
  }

  /** Look at a step; null: at none. */
  select(number) {
    this.spans[this.selected]?.classList.remove("selected");
    this.selected = number;
    this.spans[number]?.classList.add("selected");
    this.spans[number]?.scrollIntoView({ block: "nearest" });
  }
}

/** Spaces and line ends of a token, to be seen. */
export const visible = (text) => text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
