"""`forerun bench rehearse`: planners on drafts that were recorded once, by clocks that are made up.

The target writes every text, and behind each of its tokens the drafter drafts, whatever a planner would have asked for.
Planners are then told of what the recorded drafts would have brought, cut to what they ask for, in loads of so many
clients each of which asks anew when its text has ended. A step takes what a table says; planners see that with noise,
and what counts is without. So thousands of steps pass in a second, and planners are told apart to some thousandths,
where runs by the clock differ by a tenth from each other. A ratio is that of the same texts and the same noise.
Does not: charge for a planner's own work; know drafters that learn from what became of their drafts, or draws.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.paper import paper
from forerun.bench.planners import ratio
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.trees import shown
from forerun.bench.workloads import Item
from forerun.build import setup_for
from forerun.config import choose
from forerun.drafters.contract import Drafter
from forerun.drafting.worth import likeliest, reach
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.planners import PLANNERS
from forerun.planners.contract import Planner, Spent
from forerun.rng import CounterRng
from forerun.types import Bar, Context, Costs, Draft, Emission, Floats, Sampling, Setup, Turn

PLAIN = "fixed:nodes=0"
MAX_TOKENS = 128
MOST, LEAST = 16, 0.03  # nodes of a recorded draft, and the chance that each of them has
WROTE = Emission(0, "")
ROOM = 1 << 16  # rows of a step


@dataclass(frozen=True)
class Clock:
    """What the parts of a step take, in microseconds."""

    rows: Sequence[int]  # of one pass, ascending,
    passes: Sequence[float]  # and what it takes,
    request: float  # each of its requests that much more;
    prompt: float  # a token of a prompt in it
    beside: float  # all else,
    beside_request: float  # for each request
    level: float  # a level of drafts,
    level_request: float  # for each request that drafts,
    begin_request: float  # whose first level takes that much more,
    unread: float  # and each token that its drafter has not read yet

    @property
    def costs(self) -> Costs:
        """Seconds of passes for one request, as a planner may ask."""
        return Costs(tuple(self.rows), tuple(1e-6 * (took + self.request) for took in self.passes))

    def running(self, requests: int, rows: int, reading: int) -> float:
        """Seconds of a pass; `reading`: further rows, of prompts."""
        return self.costs.of(rows) + 1e-6 * (self.request * (requests - 1) + self.prompt * reading)

    def around(self, requests: int) -> float:
        """Seconds of all but pass and drafts."""
        return 1e-6 * (self.beside + self.beside_request * requests)

    def drafting(self, requests: int, levels: int, unread: int) -> float:
        """Seconds of the drafts of so many requests, with what the engine does for them."""
        own = self.begin_request * requests + (self.level + self.level_request * requests) * levels
        return 1e-6 * (own + self.unread * unread) if requests else 0.0


CLOCKS = {  # the bundled pair on two cores of a Zen 3, as it was measured; and a target whose rows are nearly free
    "dear": Clock((1, 2, 4, 8, 16, 64), (620, 700, 1050, 1700, 3500, 13500), 50, 170, 60, 40, 130, 13, 22, 6),
    "cheap": Clock((1, 2, 4, 8, 16, 64), (7000, 7050, 7200, 7900, 11500, 41000), 60, 500, 150, 40, 40, 5, 9, 3),
}


@dataclass(frozen=True)
class Order:
    """What is to be played."""

    requests: Sequence[int] = (1, 2, 4, 8, 16)  # clients
    settings: Sequence[str] = ("auto",)  # planners
    clock: str = "dear"
    answers: int = 192  # of a load
    repeats: int = 4  # loads, of other texts in another order
    noise: float = 1.0  # times as much as is usual on a shared machine
    wrong: bool = False  # no draft comes true
    prompts: int = 32  # per category
    categories: Sequence[str] = workloads.OWN
    data: Path | None = None


@dataclass(frozen=True)
class Text:
    """One that the target wrote, and behind each of its tokens the draft of what comes then."""

    prompt: int  # tokens
    tokens: Sequence[int]
    drafts: Sequence[Draft]


@dataclass(eq=False)
class Client:
    """A request that is being answered."""

    context: Context
    tokens: list[int]  # those of the context
    text: Text
    written: int = 0
    pending: int = 0  # tokens that the target has not read
    read: int = 0  # that the drafter has

    @property
    def left(self) -> int:
        """Tokens of the text that are not written."""
        return len(self.text.tokens) - self.written


@dataclass
class Noise:
    """By which factors steps take longer or shorter: jitter, a machine that drifts, and now and then a halt."""

    luck: np.random.Generator
    times: float  # as much as usual
    drift: float = field(init=False, default=0.0)

    def of(self, seconds: float) -> Iterator[float]:
        """Factors of the parts of one step."""
        kept = exp(-seconds / 0.4)
        self.drift = kept * self.drift + sqrt(1 - kept * kept) * self.luck.normal(0, 0.1 * self.times)
        while True:
            held_up = self.luck.uniform(0.5, 3) if self.luck.random() < 0.01 * self.times else 0.0
            yield exp(self.drift + self.luck.normal(0, 0.06 * self.times)) * (1 + held_up)


def record(items: Sequence[Item], plain: LLM, drafter: Drafter, sampling: Sampling) -> list[Text]:
    """The target's own texts, and a large draft behind each of their tokens."""
    found: list[Text] = []
    for number, item in enumerate(track(items, "texts", console=Console(stderr=True))):
        plain.engine.add(item.tokens, sampling)
        written: list[int] = []
        while plain.engine.busy:
            written += [one.token for event in plain.engine.step() for one in event.emissions]
        tokens = list(item.tokens)
        context = Context(number, tokens, len(tokens), sampling, CounterRng(0))
        context = replace(context, state=drafter.start(context))
        drafts: list[Draft] = []
        for token in written:
            drafts += drafter.propose([context], [MOST])
            tokens.append(token)
        drafter.stop(context)
        found.append(Text(len(item.tokens), tuple(written), drafts))
    return found


