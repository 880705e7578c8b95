"""The speed-up benchmark: plain decoding and every drafter on one model, taking turns in one run.

Speed-up is the ratio of two runs of the same prompt in the same round; the median of these ratios is reported with
the middle half of them. Tokens per step count the bonus token: plain decoding is 1.00. Acceptance rate is accepted
nodes over drafted nodes; per position it is the share of drafts at least that deep that were accepted so deep.
Does not: compare models, or hide a slow prompt: all of the output's time counts, the prompt's reading too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from forerun.bench.drive import Clock, Run, generate, turns
from forerun.bench.equality import Difference, Judge, last_logits
from forerun.bench.figures import Spread
from forerun.bench.workloads import Item
from forerun.build import CHOSEN, choose_all
from forerun.config import Config, choose
from forerun.engine.stats import RequestStats
from forerun.llm import LLM
from forerun.types import Sampling

CONVENTION = "tokens per step: accepted + 1 per target pass, bonus included; plain decoding is 1.00"
PLAIN = "plain"
ALL = "all"
_WARM_UP_TOKENS = 16

Advance = Callable[[], None]


@dataclass(frozen=True)
class Entrant:
    """Something that generates, and how its texts are compared with plain decoding's."""

    name: str
    llm: LLM
    compares: bool = True
    why: str = ""  # what is said where texts are not compared


@dataclass(frozen=True)
class Trial:
    """One group of prompts in one round by one entrant."""

    entrant: int
    round: int
    group: int
    category: str
    run: Run


@dataclass(frozen=True)
class Seen:
    """A text that is not plain decoding's."""

    drafter: str
    category: str
    prompt: int
    round: int
    difference: Difference


def entrants(plain: LLM, drafters: Sequence[str], keywords: dict[str, Any], sampling: Sampling) -> list[Entrant]:
    """Plain decoding first, then one entrant per drafter; all share its weights and tokenizer."""
    shared = {name: value for name, value in keywords.items() if name != "model"}
    found = {PLAIN: Entrant(PLAIN, plain)}
    for drafter in drafters:
        other = LLM(plain.model, plain.tokenizer, **{**shared, "drafter": drafter})
        name = drafter
        if drafter == "auto":
            name = choose_all(other.config, {}, plain.model.info.companion).drafter.spelling
        found.setdefault(name, Entrant(name, other, *comparison(other.config, sampling)))
    return list(found.values())


def comparison(config: Config, sampling: Sampling) -> tuple[bool, str]:
    """Whether texts must be plain decoding's, and else why not."""
    chosen = [choose(table, getattr(config, name)) for name, table in CHOSEN.items() if name != "drafter"]
    inexact = [choice.spelling for choice in chosen if not choice.member.facts.exact]
    if inexact:
        return False, f"{inexact[0]} is not exact, so outputs differ from plain decoding's and are not compared"
    if sampling.greedy or any(choice.member.facts.coupled for choice in chosen):
        return True, ""
    return False, "sampled: outputs have plain decoding's distribution, not its tokens, and are not compared"


