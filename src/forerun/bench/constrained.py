"""What constraints bring on a model: each text beside the one of the same prompt and seed that nothing holds.

Texts are judged by parsers that the constraints do not use: Python's own for Python and JSON, SQLite's for SQL.
Does not: count a text that was cut as one that parses.
"""

import ast
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from forerun.bench.figures import Beside, Spread
from forerun.llm import LLM, Result
from forerun.types import Constraint, Sampling

LANGUAGES = {  # what asks for a text of each; a blank line ends a program
    "json": ("The order as JSON:\n```json\n", "Here is the JSON of a girl and her dog:\n\n", "config.json:\n"),
    "python": ("# A function that adds two numbers.\n", "```python\n", "main.py:\n"),
    "sql": ("-- All names of people older than ten.\n", "Write a SQL query for all dogs.\n```sql\n", "SQL: "),
}
CLASSES = {"Dog": ("name", "age"), "Circle": ("radius", "color"), "Account": ("owner", "balance", "limit")}
STORIES = ("Once upon a time there was a", "The girl and the boy went to the", "Tom had a red ball. He")
DENIED = (" little", " happy", " said", " big", " saw")
PLAIN: dict[str, Any] = {"drafter": "none", "decoder": "autoregressive", "threads": 1, "profiles": "off"}
ATTRIBUTE = re.compile(r"\bself\.(\w+)(?=\W)")  # one at the end of a text may be cut
AFTER = " \n\"'()[]{},:;=+-*/%<>#"  # what may follow a name


@dataclass(frozen=True)
class Order:
    """How much is written."""

    samples: int = 12  # of every prompt
    max_tokens: int = 128
    languages: Sequence[str] = tuple(LANGUAGES)


def measure(plain: LLM, order: Order) -> Iterator[Beside]:
    """Syncode, monitors and deny-labels, each beside texts that nothing holds."""
    for language in order.languages:
        yield from languages(plain, language, order)
    yield monitors(plain, order)
    yield from denials(plain, order)


def languages(plain: LLM, language: str, order: Order) -> Iterator[Beside]:
    """Texts that came to their end, and those of them that are of the language."""
    blank = ("\n\n",) if language == "python" else ()
    sampling = Sampling(max_tokens=order.max_tokens, stop=blank)
    pairs = [_both(plain, prompt, sampling, Constraint("syncode", language), order) for prompt in LANGUAGES[language]]
    free, held = ([result for pair in pairs for result in pair[side]] for side in (0, 1))
    over = f"{len(free)} texts"
    ended = [[result.finish_reason == "stop" for result in side] for side in (free, held)]
    yield Beside.means("syncode", language, "share that came to an end", ended, over)
    right = [[r.finish_reason == "stop" and PARSERS[language](r.text) for r in side] for side in (free, held)]
    yield Beside.means("syncode", language, "share that ended and parses", right, over)


def _both(
    plain: LLM, prompt: str, sampling: Sampling, wish: Constraint, order: Order
) -> tuple[list[Result], list[Result]]:
    """The samples of a prompt, without a constraint and with it."""
    sampling = replace(sampling, seed=0)
    held = plain.generate(prompt, replace(sampling, constraint=wish), order.samples)
    return plain.generate(prompt, sampling, order.samples), held


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_sql(text: str) -> bool:
    """Whether SQLite reads it as one query; tables that do not exist are found missing behind that."""
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute(f"SELECT * FROM ({text.strip().removesuffix(';')}\n)")  # noqa: S608 - an empty database
        except sqlite3.Error as problem:
            return not any(said in str(problem) for said in ("syntax error", "incomplete", "unrecognized token"))
    return True


PARSERS: dict[str, Callable[[str], bool]] = {"json": _is_json, "python": _is_python, "sql": _is_sql}


def monitors(plain: LLM, order: Order) -> Beside:
    """Attributes of `self` that the class has, of those that its methods name."""
    sampling = Sampling(max_tokens=order.max_tokens // 2)
    llm = LLM(plain.model, plain.tokenizer, monitors={name: attributes(CLASSES[name]) for name in CLASSES}, **PLAIN)
    found: tuple[list[bool], list[bool]] = [], []
    for name, fields in CLASSES.items():
        pair = _both(llm, program(name, fields), sampling, Constraint("monitors", name), order)
        for side, results in zip(found, pair, strict=True):
            side += [used in fields for r in results for used in ATTRIBUTE.findall(f"self{r.text}")]
    over = f"{len(found[0])} and {len(found[1])} of them"
    return Beside.means("monitors", "methods of classes", "share of attributes that exist", found, over)


def program(name: str, fields: Sequence[str]) -> str:
    """A class whose first method is begun."""
    kept = "".join(f"        self.{field} = {field}\n" for field in fields)
    return (
        f"class {name}:\n    def __init__(self, {', '.join(fields)}):\n{kept}\n    def show(self):\n        return self"
    )


def attributes(fields: Sequence[str]) -> Callable[[str], list[str] | None]:
    """A monitor: behind `self` one of the fields may come, or what is no name."""
    known = [f".{field}" for field in fields]

    def monitor(text: str) -> list[str] | None:
        place = re.search(r"\bself(\.\w*)?\Z", f"self{text}")  # the prompt ends with the first one
        if place is None:
            return None
        begun = place[1] or ""
        rest = [word[len(begun) :] for word in known if word.startswith(begun) and word != begun]
        return [*rest, *AFTER, ""] if begun in ("", *known) else rest

    return monitor


def denials(plain: LLM, order: Order) -> Iterator[Beside]:
    """Denied phrases, and what a token takes without a neighbour: pairs in turn."""
    wish = Constraint("deny-labels", ",".join(DENIED))
    sampling = Sampling(max_tokens=order.max_tokens, ignore_eos=True)
    pairs = [_both(plain, prompt, sampling, wish, order) for prompt in STORIES]
    sides = [[result for pair in pairs for result in pair[side]] for side in (0, 1)]
    tokens = [sum(len(result.tokens) for result in side) for side in sides]
    counts = [sum(result.text.count(phrase) for result in side for phrase in DENIED) for side in sides]
    rates = [[1e3 * count / total] for count, total in zip(counts, tokens, strict=True)]
    yield Beside.means("deny-labels", "stories", "denied phrases per 1,000 tokens", rates, f"{tokens[0]} tokens each")
    alone = replace(order, samples=1)
    turns = [_both(plain, prompt, sampling, wish, alone) for prompt in STORIES for _ in range(order.samples)]
    ratio = Spread.of([held[0].seconds / free[0].seconds for free, held in turns])
    yield Beside("deny-labels", "stories", "time of a token", 1.0, ratio.median, f"pairs: {ratio.shown(3)}")
