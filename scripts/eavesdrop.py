"""Whether the time of an answer tells that somebody else has asked the same before (S11).

Each trial draws a prompt. Somebody asks it, or another of that length; then the eavesdropper asks it and takes the
time of one token. The area under the curve says how often a guess by time is right: 0.5 is chance. Found by the same
key, the prompt is quicker: that row shows that the clock would see it.
Does not: load the server otherwise, which would hide more than it tells; look at drafts, of which one token has none.
"""

import random
import sys
from time import perf_counter

import httpx
import numpy as np

from forerun import LLM
from forerun.server.run import in_background
from forerun.server.settings import Settings

LENGTH = 120  # tokens of a prompt
FIRSTS = {  # who asked before: key, salt
    "nobody": ("victim", None),  # that one asked something else
    "another key": ("victim", None),
    "another salt": ("eavesdropper", "victim's"),
    "the same key": ("eavesdropper", None),
}


def area(slow: list[float], quick: list[float]) -> tuple[float, float]:
    """Chance that one of `quick` is below one of `slow`, and its standard error if there is no difference."""
    many, few = np.array(slow), np.array(quick)
    below = (few[:, None] < many).mean() + (few[:, None] == many).mean() / 2
    return float(below), float(np.sqrt((len(slow) + len(quick) + 1) / 12 / len(slow) / len(quick)))


class Listener:
    """Asks as anybody."""

    def __init__(self, web: httpx.Client) -> None:
        self.web, self.chance = web, random.Random(1)  # noqa: S311 - prompts, not secrets

    def prompt(self) -> list[int]:
        """One that nobody has asked yet."""
        return [self.chance.randrange(300, 4000) for _ in range(LENGTH)]

    def ask(self, key: str, prompt: list[int], salt: str | None = None) -> float:
        """Seconds of one token."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0} | ({"cache_salt": salt} if salt else {})
        began = perf_counter()
        self.web.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}).raise_for_status()
        return perf_counter() - began

    def trial(self, who: str) -> float:
        """Seconds that the eavesdropper waits for what `who` asked before."""
        wanted, (key, salt) = self.prompt(), FIRSTS[who]
        self.ask(key, self.prompt() if who == "nobody" else wanted, salt)
        return self.ask("eavesdropper", wanted)


def main(rounds: int) -> None:
    """Print one row for each of FIRSTS."""
    llm = LLM("reference", drafter="ngram", cache="paged", profiles="off", threads=1)
    settings, found = Settings(port=0, api_key=("victim", "eavesdropper")), {who: list[float]() for who in FIRSTS}
    with in_background(llm, settings) as url, httpx.Client(base_url=url, timeout=60) as web:
        listener = Listener(web)
        for turn in range(rounds + 5):
            for who in listener.chance.sample(list(FIRSTS), len(FIRSTS)):
                seconds = listener.trial(who)
                if turn >= 5:  # noqa: PLR2004 - the first rounds warm the server up
                    found[who].append(seconds)
    for who, times in found.items():
        right, error = area(found["nobody"], times)
        print(f"asked before by {who:13} median {1000 * np.median(times):6.2f} ms  area {right:.3f} +- {error:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
