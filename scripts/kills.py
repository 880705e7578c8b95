"""Kill one of two replicas again and again under load, and follow a range of replicas up and down (R20).

Clients ask without a pause, half of them streams. A stream whose replica is killed must say so in an event; whoever
asks then or later must be answered, with the text of the library. Afterwards 1-2 replicas are loaded, and left alone;
Ray's own patience (half a minute up, ten minutes down) is made short for that.
Does not: kill the front, or Ray's own processes.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import ray
from ray import serve

from forerun import LLM, Sampling
from forerun.ray.serve import deployed
from forerun.server.run import beside
from forerun.server.settings import Settings

CONFIG = {"model": "reference", "drafter": "ngram", "planner": "fixed", "profiles": "off", "cache": "paged"}
PROMPTS = [f"Story {number}: once upon a time" for number in range(8)]
TOKENS, CLIENTS = 60, 6
PAUSE = 0.1  # seconds between looks
SOON = {"upscale_delay_s": 2, "downscale_delay_s": 5, "look_back_period_s": 2, "metrics_interval_s": 1}


class Load:
    """Clients that ask until they are told to stop, and what became of each request."""

    def __init__(self, url: str, texts: list[str]) -> None:
        self.url, self.texts, self.ends, self.over = url, texts, Counter[str](), threading.Event()

    def client(self, number: int) -> None:
        """Every second one streams."""
        with httpx.Client(base_url=self.url, timeout=60) as web:
            while not self.over.is_set():
                which = random.randrange(len(PROMPTS))  # noqa: S311 - any will do
                body = {"prompt": PROMPTS[which], "max_tokens": TOKENS, "temperature": 0, "stream": bool(number % 2)}
                try:
                    answer = web.post("/v1/completions", json=body)
                except httpx.HTTPError as problem:
                    self.ends[f"broken off: {type(problem).__name__}"] += 1
                    continue
                self.ends[_end(answer, self.texts[which])] += 1


def _end(answer: httpx.Response, text: str) -> str:
    if answer.status_code != 200:  # noqa: PLR2004 - it is HTTP's
        return f"{answer.status_code}: {answer.json()['error']['message']}"
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return "right" if answer.json()["choices"][0]["text"] == text else "wrong"
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    if not lines or lines[-1] != "[DONE]":
        return "silent"
    parts = [json.loads(line) for line in lines[:-1]]
    said = "".join(part["choices"][0]["text"] for part in parts if "error" not in part)
    if "error" in parts[-1]:
        return "told in the stream" if text.startswith(said) else "wrong"
    return "right" if said == text else "wrong"


def running() -> list[int]:
    """Process ids of the replicas."""
    names, found = [name for name in serve.status().applications if name.startswith("forerun-")], []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = place.read_bytes().decode()
        except OSError:
            continue  # ended meanwhile
        if "ServeReplica" in command and any(name in command for name in names):
            found.append(int(place.parent.name))
    return found


def ready() -> int:
    """Replicas that are healthy."""
    apps = [app for name, app in serve.status().applications.items() if name.startswith("forerun-")]
    return sum(d.replica_states.get("RUNNING", 0) for app in apps for d in app.deployments.values())


def until(count: int, most: float = 120.0) -> float:
    """Seconds until so many replicas run. Patience ends by looks: a machine that stands still meanwhile costs none."""
    began, looks = time.monotonic(), 0
    while ready() != count or len(running()) != count:
        looks += 1
        if looks * PAUSE > most:
            seconds = time.monotonic() - began
            sys.exit(f"kills: {ready()} replicas run after {seconds:.0f} s, and {count} should; look at Ray's log.")
        time.sleep(PAUSE)
    return time.monotonic() - began


def killed(times: int, texts: list[str]) -> None:
    """Print how requests ended, and how long the replacements took."""
    settings, seconds = Settings(port=0, replicas="2"), list[float]()
    with deployed(CONFIG, settings) as app, beside(app, settings) as url, ThreadPoolExecutor(CLIENTS) as pool:
        until(2)
        load = Load(url, texts)
        asked = [pool.submit(load.client, number) for number in range(CLIENTS)]
        try:
            for _ in range(times):
                time.sleep(1)
                os.kill(random.choice(running()), signal.SIGKILL)  # noqa: S311 - either
                time.sleep(0.5)
                seconds.append(0.5 + until(2))
        finally:
            load.over.set()
        for each in asked:
            each.result()
    print(f"{times} kills, {load.ends.total()} requests: {dict(load.ends.most_common())}")
    print(f"a new replica ran after {min(seconds):.1f} to {max(seconds):.1f} s", flush=True)


def scaled(texts: list[str]) -> None:
    """Print how long a second replica takes to come under load, and to go behind it."""
    settings, plain = Settings(port=0, replicas="1-2"), serve.deployment

    def hasty(*words: object, autoscaling_config: dict[str, object], **rest: object) -> object:
        return plain(*words, autoscaling_config=autoscaling_config | SOON, **rest)

    serve.deployment = hasty
    config = {**CONFIG, "max_requests": 2}  # a replica with two requests is busy
    with deployed(config, settings) as app, beside(app, settings) as url, ThreadPoolExecutor(CLIENTS) as pool:
        until(1)
        load = Load(url, texts)
        asked = [pool.submit(load.client, number) for number in range(CLIENTS)]
        up = until(2)
        time.sleep(3)
        load.over.set()
        for each in asked:
            each.result()
        print(f"1 to 2 replicas after {up:.1f} s of load, back after {until(1):.1f} s without: {dict(load.ends)}")


def main(times: int) -> None:
    """Both, on this machine alone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    library = LLM("reference", threads=1, profiles="off")
    texts = [result.text for result in library.generate(PROMPTS, Sampling(temperature=0, max_tokens=TOKENS))]
    for part in (partial(killed, times), scaled):
        part(texts)
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
