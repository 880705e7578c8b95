// What the engine says of itself in /metrics, and how fast plain decoding would be by it.

import { getText } from "./stream.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const shares = new Set(["kv_cache_usage_perc", "accepted"]);

/** Values of /metrics by name and labels, without the prefix that a server may choose. */
export async function metrics() {
  const lines = (await getText("metrics")).split("\n").filter((line) => line && !line.startsWith("#"));
  const found = Object.fromEntries(lines.map((line) => line.replace(/^\w+:/, "").split(/ (?=\S+$)/)));
  for (const name of Object.keys(found)) found[name] = Number(found[name]);
  found.accepted = found.spec_decode_num_accepted_tokens_total / found.spec_decode_num_draft_tokens_total;
  return found;
}

/** Show them; null: they cannot be had. */
export function show(found) {
  for (const place of document.querySelectorAll("[data-gauge]")) {
    const value = found?.[place.dataset.gauge];
    const format = shares.has(place.dataset.gauge) ? percent : whole;
    place.textContent = Number.isFinite(value) ? format.format(value) : "–";
  }
}

/** Tokens per second with one token per pass, at the time of passes between two looks; null where there was none. */
export function plainRate(before, after) {
  const passed = (name) => after[name] - before[name];
  const seconds = passed('engine_seconds_total{phase="run"}') + passed('engine_seconds_total{phase="other"}');
  const passes = passed("engine_steps_total");
  return passes > 0 && seconds > 0 ? passes / seconds : null;
}
