// The page: what is asked, what is shown of the answer, and which step is looked at.

import * as chart from "./chart.js";
import * as gauges from "./gauges.js";
import { addToLegend } from "./sources.js";
import { Refused, events, getJson, key } from "./stream.js";
import { Answer, element } from "./text.js";
import * as tree from "./tree.js";

const $ = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const LOOK = 1000; // milliseconds between looks at the gauges while a text is written
const IDLE = 5; // the same otherwise, times as long
const FOLLOW = 250; // milliseconds for which the tree of a step stays while others come

let mode = "chat";
let messages = []; // of the conversation, as the server wants them
let answers = [];
let looked = null; // the answer whose step is looked at
let running = null; // the answer that is being written, and its times

// asking

function numbers() {
  const found = { max_tokens: $("max-tokens"), temperature: $("temperature"), seed: $("seed") };
  return Object.fromEntries(Object.entries(found).flatMap(([name, { value }]) => (value ? [[name, Number(value)]] : [])));
}

function open(text) {
  if (mode === "completion") clear();
  if (mode === "chat") {
    messages.push({ role: "user", content: text });
    $("log").append(element("p", "said", text));
  }
  const answer = new Answer($("log"), mode === "completion" ? text : "");
  answers.push(answer);
  look(null);
  return answer;
}

async function send(text) {
  const answer = open(text);
  const asked = mode === "chat" ? { messages } : { prompt: text };
  const path = mode === "chat" ? "v1/chat/completions" : "v1/completions";
  const run = { answer, abort: new AbortController(), asked: performance.now(), first: null, before: null, plain: null };
  const sooner = gauged;
  running = run;
  busy(true);
  try {
    const body = { ...asked, ...numbers(), stream: true, stream_options: { include_steps: true } };
    for await (const event of events(path, body, run.abort.signal)) hear(run, event);
    tell(`Done. ${summary(answer)}`);
  } catch (problem) {
    if (run.abort.signal.aborted) tell(`Stopped. ${summary(answer)}`);
    else refused(problem);
  }
  if (!$("error").hidden && !answer.tokens) takeBack(answer, text);
  else if (mode === "chat") messages.push({ role: "assistant", content: answer.text });
  running = null;
  draw(run);
  busy(false);
  await run.looking;
  await poll(run);
  run.plain ??= sooner && gauged && gauges.plainRate(sooner, gauged); // it was over before the first look
  speed(run);
}

/** What was refused is not part of the conversation; its text can be mended and sent again. */
function takeBack(answer, text) {
  answers.pop();
  if (mode === "chat") {
    messages.pop();
    answer.place.previousElementSibling.remove();
    $("prompt").value ||= text;
  }
  answer.place.remove();
}

function hear(run, event) {
  for (const choice of event.choices) {
    if (!choice.step) continue;
    run.last = performance.now();
    if (!run.first) {
      run.first = { time: run.last, tokens: choice.step.tokens.length };
      run.looking = poll(run); // not sooner: reading the prompt belongs to neither rate
    }
    run.answer.hear(choice.step, choice.text ?? choice.delta.content ?? "");
    schedule(run);
  }
}

function stop() {
  running?.abort.abort();
}

function busy(on) {
  if (on && document.activeElement === $("send")) $("log").focus();
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("error").hidden = on || $("error").hidden;
  for (const input of document.querySelectorAll("[name=mode]")) input.disabled = on;
  $("clear").disabled = on;
  if (on) tell("Writing.");
}

function refused(problem) {
  $("error").textContent = problem instanceof Refused ? problem.message : "The server cannot be reached; see whether it runs.";
  $("error").hidden = false;
  if (problem.status !== 401) return;
  $("key-field").hidden = false;
  $("key").focus();
}

/** For those who listen; only beginnings, ends and what they chose. */
function tell(sentence) {
  $("status").textContent = sentence;
}

function summary(answer) {
  return `${answer.tokens} tokens in ${answer.steps.length} steps.`;
}

// showing

let frame = 0;
let drawn = 0; // when the tree was

function schedule(run) {
  frame ||= requestAnimationFrame(() => draw(run));
}

function draw(run) {
  frame = 0;
  const log = $("log");
  const end = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  run.answer.draw();
  if (end) log.scrollTop = log.scrollHeight;
  speed(run);
  if (looked !== null) return;
  chart.draw($("chart"), run.answer.steps, null);
  const now = performance.now();
  if (running !== run || (!calm.matches && now - drawn > FOLLOW)) {
    drawn = now;
    show(run.answer, run.answer.steps.length - 1);
  }
}

