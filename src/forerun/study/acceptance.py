"""`forerun study acceptance`: how much every verifier accepts of the same drafts, against the most that any could.

Shapes of a draft, for k nodes side by side or in a row: `iid`, `without` (replacement) and `greedy` (chosen, but the
last) are siblings, of which one can be accepted; a `chain` of k, and a `tree` of k i.i.d. siblings with two below each,
of which paths are. The figure is the expected number of accepted tokens, the bonus token not included; of siblings it
is the acceptance rate. It is exact where the rule has a formula, else the mean over drafts drawn from q, with 1.96
standard errors of that mean over the given pairs; each draft is judged in every way that it can be
(`judging.expected`), a tree, for which these are too many, in one. Drafts of a coupled rule are drawn with the numbers
of its verdict, of which there is then one. The optimum of siblings is exact (without
replacement by quadrature); of a chain it is the expected number of beginnings that min(1, p / q) lets through, over the
same drafts.
Does not: time anything; run a verifier that is not exact against a bound that does not hold for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path as File
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine
from forerun.bench.paper import paper, png, sheet
from forerun.bench.report import as_json
from forerun.files import write_whole
from forerun.rng import CounterRng, Purpose
from forerun.sampling import path_to
from forerun.study import optimum
from forerun.study.judging import expected, seeded
from forerun.study.pairs import Pair, recorded, toys
from forerun.testing import Told
from forerun.types import Dist, Draft, Floats, Sampling, Target
from forerun.verifiers import VERIFIERS
from forerun.verifiers.contract import Verifier

OPTIMUM = "optimum"
SIBLINGS: dict[str, Callable[[Floats, Floats, int], float]] = {  # shape -> its optimum
    "iid": optimum.with_replacement,
    "without": optimum.without_replacement,
    "greedy": optimum.greedy,
}
SHAPES = (*SIBLINGS, "chain", "tree")
ORDERS = (  # what theory claims to accept no less: a rule and a shape, and the other
    (("spectr", "iid"), ("rejection", "iid")),
    (("canonical-multidraft", "iid"), ("spectr", "iid")),
    (("optimal-multidraft", "iid"), ("canonical-multidraft", "iid")),
    (("rejection", "without"), ("rejection", "iid")),
    (("block", "chain"), ("rejection", "chain")),
    (("traversal", "tree"), ("rejection", "tree")),
)
RESAMPLES = 2000
_BELOW = 2  # siblings below each of a tree's first ones
_SURE = 1.96  # standard errors on each side: 95 %
_NOTE = (
    "Of k siblings (iid, without replacement, or greedy: chosen but the last) the share of drafts of which one is"
    " accepted; of a chain of k, and of a tree of k with two below each, tokens. Exact, or ± 95 % where drafts were"
    " drawn. The optimum is that of any exact rule."
)
_UNJUDGED = Dist.point(0)  # p after a leaf, which decides nothing


@dataclass(frozen=True)
class Order:
    """What to compute: pairs of a model, or made up where none is named."""

    model: str | None = None
    temperature: float = 1.0
    law: str = "zipf"
    vocabulary: int = 4096
    pairs: int = 24
    draws: int = 16
    drafts: Sequence[int] = (1, 2, 4, 8)


def known(pair: Pair, draft: Draft) -> Told:
    """p after the nodes of a draft, as far as there is anything to judge."""
    return Told(lambda node: Dist(pair.p(path_to(draft, node))) if draft.children(node) else _UNJUDGED)


def drawn(shape: str, pair: Pair, count: int, seed: int, *, coupled: bool = False) -> Draft:
    """A draft of this shape from the pair's q; `coupled`: with the numbers that p will be drawn with."""
    widths = {"chain": (1,) * count, "tree": (count, _BELOW)}.get(shape, (count,))
    rng, level, draft = CounterRng(seed, coupled=coupled), [-1], Draft((), (), ())
    for depth, width in enumerate(widths):
        first = len(draft)
        for parent in level:
            group = list(_group(shape, pair.q(path_to(draft, parent)), width, Numbers(rng, depth, len(draft))))
            draft = Draft(
                (*draft.tokens, *(token for token, _ in group)),
                (*draft.parents, *[parent] * width),
                (*(draft.q or ()), *(dist for _, dist in group)),
            )
        level = list(range(first, len(draft)))
    return draft


