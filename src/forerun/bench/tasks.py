"""Requests whose answer is known beforehand, for `forerun bench drafts`: a prompt, and what a model should say.

`code-edit`: a source file of this package and lines to change; the answer is the changed file, the prediction the old
one. `repeated-first` and `repeated`: twenty requests of one template, answered by calls that differ in a few words, and
180 more. With the public sets, of their book: `grammar`, paragraphs with mistakes put in, answered by the paragraph;
`extract`, a passage answered by every third of its sentences; `prose`, the book goes on.
Does not: ask a model. Answers are what a perfect one would write; a real one departs from them.
"""

import random
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from forerun.bench.replay import Record
from forerun.models.tokenizer import Tokenizer

BOOK = "books/sherlock_holmes.txt"
_SIZES = (1500, 6000)  # characters of a source file that is edited
_REQUESTS, _FIRST = 200, 20
_MISTAKES = {
    "is": "are",
    "are": "is",
    "was": "were",
    "were": "was",
    "has": "have",
    "a": "an",
    "an": "a",
    "his": "her",
    "he": "him",
    "which": "who",
    "there": "their",
    "the": "",
    "of": "off",
    "than": "then",
}
_SPOILED = 0.3  # of the words that a mistake is known for
_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_NUMBER = re.compile(r"\b\d+\b")


def load(tokenizer: Tokenizer, count: int, data: Path | None) -> list[Record]:
    """The tasks, at most `count` of each but the repeated; without the public sets only those that need none."""
    found = [*_edits(count), *_repeated()]
    if data is not None:
        found += _of_book(data / BOOK, count)
    return [
        Record(category, tuple(tokenizer.encode(prompt)), *(tuple(tokenizer.encode_within(text)) for text in texts))
        for category, prompt, *texts in found
    ]


Task = tuple[str, str, str, str]  # category, prompt, answer, prediction


def _edits(count: int) -> Iterator[Task]:
    """Every third line with a number gets another number."""
    folder = files("forerun")
    sources = sorted((p for p in folder.joinpath("bench").iterdir() if p.name.endswith(".py")), key=lambda p: p.name)
    texts = [text for source in sources if _SIZES[0] < len(text := source.read_text(encoding="utf-8")) < _SIZES[1]]
    for text in texts[:count]:
        lines, wishes = text.splitlines(), list[str]()
        for at in [at for at, line in enumerate(lines) if _NUMBER.search(line)][::3]:
            new = _NUMBER.sub(lambda found: str(int(found[0]) + 7), lines[at], count=1)
            wishes.append(f"Replace `{lines[at].strip()}` by `{new.strip()}`.")
            lines[at] = new
        yield "code-edit", f"{text}\n\n{' '.join(wishes)} Give the whole file.\n\n", "\n".join(lines), text


def _repeated() -> Iterator[Task]:
    """One template, with a few words that change."""
    rng = random.Random(0)  # noqa: S311 - texts, not secrets
    cities = ("Lisbon", "Oslo", "Vienna", "Porto", "Riga", "Turin", "Ghent", "Split", "Malmö", "Bern", "Graz", "Nantes")
    for number in range(_REQUESTS):
        start, end = rng.sample(cities, 2)
        day, seats = f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}", rng.randint(1, 5)
        asked = f"Find a train from {start} to {end} on {day} for {seats}."
        call = (
            f'{{"tool": "search_trains", "arguments": {{"from": "{start}", "to": "{end}", "date": "{day}", '
            f'"passengers": {seats}, "class": "second", "max_changes": 2, "currency": "EUR"}}}}'
        )
        said = f"I will look for trains from {start} to {end} on {day}.\n{call}\nRequest {number} is done.\n"
        category = "repeated-first" if number < _FIRST else "repeated"
        yield category, f"You plan journeys. Call one tool, as JSON.\nUser: {asked}\nAssistant: ", said, ""


def _of_book(path: Path, count: int) -> Iterator[Task]:
    """Tasks made of passages of a book."""
    paragraphs = [" ".join(part.split()) for part in path.read_text(encoding="utf-8").split("\n\n")]
    long = [part for part in paragraphs[20:] if len(part) > 300]  # noqa: PLR2004 - several sentences; behind the contents
    rng = random.Random(0)  # noqa: S311 - texts, not secrets
    for part in long[:count]:
        wrong = " ".join(_spoiled(word, rng) for word in part.split())
        yield "grammar", f"Correct the grammar.\n{wrong}\nCorrected:\n", part, wrong
    for first in range(0, 6 * count, 6):
        passage = " ".join(long[first : first + 6])
        yield "extract", f"{passage}\n\nThe most important sentences:\n", " ".join(_SENTENCE.split(passage)[::3]), ""
        yield "prose", passage, " ".join(long[first + 6 : first + 12]), ""


def _spoiled(word: str, rng: random.Random) -> str:
    return _MISTAKES.get(word, word) if rng.random() < _SPOILED else word