function speed({ answer, asked, first, last, plain }) {
  if (!first) return;
  const rate = (answer.tokens - first.tokens) / ((last - first.time) / 1000);
  const most = Math.max(rate || 0, plain ?? 0, 1);
  $("rate").textContent = Number.isFinite(rate) ? Math.round(rate) : "–";
  $("rate-bar").style.width = `${Number.isFinite(rate) ? (100 * rate) / most : 0}%`;
  $("plain").textContent = plain === null ? "–" : Math.round(plain);
  $("plain-bar").style.width = `${(100 * (plain ?? 0)) / most}%`;
  $("tokens").textContent = answer.tokens;
  $("per-step").textContent = (answer.tokens / answer.steps.length).toFixed(2);
  $("first").textContent = `${Math.round(first.time - asked)} ms`;
}

/** Show the tree of a step. */
function show(answer, number) {
  const step = answer.steps[number];
  if (!step) return;
  const who = [...new Set(step.draft.map(([, , source]) => source))].join(" and ");
  const said = who ? `${step.path.length} of ${step.draft.length} tokens from ${who} accepted` : "nothing drafted";
  $("step").textContent = `${number + 1} of ${answer.steps.length} · ${said}`;
  tree.draw($("tree"), step);
}

// looking at one step

function look(answer, number) {
  looked?.select(null);
  looked = answer;
  if (!answer) return;
  answer.select(number);
  show(answer, number);
  chart.draw($("chart"), answer.steps, number);
  tell(`Step ${number + 1}: ${tree.described(answer.steps[number])}.`);
}

function move(by) {
  const written = answers.filter((answer) => answer.spans.length);
  if (!written.length) return;
  if (!looked) return look(written.at(-1), written.at(-1).spans.length - 1);
  const to = looked.selected + by;
  if (to >= 0 && to < looked.spans.length) return look(looked, to);
  const next = written[written.indexOf(looked) + by];
  if (next) look(next, by > 0 ? 0 : next.spans.length - 1);
}

const jumps = { Home: 0, End: Infinity };

$("log").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const answer = looked ?? answers.at(-1);
  if (by) move(by);
  else if (event.key in jumps && answer?.spans.length) look(answer, Math.min(jumps[event.key], answer.spans.length - 1));
  else return;
  event.preventDefault();
});

$("log").addEventListener("click", (event) => {
  const span = event.target.closest(".step");
  if (!span || getSelection().type === "Range") return; // a text that was marked is to be copied
  look(answers.find((answer) => answer.place === span.parentElement), Number(span.dataset.step));
});

$("chart").addEventListener("click", (event) => {
  const answer = looked ?? answers.at(-1);
  const number = chart.stepAt($("chart"), event.clientX);
  if (answer?.spans[number]) look(answer, number);
});

// the form

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value;
  if (running || !text.trim()) return;
  if (mode === "chat") $("prompt").value = "";
  send(text);
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) stop();
  else look(null);
});

$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", clear);

function clear() {
  [messages, answers] = [[], []];
  look(null);
  $("log").replaceChildren();
  $("tree").replaceChildren();
  $("chart").replaceChildren();
  $("error").hidden = true;
}

for (const input of document.querySelectorAll("[name=mode]")) {
  input.addEventListener("change", () => {
    mode = input.value;
    clear();
    invite();
  });
}

function invite() {
  $("prompt").placeholder = mode === "chat" ? "Say something" : "Begin a text";
  $("prompt").focus();
}

// the engine

$("key").value = key.get();
$("key-field").hidden = !key.get();
$("key-field").addEventListener("submit", (event) => event.preventDefault()); // the change was heard
$("key").addEventListener("change", () => {
  key.set($("key").value.trim());
  begin();
});

let gauged = null; // what the gauges said last

/** Look at the gauges; with a run, estimate plain decoding from what passed since its first look. */
async function poll(run = null) {
  try {
    const found = await gauges.metrics();
    gauges.show(found);
    gauged = found;
    if (run?.before) run.plain = gauges.plainRate(run.before, found) ?? run.plain;
    else if (run) run.before = found;
  } catch {
    gauges.show(null); // who asks for a text hears what is wrong
  }
}

let known = false; // whether the server lets us in
let idle = 0; // looks that were left out

function watch() {
  if (!known || document.visibilityState !== "visible") return;
  idle = running ? 0 : (idle + 1) % IDLE;
  if (!idle) poll(running?.first ? running : null);
}

async function begin() {
  try {
    const [model] = (await getJson("v1/models")).data;
    $("model").textContent = model.caveat ? `${model.id}: ${model.caveat}` : model.id;
    $("error").hidden = true;
    known = true;
    await poll();
  } catch (problem) {
    known = false;
    refused(problem);
  }
}

addToLegend("target");
invite();
begin();
setInterval(watch, LOOK);
