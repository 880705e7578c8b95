"""How often a drafter's tokens would be accepted, measured along the target's own texts: what fixed trees are made of.

The target writes, both models read what it wrote, and at every position there are the target's p, the drafter's q, and
the token that the target took. A chosen token of rank r is right where the target took it; a drawn one is accepted as
rejection sampling would, in expectation over the draws that are made here.
Does not: run a tree; `trees` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forerun.bench.drive import generate
from forerun.bench.workloads import Item
from forerun.engine.runner import ModelRunner
from forerun.llm import LLM
from forerun.look import Traits, traits_of
from forerun.sampling import Shaper
from forerun.trees import disco, specdec_pp
from forerun.types import Floats, Ints, Sampling, Work

RANKS = 8  # of the likeliest tokens, and draws below one node
DEPTHS = 6
ROUNDS = 4  # of draws per position
RESAMPLES = 2000
TINY = 1e-30
EDGES = (0.01, 0.1, 0.4, 0.6, 0.95)  # of q, between which acceptance is told apart
RIDGE = 1.0  # keeps fitted weights small where the data say little


@dataclass(frozen=True)
class Trace:
    """One text, position by position."""

    p: Floats  # [positions, vocab]
    q: Floats  # the same
    ranks: Ints  # of the target's token among the drafter's likeliest, from 0
    traits: Sequence[Traits]


def trace(llm: LLM, second: ModelRunner, item: Item, sampling: Sampling) -> Trace:
    """Let the target write, and both read it."""
    text = generate(llm, [item.tokens], [sampling]).texts[0]
    shaper = Shaper(sampling, (*item.tokens, *text), len(item.tokens))
    first, count = len(item.tokens) - 1, len(text)
    rows = [_rows(runner, (*item.tokens, *text))[first : first + count] for runner in (llm.engine.runner, second)]
    p, q = (shaper.shape(row).numpy() for row in rows)
    own = rows[1].gather(1, torch.tensor(text)[:, None])
    base = torch.softmax(rows[1], -1) if sampling.greedy else torch.from_numpy(q)
    return Trace(p, q, (rows[1] > own).sum(-1).numpy(), [Traits.of(row) for row in traits_of(base).tolist()])


def _rows(runner: ModelRunner, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after every token [tokens, vocab], in a slot that is given back."""
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, len(tokens))
    work = Work(slot, tuple(tokens), logits=tuple(range(len(tokens))))
    rows = runner.run([work])[0].logits.clone()
    runner.cache.close(slot)
    return rows


def by_rank(traces: Sequence[Trace]) -> list[list[float]]:
    """Acceptance of the r-th likeliest token at every depth below accepted ones [DEPTHS, RANKS]."""
    table = []
    for depth in range(DEPTHS):
        hits, seen = np.zeros(RANKS), 0
        for one in traces:
            kept = one.ranks < RANKS
            for at in range(depth, len(kept)):
                if kept[at - depth : at].all():
                    seen += 1
                    hits += np.arange(RANKS) == one.ranks[at]
        table.append((hits / max(seen, 1)).round(4).tolist())
    return table


def by_draw(traces: Sequence[Trace], *, again: bool = False) -> Floats:
    """How often the k-th of RANKS siblings is the accepted one, `again`: drawn with replacement [traces, RANKS]."""
    found = np.zeros((len(traces), RANKS))
    for number, one in enumerate(traces):
        rng = np.random.default_rng(number)  # the same for both kinds
        pairs = list(zip(one.p, one.q, strict=True)) * ROUNDS
        for p, q in pairs:
            found[number] += _draws(p.astype(np.float64), q.astype(np.float64), rng.random(RANKS), again=again)
        found[number] /= max(len(pairs), 1)
    return found


def _draws(p: Floats, q: Floats, numbers: Floats, *, again: bool) -> Floats:
    """The probability that each of RANKS siblings is the accepted one, given what was drawn."""
    found, left = np.zeros(RANKS), 1.0
    for k, number in enumerate(numbers):
        mass = q.cumsum()
        token = min(int(np.searchsorted(mass, number * mass[-1], side="right")), len(q) - 1)
        chance = min(1.0, p[token] / max(q[token], TINY))
        found[k], left = left * chance, left * (1 - chance)
        p = np.maximum(p - q, 0)
        if not again:
            q[token] = 0
        if left <= 0 or not p.sum() > 0 or not q.sum() > 0:
            break
        p, q = p / p.sum(), q / q.sum()
    return found


