"""A monitor of your own: Python identifiers are names that the program knows, whatever the model would have made up."""

import re
from collections.abc import Callable

from forerun import LLM, Sampling
from forerun.types import Constraint

NAMES = {"day", "days", "friends", "time", "count"}
BETWEEN = [" + ", " - ", " * ", " and ", " or ", " == ", "\n"]


def only(names: set[str]) -> Callable[[str], list[str]]:
    """What may come: the rest of a known name; behind a whole one, what stands between two, or the end."""

    def monitor(text: str) -> list[str]:
        for begun in BETWEEN:  # one that is begun is gone on with
            for size in range(1, len(begun)):
                if text.endswith(begun[:size]) and not text.endswith(tuple(BETWEEN)):
                    return [word[size:] for word in BETWEEN if word.startswith(begun[:size])]
        name = re.search(r"\w*\Z", text)[0]
        rest = [known[len(name) :] for known in names if known.startswith(name) and known != name]
        return [*rest, *BETWEEN, ""] if name in names else rest

    return monitor


llm = LLM("reference", drafter="ngram", monitors={"names": only(NAMES)})
wish = Sampling(temperature=0.8, seed=1, max_tokens=24, constraint=Constraint("monitors", "names"))
text = llm.generate("The day was long. result =", wish)[0].text
used = re.findall(r"\w+", text)
print(text)
print(f"made up: {sorted(set(used[:-1]) - NAMES - {'and', 'or'})}")  # the last one may be cut