@dataclass(frozen=True, slots=True)
class Numbers:
    """The draws of one group of siblings."""

    rng: CounterRng
    depth: int
    first: int  # node

    def draw(self, dist: Dist, number: int) -> int:
        return self.rng.categorical(dist, Purpose.DRAFT, self.depth, self.first + number)


def _group(shape: str, q: Floats, width: int, numbers: Numbers) -> Iterator[tuple[int, Dist | None]]:
    """Siblings, and what each was drawn from."""
    dist, rest = Dist(q), q.copy()
    for number in range(width):
        if shape == "greedy" and number < width - 1:
            source, token = None, int(rest.argmax())
        else:
            source = Dist(rest / rest.sum()) if shape in ("without", "greedy") else dist
            token = numbers.draw(source, number)
        rest[token] = 0
        yield token, source


def run(order: Order) -> dict[str, Any]:
    """Every rule on every shape and number of drafts."""
    sampling = Sampling(temperature=order.temperature)
    if order.model is None:
        pairs = toys(order.law, order.vocabulary, order.pairs)
    else:
        pairs = recorded(order.model, sampling, order.pairs)
    rules = {name: rule(rule.toy()) for name, rule in VERIFIERS.items() if rule.facts.exact}
    settings = list(product(SHAPES, order.drafts))
    cases: list[dict[str, Any]] = []
    for shape, count in track(settings, "drafts", console=Console(stderr=True), transient=True):
        cases += evaluate(shape, count, pairs, rules, order.draws)
    return {
        "title": "Tokens accepted per draft, bonus not included",
        "benchmark": "acceptance",
        **machine.circumstances(),
        "machine": machine.facts(),
        "pairs": {
            "of": order.model or order.law,
            "vocabulary": len(pairs[0].p(())),
            "count": len(pairs),
            "temperature": order.temperature if order.model else None,
        },
        "draws": order.draws,
        "notes": [f"{len(pairs)} pairs of p and q from {order.model or order.law}. {_NOTE}", *leads(cases)],
        "cases": cases,
    }


def evaluate(
    shape: str, count: int, pairs: Sequence[Pair], rules: dict[str, Verifier], draws: int
) -> Iterator[dict[str, Any]]:
    """One case per rule, and the optimum where there is one."""
    told = {name: _told(rule, shape, count, pairs) for name, rule in rules.items()}
    seen = {name: np.zeros((len(pairs), draws)) for name, exact in told.items() if exact is None}
    bound = np.zeros((len(pairs), draws))
    for (i, pair), turn in product(enumerate(pairs), range(draws) if seen else ()):
        seed = draws * i + turn
        drafts = [drawn(shape, pair, count, seed, coupled=coupled) for coupled in (False, True)]
        for name, values in seen.items():
            draft = drafts[rules[name].facts.coupled]
            values[i, turn] = _accepted(shape, rules[name], draft, known(pair, draft), seed)
        bound[i, turn] = _let_through(pair, drafts[False]) if shape == "chain" else 0
    where = {"shape": shape, "drafts": count}
    for name, exact in told.items():
        yield {**where, "rule": name, **(_sampled(seen[name]) if exact is None else _exact(exact))}
    if (best := SIBLINGS.get("iid" if shape == "chain" and count == 1 else shape)) is not None:
        yield {**where, "rule": OPTIMUM, **_exact([best(pair.p(()), pair.q(()), count) for pair in pairs])}
    elif shape == "chain":
        yield {**where, "rule": OPTIMUM, **_sampled(bound)}


def _accepted(shape: str, rule: Verifier, draft: Draft, target: Target, seed: int) -> float:
    """Expected tokens of this draft; those of one verdict where it is one, or of a tree, where these are too many."""
    once = shape == "tree" or rule.facts.coupled
    return seeded(rule, draft, target, seed) if once else expected(rule, draft, target)


def _told(rule: Verifier, shape: str, count: int, pairs: Sequence[Pair]) -> list[float] | None:
    """What the rule's formula says for every pair, where it has one for this shape."""
    if shape != "iid" and (count > 1 or shape == "tree"):  # one draft alone is drawn in no special way
        return None
    found = [rule.acceptance(pair.p(()), pair.q(()), count) for pair in pairs]
    return None if None in found else [value for value in found if value is not None]


