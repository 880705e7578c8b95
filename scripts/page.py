"""How soon the page at / stands, and how awake it is while many streams run on it: one line of JSON, in milliseconds.

A server with the bundled model runs in a process of its own, chromium beside it on the same cores. Loading is told by
the browser's own navigation and paint timings; of that many streams, all shown on the page, by gaps between frames,
tasks that kept the page for more than 50 ms, and how long a key pressed ten times a second took to be handled and to
be painted.
Does not: measure a network, or another browser.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

LOADS = 5
TOKENS = 600  # of each stream
PORT = 8731

LOADED = """() => new Promise(done => {
  const find = (list) => {
    const [paint] = list.getEntriesByName("first-contentful-paint");
    if (!paint) return;
    const [way] = performance.getEntriesByType("navigation");
    done({ painted: paint.startTime, interactive: way.domInteractive, loaded: way.loadEventEnd });
  };
  new PerformanceObserver(find).observe({ type: "paint", buffered: true });
})"""

STREAMS = """async ([count, tokens]) => {
  const [{ events }, { Answer }] = await Promise.all([import("/page/stream.js"), import("/page/text.js")]);
  const found = { gaps: [], tasks: [], handled: [], painted: [] };
  new PerformanceObserver((list) => found.tasks.push(...list.getEntries().map((task) => task.duration)))
    .observe({ type: "longtask" });
  document.addEventListener("keydown", (event) => {
    found.handled.push(performance.now() - event.timeStamp);
    requestAnimationFrame(() => setTimeout(() => found.painted.push(performance.now() - event.timeStamp)));
  });
  const all = [];
  let [last, done] = [performance.now(), false];
  const frame = (now) => {
    found.gaps.push(now - last);
    last = now;
    all.forEach((answer) => answer.draw());
    if (!done) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  const write = async (seed) => {
    const answer = new Answer(document.getElementById("log"));
    all.push(answer);
    const options = { stream: true, stream_options: { include_steps: true } };
    const body = { prompt: "Once", max_tokens: tokens, seed, ignore_eos: true, ...options };
    for await (const { choices } of events("v1/completions", body)) answer.hear(choices[0].step, choices[0].text);
  };
  const began = performance.now();
  document.getElementById("prompt").focus();
  window.written = Promise.all(Array.from({ length: count }, (_, seed) => write(seed))).then(() => {
    done = true;
    all.forEach((answer) => answer.draw());
    const seconds = (performance.now() - began) / 1000;
    return { ...found, seconds, tokens: document.querySelectorAll(".token").length };
  });
  window.written.then(() => (window.over = true));
}"""


@contextmanager
def served(count: int) -> Iterator[str]:
    """The address of a server that runs so many requests at once."""
    forerun = Path(sys.executable).with_name("forerun")
    flags = f"--port {PORT} --max-requests {count} --max-per-key {count} --drafter draft-model --threads 1".split()
    server = subprocess.Popen([forerun, "serve", *flags], stderr=subprocess.DEVNULL)  # noqa: S603 - ours
    try:
        yield f"http://127.0.0.1:{PORT}"
    finally:
        server.terminate()
        server.wait(30)


def opened(page: Any, url: str) -> None:  # noqa: ANN401 - playwright's
    """Wait until the server answers."""
    for _ in range(300):
        try:
            page.goto(url)
        except Exception:  # noqa: BLE001 - whatever the browser says of a server that is not there yet
            time.sleep(0.1)
        else:
            return
    raise SystemExit("page: the server does not answer; run `forerun serve` to see why.")


def shares(values: list[float]) -> dict[str, float]:
    """Median, 99 % and worst."""
    ordered = sorted(values) or [0.0]
    places = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {name: round(ordered[int(share * (len(ordered) - 1))], 1) for name, share in places.items()}


def measured(url: str, count: int) -> dict[str, Any]:
    """All figures of the page there."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        opened(page, url)
        loads = []
        for _ in range(LOADS):  # each without anything kept from the one before
            with browser.new_context() as fresh:
                tab = fresh.new_page()
                tab.goto(url)
                loads.append(tab.evaluate(LOADED))
        page.evaluate(STREAMS, [count, TOKENS])
        while not page.evaluate("window.over === true"):
            page.keyboard.press("x")
            time.sleep(0.1)
        found = page.evaluate("window.written")
        browser.close()
    return {
        "load_ms": {name: shares([load[name] for load in loads]) for name in loads[0]},
        "streams": count,
        "tokens_per_second": round(found["tokens"] / found["seconds"]),
        "frame_gap_ms": shares(found["gaps"]) | {"frames": len(found["gaps"])},
        "key_handled_ms": shares(found["handled"]) | {"keys": len(found["handled"])},
        "key_painted_ms": shares(found["painted"]),
        "long_tasks": len(found["tasks"]),
        "longest_task_ms": max(found["tasks"], default=0),
    }


if __name__ == "__main__":
    streams = int(sys.argv[1]) if sys.argv[1:] else 16
    with served(streams) as address:
        print(json.dumps(measured(address, streams)))
