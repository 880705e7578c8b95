"""`forerun replay`: what drafters are worth on texts that are already written; without a target.

A drafter's real contract is driven as if greedy decoding had written exactly this text: it is told the prompt, asked
for a draft, and told the path of its draft that the text follows. So tokens per step are those of a greedy target that
writes the text. A text comes from a file: JSON lines with `prompt` and `output` (or both as token ids, as `forerun
generate --json` writes them), and `category` and `prediction` where there are any; or plain text, whose beginning is
the prompt. Texts come in the order of the files, one at a time, to one drafter: what it learns from requests, it keeps.
Microseconds are the processor's own, of this thread: other programs do not count, nor do threads of a model.
Does not: run what looks at logits or hidden states, which nobody has here; sample; say what a pass costs.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from time import perf_counter, thread_time_ns
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine
from forerun.bench.paper import paper
from forerun.build import setup_for
from forerun.caches.contract import Cache
from forerun.config import Config, choose
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError
from forerun.models.contract import Model, ModelInfo
from forerun.models.tokenizer import FolderTokenizer, Tokenizer
from forerun.rng import CounterRng
from forerun.types import (
    Context,
    Costs,
    Draft,
    KVLayout,
    Need,
    Outcome,
    Output,
    Pass,
    PassOutput,
    Sampling,
    Setup,
    Verdict,
    Work,
)

CONVENTION = "tokens per step: accepted + 1 per target pass, bonus included; times are of drafting alone"
ALL = "all"
_BEGINNING = 0.1  # of a plain text is its prompt
_UNKNOWN = frozenset({Need.LOGITS, Need.HIDDEN_STATES})
_GREEDY = Sampling(temperature=0.0)
FREE = Costs((1, 2), (0.0, 0.0))
_NOTHING = Draft()
_UNKNOWN_TOKEN = -1


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    files: Sequence[Path] = ()
    drafters: Sequence[str] = ("ngram",)
    nodes: int = 8  # of a draft, at most
    tokenizer: str = "reference"


@dataclass(frozen=True)
class Record:
    """One request and what was written for it."""

    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    prediction: tuple[int, ...] = ()


@dataclass
class Tally:
    """What became of the drafts of some texts."""

    texts: int = 0
    tokens: int = 0
    steps: int = 0
    drafts: int = 0  # that were not empty
    nodes: int = 0
    accepted: int = 0
    propose_ns: int = 0
    observe_ns: int = 0
    pass_ns: float = 0  # what the target's passes would take; 0 where that is not known

    def add(self, other: "Tally") -> None:
        """Count another one in."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    def figures(self) -> dict[str, Any]:
        """As the report names them."""
        steps, tokens = max(self.steps, 1), max(self.tokens, 1)
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": self.tokens / steps,
            "accepted_per_step": self.accepted / steps,
            "nodes_per_step": self.nodes / steps,
            "steps_with_draft": self.drafts / steps,
            "acceptance_rate": self.accepted / max(self.nodes, 1),
            "propose_us_per_step": self.propose_ns / 1e3 / steps,
            "observe_us_per_step": self.observe_ns / 1e3 / steps,
            "us_per_token": (self.propose_ns + self.observe_ns) / 1e3 / tokens,
            "pass_us_per_token": self.pass_ns / 1e3 / tokens,
        }


class _Absent(Model):
    """Stands for the target while drafters are built."""

    def __init__(self, vocab: int) -> None:
        layout = KVLayout((), (), torch.float32, torch.device("cpu"))
        self.info = ModelInfo("no model", vocab, 1 << 20, 0, 0, layout)

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        raise ConfigError("a replay has no target, and a drafter asked for a pass; measure it with forerun bench.")


def open_tokenizer(name: str) -> Tokenizer:
    """That of a model, or of a folder without one."""
    folder = Path(name)
    return FolderTokenizer(folder) if (folder / "tokenizer.json").is_file() else Tokenizer.from_folder(name)