@dataclass
class Rehearsal:
    """A planner that serves clients."""

    planner: Planner
    bar: Bar
    clock: Clock
    noise: Noise
    wrong: bool = False
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0  # steps with drafts

    def serve(self, texts: list[Text], clients: int, sampling: Sampling) -> None:
        """All of them, so many at a time."""
        running, asked = list[Client](), 0
        while texts or running:
            while texts and len(running) < clients:
                text, asked = texts.pop(), asked + 1
                tokens = [0] * text.prompt
                context = Context(asked, tokens, text.prompt, sampling, CounterRng(0))
                running.append(Client(context, tokens, text, pending=text.prompt))
            self._step(running)
            running = [client for client in running if client.left]

    def _step(self, running: Sequence[Client]) -> None:
        batch = [client.context for client in running]
        shares = self.planner.share(batch, ROOM)
        budgets = [min(share, client.left - 1) for share, client in zip(shares, running, strict=True)]
        drafts, drafting = self._drafts(running, budgets)
        nodes = sum(map(len, drafts))
        reading = sum(client.pending - 1 for client in running)
        spent = self.clock.running(len(running), len(running) + nodes, reading), self.clock.around(len(running))
        turns = [self._turn(client, draft) for client, draft in zip(running, drafts, strict=True)]
        seconds = drafting + sum(spent)
        made, ran, around = (
            part * factor for part, factor in zip((drafting, *spent), self.noise.of(seconds), strict=False)
        )
        self.planner.observe(batch, drafts, turns, Spent(made, ran, len(running) + nodes + reading, around))
        self.tokens += sum(len(turn.emissions) for turn in turns)
        self.seconds += seconds
        self.steps += 1
        self.drafted += any(budgets)

    def _drafts(self, running: Sequence[Client], budgets: Sequence[int]) -> tuple[list[Draft], float]:
        """What is verified, and the seconds that it took to make what the planner asked for."""
        drafts, asked, unread = [Draft()] * len(running), [i for i, budget in enumerate(budgets) if budget > 0], 0
        if not asked:
            return drafts, 0.0
        for i in asked:
            client = running[i]
            unread, client.read = unread + len(client.tokens) - client.read, len(client.tokens)
            drafts[i] = self._asked(client.text.drafts[client.written], budgets[i])
        levels = max(1, *(draft.depth for draft in drafts))
        made = self.planner.cut([running[i].context for i in asked], [drafts[i] for i in asked])
        for i, draft in zip(asked, made, strict=True):
            drafts[i] = draft
        return drafts, self.clock.drafting(len(asked), levels, unread - len(asked))

    def _asked(self, draft: Draft, budget: int) -> Draft:
        """The part of a recorded draft that a drafter would have made."""
        if draft.confidence is None:
            return draft.only(range(min(len(draft), budget)))
        worth, bar = reach(draft, draft.confidence), self.bar.chance if self.bar.heeded else 0.0
        return draft.only(sorted(node for node in likeliest(worth, budget) if worth[node] >= bar))

    def _turn(self, client: Client, draft: Draft) -> Turn:
        """What one request wrote."""
        coming, path = client.text.tokens[client.written :], list[int]()
        while not self.wrong and len(path) < client.left - 1:
            below = draft.children(path[-1] if path else -1)
            node = next((one for one in below if draft.tokens[one] == coming[len(path)]), None)
            if node is None:
                break
            path.append(node)
        keep = (*range(client.pending), *(client.pending + node for node in path))
        client.tokens += [0] * (len(path) + 1)
        client.written, client.pending = client.written + len(path) + 1, 1
        client.read += len(path) if draft else 0
        return Turn((WROTE,) * (len(path) + 1), keep, len(draft), draft.depth)


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    if order.clock not in CLOCKS:
        raise ConfigError(f"there is no clock {order.clock!r}; choose one of {', '.join(CLOCKS)}.")
    for planner in order.settings:
        choose(PLANNERS, planner)  # what is spelled wrong is refused before anything is played
    drawn = Sampling(**{"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, **sampling})
    if not drawn.greedy:
        raise ConfigError("recorded drafts say nothing of tokens that are drawn; leave --temperature at 0.")
    keywords = {"drafter": "draft-model", **config}
    plain, notes = open_plain({**keywords, "max_requests": 1})
    room = plain.engine.limits.context_length - (drawn.max_tokens or MAX_TOKENS) - MOST
    load = workloads.encode(workloads.load(order.categories, order.prompts, order.data), plain.tokenizer, room)
    setup = setup_for(plain.config, plain.model, plain.tokenizer)
    drafter = setup.open_drafter(keywords["drafter"], setup)
    heeded, setup.bar.chance = setup.bar.heeded, LEAST
    learns = bool(drafter.watches or drafter.hidden)  # from steps, of which there are none
    texts = [] if learns else record(load.items, plain, drafter, drawn)
    if not any(any(text.drafts) for text in texts):
        raise ConfigError(f"drafter {keywords['drafter']!r} drafts nothing from texts alone; name another one.")
    told = {"max_requests": max(order.requests), "drafter": drafter.facts}
    setup = replace(setup, **told, costs=lambda: CLOCKS[order.clock].costs)
    return {
        "title": "Planners on recorded drafts, by a made-up clock",
        "benchmark": "rehearse",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, None),
        "settings": {
            "drafter": keywords["drafter"],
            "clock": {order.clock: asdict(CLOCKS[order.clock])},
            "noise": order.noise,
            "wrong": order.wrong,
            "texts": len(texts),
            "answers": order.answers,
            "repeats": order.repeats,
            "sampling": asdict(drawn),
        },
        "cases": [
            case
            for clients in track(order.requests, "clients", console=Console(stderr=True))
            for case in cases(order, clients, texts, setup, (drawn, heeded))
        ],
        "notes": [*notes, *load.notes],
    }


def cases(
    order: Order, clients: int, texts: Sequence[Text], setup: Setup, told: tuple[Sampling, bool]
) -> list[dict[str, Any]]:
    """So many clients: every planner beside plain decoding of the same texts."""
    found = {
        name: [play(name, order, texts, setup, (clients, number, *told)) for number in range(order.repeats)]
        for name in dict.fromkeys((PLAIN, *order.settings))
    }
    return [
        {
            "requests": clients,
            "planner": name,
            "tokens_per_step": sum(one.tokens for one in played) / sum(one.steps for one in played) / clients,
            "drafted_share": sum(one.drafted for one in played) / sum(one.steps for one in played),
            "over_plain": ratio(_rates(played), _rates(found[PLAIN])),
        }
        for name, played in found.items()
    ]


def play(
    planner: str, order: Order, texts: Sequence[Text], setup: Setup, told: tuple[int, int, Sampling, bool]
) -> Rehearsal:
    """One load, from the first step of a new planner."""
    (clients, number, sampling, heeded), chosen = told, choose(PLANNERS, planner)
    luck, noise = (np.random.default_rng((number, part)) for part in range(2))
    bar, drawn = Bar(heeded=heeded), luck.integers(len(texts), size=order.answers)
    member = chosen.member(chosen.options, replace(setup, bar=bar))
    rehearsal = Rehearsal(member, bar, CLOCKS[order.clock], Noise(noise, order.noise), order.wrong)
    rehearsal.serve([texts[number] for number in drawn], clients, sampling)
    return rehearsal


def _rates(played: Sequence[Rehearsal]) -> Floats:
    return np.array([one.tokens / one.seconds for one in played])


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("clients", "planner", "tokens/step", "steps with drafts", "over plain decoding"):
        table.add_column(name, justify="left" if name == "planner" else "right")
    for case in report["cases"]:
        figures = f"{case['tokens_per_step']:.2f}", f"{case['drafted_share']:.0%}"
        table.add_row(str(case["requests"]), case["planner"], *figures, shown(case["over_plain"]))
    paper().print(table)