def _let_through(pair: Pair, chain: Draft) -> float:
    """Sum over the chain's beginnings of min(1, p / q)."""
    ratio, total = 1.0, 0.0
    for node, token in enumerate(chain.tokens):
        path = chain.tokens[:node]
        ratio *= float(pair.p(path)[token]) / float(pair.q(path)[token])
        total += min(1.0, ratio)
    return total


def _exact(values: Sequence[float]) -> dict[str, Any]:
    return {"accepted": float(np.mean(values)), "error": 0.0, "how": "exact", "pairs": [round(v, 6) for v in values]}


def _sampled(values: Floats) -> dict[str, Any]:
    """The mean, and how far it may be off for these pairs; draws of one pair are compared among themselves."""
    pairs, draws = values.shape
    spread = np.sqrt(values.var(axis=1, ddof=1).sum() / draws) / pairs if draws > 1 else np.nan
    each = [round(float(value), 6) for value in values.mean(axis=1)]
    return {"accepted": float(values.mean()), "error": _SURE * float(spread), "how": "drawn", "pairs": each}


def leads(cases: Sequence[dict[str, Any]]) -> Iterator[str]:
    """By how much one rule accepts more than another, pair by pair: a sentence per order that theory claims."""
    found = {(c["rule"], c["shape"], c["drafts"]): np.array(c["pairs"]) for c in cases}
    counts = sorted({count for _, _, count in found if count > 1})
    for better, worse in ORDERS:
        known = [(count, found[*better, count] - found[*worse, count]) for count in counts]
        figures = [f"{lead(values)} with {count}" for count, values in known]
        if figures:
            yield f"{' on '.join(better)} over {' on '.join(worse)}: {', '.join(figures)}."


def lead(values: Floats) -> str:
    """The mean of differences, and the middle 95 % of it over resampled pairs."""
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
    return f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def show(found: dict[str, Any]) -> None:
    """A row per shape and number of drafts, a column per rule."""
    table = Table(title=found["title"], caption=found["notes"][0], title_justify="left", caption_justify="left")
    rules = list(dict.fromkeys(c["rule"] for c in found["cases"]))
    for name in ("shape", "k", *rules):
        table.add_column(name, justify="left" if name == "shape" else "right")
    cells = {(c["shape"], c["drafts"], c["rule"]): cell(c) for c in found["cases"]}
    for shape, count in dict.fromkeys((c["shape"], c["drafts"]) for c in found["cases"]):
        table.add_row(shape, str(count), *(cells.get((shape, count, rule), "–") for rule in rules))
    paper().print(table)


def cell(case: dict[str, Any]) -> str:
    """The figure, with its error where it has one."""
    error = f" ±{case['error']:.3f}" if case["how"] != "exact" else ""
    return f"{case['accepted']:.3f}{error}"


def write(found: dict[str, Any], folder: File) -> list[File]:
    """acceptance.json and acceptance.png in `folder`."""
    contents = {"acceptance.json": as_json(found).encode() + b"\n", "acceptance.png": plot(found)}
    for name, content in contents.items():
        write_whole(folder / name, content, "free space there, or name another folder with --out")
    return [folder / name for name in contents]


def plot(found: dict[str, Any]) -> bytes:
    """One panel per shape: accepted tokens over the number of drafts; a PNG."""
    figure = sheet(4 * len(SHAPES), 4.5)
    panels = figure.subplots(1, len(SHAPES))
    for axes, shape in zip(panels, SHAPES, strict=True):
        mine = [c for c in found["cases"] if c["shape"] == shape]
        for rule in dict.fromkeys(c["rule"] for c in mine):
            line = [c for c in mine if c["rule"] == rule]
            axes.errorbar(
                [c["drafts"] for c in line],
                [c["accepted"] for c in line],
                [c["error"] for c in line],
                label=rule,
                linestyle="--" if rule == OPTIMUM else "-",
                color="black" if rule == OPTIMUM else None,
                capsize=2,
            )
        axes.set_title(shape)
        axes.set_xlabel("k")
    panels[0].set_ylabel("tokens accepted")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return png(figure)