def read(files: Iterable[Path], tokenizer: Tokenizer) -> Iterator[Record]:
    """Every text of every file. Raises ConfigError for what is none."""
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl":
                yield from (_row(json.loads(line), path.stem, tokenizer) for line in text.splitlines() if line.strip())
            else:
                yield plain(text, path.stem, tokenizer)
        except UnicodeDecodeError as problem:
            message = f"{path} is not UTF-8 (at byte {problem.start})"
            raise ConfigError(f"{message}; convert it, as with iconv -t UTF-8.") from problem
        except (OSError, ValueError, LookupError, TypeError) as problem:
            remedy = "give JSON lines with prompt and output, or a plain text"
            raise ConfigError(f"{path} cannot be replayed ({problem!r}); {remedy}.") from problem


def _row(row: dict[str, Any], category: str, tokenizer: Tokenizer) -> Record:
    if "tokens" in row:
        parts = [tuple(map(int, row.get(name, ()))) for name in ("prompt_tokens", "tokens", "prediction_tokens")]
    else:
        parts = [tuple(tokenizer.encode(row["prompt"]))]
        parts += [tuple(tokenizer.encode_within(row.get(name, ""))) for name in ("output", "prediction")]
    return Record(row.get("category", category), *parts)


def plain(text: str, category: str, tokenizer: Tokenizer) -> Record:
    """A text whose beginning is the prompt."""
    tokens = tuple(tokenizer.encode(text))
    start = max(1, int(_BEGINNING * len(tokens)))
    return Record(category, tokens[:start], tokens[start:])


def open_drafter(spelled: str, vocab: int, tokenizer: Tokenizer) -> Drafter:
    """The drafter, built without a target. Raises ConfigError where it, or one that it holds, looks at the target's."""

    def opened(spelled: str, given: Setup) -> Drafter:
        choice = choose(DRAFTERS, spelled)
        unknown = sorted(choice.member.facts.needs & _UNKNOWN)
        if unknown:
            message = f"drafter {choice.name!r} looks at the target's {' and '.join(unknown)}"
            raise ConfigError(f"{message}, which a replay does not have; measure it with forerun bench.")
        drafter: Drafter = choice.member(choice.options, given)
        return drafter

    return opened(spelled, replace(setup_for(Config(), _Absent(vocab), tokenizer), open_drafter=opened))


def replay(drafter: Drafter, number: int, record: Record, nodes: int, vocab: int, costs: Costs = FREE) -> Tally:
    """One text, from its prompt to its end."""
    tokens, end = list(record.prompt), len(record.prompt) + len(record.output)
    context = Context(number, tokens, len(tokens), _GREEDY, CounterRng(0), prediction=record.prediction)
    tally, pending, written = Tally(texts=1, tokens=len(record.output)), record.prompt, record.prompt + record.output
    began = thread_time_ns()
    context = replace(context, state=drafter.start(context))
    tally.propose_ns += thread_time_ns() - began
    while len(tokens) < end:
        context.rng.begin(tally.steps, len(tokens))
        budget = min(nodes, end - len(tokens) - 1)
        began = thread_time_ns()
        draft = drafter.propose([context], [budget])[0] if budget > 0 else _NOTHING
        tally.propose_ns += thread_time_ns() - began
        draft.check(vocab, budget)
        outcome = judged(draft, written, len(tokens), pending)
        began = thread_time_ns()
        drafter.observe([context], [outcome])
        tally.observe_ns += thread_time_ns() - began
        count = _count(tally, draft, outcome)
        tally.pass_ns += 1e9 * costs.of(1 + len(draft))
        pending = written[len(tokens) + count - 1 : len(tokens) + count]
        tokens.extend(written[len(tokens) : len(tokens) + count])
    drafter.stop(context)
    return tally