def siblings(traces: Sequence[Trace]) -> list[str]:
    """What drawing without replacement brings, below one node, in sentences: texts resampled as `trees` does."""
    apart, again = (by_draw(traces, again=again).cumsum(1) for again in (False, True))
    drawn = np.random.default_rng(0).integers(len(traces), size=(RESAMPLES, len(traces)))
    leads, said = apart - again, list[str]()
    for k in (2, 4, 8):
        low, high = np.quantile(leads[drawn, k - 1].mean(1), [0.025, 0.975])
        both = f"{apart[:, k - 1].mean():.1%} drawn without replacement and {again[:, k - 1].mean():.1%} with"
        said.append(
            f"Of {k} siblings one is accepted: {both} (lead {leads[:, k - 1].mean():.2%}, {low:.2%} to {high:.2%})."
        )
    return said


def expected(one: Trace) -> Floats:
    """The acceptance of one drawn token at every position; of the likeliest where the text is greedy [positions]."""
    overlap: Floats = np.minimum(one.p, one.q).sum(-1)
    return overlap


def calibration(traces: Sequence[Trace], seed: int = 0) -> dict[str, Any]:
    """How often drawn tokens are accepted by their q, and how far guesses that only know q are from sum min(p, q)."""
    rng, p, q = np.random.default_rng(seed), *(np.concatenate([getattr(t, n) for t in traces]) for n in ("p", "q"))
    rows = np.repeat(np.arange(len(q)), ROUNDS)
    tokens = (q.cumsum(-1, dtype=np.float64)[rows] < rng.random((len(rows), 1))).sum(-1).clip(max=q.shape[1] - 1)
    own = q[rows, tokens]
    kept, place = np.minimum(1, p[rows, tokens] / np.maximum(own, TINY)), np.digitize(own, EDGES)
    overlap, square = np.minimum(p, q).sum(-1), np.square(q).sum(-1)
    guesses = {"root of the sum of squares": square**0.5, "largest": q.max(-1), "sum of squares": square}
    shares = [float(kept[place == i].mean()) if (place == i).any() else None for i in range(len(EDGES) + 1)]
    return {
        "edges": EDGES,
        "accepted": shares,
        "mean": float(overlap.mean()),
        "squared_error": {name: float(np.square(guess - overlap).mean()) for name, guess in guesses.items()},
    }


def fit(features: Floats, accepted: Floats, steps: int = 50) -> list[float]:
    """Weights of a logistic function from features [n, k] to a probability [n], by Newton's method."""
    weights = np.zeros(features.shape[1])
    for _ in range(steps):
        guess = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (guess - accepted) + RIDGE * weights
        bend = (features * (guess * (1 - guess))[:, None]).T @ features + RIDGE * np.eye(len(weights))
        weights -= np.linalg.solve(bend, slope)
    return [round(float(weight), 4) for weight in weights]


def tables(traces: Sequence[Trace], *, greedy: bool) -> dict[str, Any]:
    """What fixed trees and stopping rules are made of, by the name of the tree."""
    targets = np.concatenate([expected(one) for one in traces])
    simple = np.array([specdec_pp.features(t) for one in traces for t in one.traits])
    placed, repeated = _placed(traces)
    ranks = by_rank(traces)
    return {
        "static": ranks,
        "sequoia": ranks[0] if greedy else by_draw(traces).mean(0).round(4).tolist(),
        "specdec-pp": fit(simple, targets),
        "disco": fit(placed, repeated),
    }


def _placed(traces: Sequence[Trace]) -> tuple[Floats, Floats]:
    """Features and acceptance of every position as the first, second, ... token of a chain that was accepted so far.

    A place further down is rarer: it weighs as much as the chain above it is likely to be accepted.
    """
    rng, features, accepted = np.random.default_rng(0), list[tuple[float, ...]](), list[float]()
    for one in traces:
        chance, place = expected(one), 1
        for t, kept in zip(one.traits, chance.tolist(), strict=True):
            features.append(disco.features(t, place))
            accepted.append(kept)
            place = place + 1 if place < 2 * DEPTHS and rng.random() < kept else 1
    return np.array(features), np.array(accepted)