def groups(items: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """Prompts that run together: at most `size` of one category."""
    by_category: dict[str, list[Item]] = {}
    for item in items:
        by_category.setdefault(item.category, []).append(item)
    return [tuple(held[i : i + size]) for held in by_category.values() for i in range(0, len(held), size)]


@dataclass(frozen=True)
class Race:
    """What is run by whom, and how often."""

    entrants: Sequence[Entrant]
    groups: Sequence[tuple[Item, ...]]
    sampling: Sampling
    repeats: int

    def trials(self, advance: Advance = lambda: None) -> list[Trial]:
        """Warm up, then every round of every group, entrants in alternating order."""
        backwards = [replace(item, tokens=item.tokens[::-1]) for item in self.groups[0]]  # nobody learns a text
        for entrant in self.entrants:
            self._once(entrant, backwards, replace(self.sampling, max_tokens=_WARM_UP_TOKENS))
        found: list[Trial] = []
        for number, group in enumerate(self.groups):
            for round_, order in turns(len(self.entrants), self.repeats):
                for who in order:
                    run = self._once(self.entrants[who], group, self.sampling)
                    found.append(Trial(who, round_, number, group[0].category, run))
                    advance()
        return found

    def _once(self, entrant: Entrant, group: Sequence[Item], sampling: Sampling) -> Run:
        seeds = [(sampling.seed or 0) + item.number for item in group]
        return generate(entrant.llm, [item.tokens for item in group], [replace(sampling, seed=s) for s in seeds])

    def differences(self, trials: Sequence[Trial]) -> list[Seen]:
        """Every text that differs from plain decoding's of the same round."""
        plain = self.entrants[0].llm
        info, engine = plain.model.info, plain.engine
        judge = Judge(last_logits(engine.runner), info.layout.dtype, info.eos, engine.members.guides)
        reference = {(t.group, t.round): t.run for t in trials if t.entrant == 0}
        found: list[Seen] = []
        for trial in trials:
            if trial.entrant and self.entrants[trial.entrant].compares:
                found += self._differing(trial, reference[trial.group, trial.round], judge)
        return found

    def _differing(self, trial: Trial, plain: Run, judge: Judge) -> Iterable[Seen]:
        name, group = self.entrants[trial.entrant].name, self.groups[trial.group]
        for item, expected, text in zip(group, plain.texts, trial.run.texts, strict=True):
            sampling = replace(self.sampling, seed=(self.sampling.seed or 0) + item.number)
            difference = judge.compare(item.tokens, expected, text, sampling)
            if difference is not None:
                yield Seen(name, item.category, item.number, trial.round, difference)


def figures(race: Race, trials: Sequence[Trial], seen: Sequence[Seen]) -> dict[str, dict[str, Any]]:
    """Entrant -> category -> figures; `all` is every category together."""
    plain = {(t.group, t.round): t.run for t in trials if t.entrant == 0}
    table: dict[str, dict[str, Any]] = {}
    for who, entrant in enumerate(race.entrants):
        mine = [t for t in trials if t.entrant == who]
        rows: dict[str, Any] = {}
        for category in [*dict.fromkeys(t.category for t in mine), ALL]:
            chosen = [t for t in mine if category in (t.category, ALL)]
            differing = [s for s in seen if s.drafter == entrant.name and category in (s.category, ALL)]
            pairs = [(plain[t.group, t.round], t.run) for t in chosen]
            rows[category] = {**_figures(pairs), "equality": _equality(race, entrant, chosen, differing)}
        table[entrant.name] = rows
    return table


def _figures(pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    runs, stats = [run for _, run in pairs], RequestStats()
    for run in runs:
        stats.add(run.stats)
    seconds = tuple(sum(parts) for parts in zip(*(run.clock.parts for run in runs), strict=True))
    clock = Clock(sum(run.clock.steps for run in runs), seconds)
    gains = [run.tokens_per_second / plain.tokens_per_second for plain, run in pairs]
    return {
        "speedup": asdict(Spread.of(gains)),
        "tokens_per_second": asdict(Spread.of([run.tokens_per_second for run in runs])),
        "first_token_ms": asdict(Spread.of([1e3 * run.first_token_seconds for run in runs])),
        "tokens": stats.tokens,
        "tokens_per_step": stats.tokens_per_step,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_per_position": list(stats.acceptance_per_position),
        "ms_per_step": clock.ms_per_step(),
        "sources": {name: count / max(stats.tokens, 1) for name, count in sorted(stats.sources.items())},
        "draft_failures": sum(run.draft_failures for run in runs),
    }


def _equality(race: Race, entrant: Entrant, chosen: Sequence[Trial], seen: Sequence[Seen]) -> dict[str, Any]:
    """How many texts are plain decoding's; or why that was not asked."""
    if not entrant.compares:
        return {"compared": False, "why": entrant.why}
    texts = sum(len(race.groups[t.group]) for t in chosen)
    ties = sum(s.difference.kind == "tie" for s in seen)
    return {
        "compared": True,
        "texts": texts,
        "equal": texts - len(seen),
        "ties": ties,
        "divergences": len(seen) - ties,
    }