def judged(draft: Draft, written: Sequence[int], at: int, pending: tuple[int, ...]) -> Outcome:
    """What greedy decoding that writes this text makes of a draft."""
    path, node = list[int](), -1
    while True:
        token = written[at + len(path)]
        node = next((child for child in draft.children(node) if draft.tokens[child] == token), -1)
        if node < 0:
            break
        path.append(node)
    past = len(pending)
    parents = (*range(-1, past - 1), *(past + parent for parent in draft.parents))
    work = Work(0, pending + draft.tokens, parents, logits=tuple(range(past - 1, past + len(draft))))
    rows = len(work.logits)
    output = Output(torch.empty(rows, 0), (_UNKNOWN_TOKEN,) * rows, (nan,) * rows)
    return Outcome(work, output, draft, Verdict(tuple(path), token))


def _count(tally: Tally, draft: Draft, outcome: Outcome) -> int:
    """Count a step in; the tokens that it wrote."""
    accepted = len(outcome.verdict.path) if outcome.verdict is not None else 0
    tally.steps += 1
    tally.drafts += len(draft) > 0
    tally.nodes += len(draft)
    tally.accepted += accepted
    return accepted + 1


def race(
    drafters: Sequence[str], records: Sequence[Record], nodes: int, tokenizer: Tokenizer, costs: Costs = FREE
) -> list[dict[str, Any]]:
    """Every drafter on every text: one case per drafter and category, and one of all."""
    vocab = max(tokenizer.vocab_size, 1 + max(max(r.prompt + r.output + r.prediction) for r in records))
    cases: list[dict[str, Any]] = []
    for spelled in drafters:
        drafter, tallies, began = open_drafter(spelled, vocab, tokenizer), dict[str, Tally](), perf_counter()
        for number, record in enumerate(track(records, spelled, console=Console(stderr=True), transient=True)):
            found = replay(drafter, number, record, nodes, vocab, costs)
            for category in (record.category, ALL):
                tallies.setdefault(category, Tally()).add(found)
        seconds = perf_counter() - began
        tallies[ALL] = tallies.pop(ALL)  # last
        shown = tallies if len(tallies) > 2 else {ALL: tallies[ALL]}  # noqa: PLR2004 - one category is all there is
        cases += [{"drafter": spelled, "category": category, **t.figures()} for category, t in shown.items()]
        cases[-1]["tokens_per_minute"] = 60 * tallies[ALL].tokens / seconds
    return cases


def run(order: Order) -> dict[str, Any]:
    """The whole measurement."""
    tokenizer = open_tokenizer(order.tokenizer)
    records = [record for record in read(order.files, tokenizer) if record.output and record.prompt]
    if not records:
        raise ConfigError("there is no text to replay; give files with a prompt and an output each.")
    torch.set_num_threads(1)
    return {
        "title": f"Replay of {len(records)} texts, at most {order.nodes} nodes per step",
        "benchmark": "replay",
        "machine": machine.facts(),
        **machine.circumstances(),
        "settings": {"nodes": order.nodes, "tokenizer": order.tokenizer},
        "convention": CONVENTION,
        "cases": race(order.drafters, records, order.nodes, tokenizer),
        "notes": [],
    }


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], caption=report["convention"], title_justify="left", caption_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name in HEADER[:2] else "right", overflow="fold")
    for case in report["cases"]:
        table.add_row(*(cell.replace("[", "\\[") for cell in cells(case)), end_section=case["category"] == ALL)
    paper().print(table)


HEADER = ("drafter", "category", "texts", "tokens/step", "drafted", "nodes/step", "accepted", "µs: propose + observe")


def cells(case: dict[str, Any]) -> tuple[str, ...]:
    """One row below HEADER."""
    return (
        case["drafter"],
        case["category"],
        str(case["texts"]),
        f"{case['tokens_per_step']:.2f}",
        f"{case['steps_with_draft']:.0%}",
        f"{case['nodes_per_step']:.2f}",
        f"{case['acceptance_rate']:.0%}" if case["nodes_per_step"] else "–",
        f"{case['propose_us_per_step']:.1f} + {case['observe_us_per_step']:.1f}",
    )
