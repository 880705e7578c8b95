"""What searches bring: the best span of a prompt, samples by the law that a constraint leaves, required phrases.

Does not: time anything; a search reads more than plain decoding does, which `forerun bench` counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from forerun.bench import workloads
from forerun.bench.constrained import PLAIN, STORIES
from forerun.bench.figures import Beside
from forerun.llm import LLM, Result
from forerun.models.contract import Model
from forerun.models.toy import ToyModel
from forerun.quantize import one_pass
from forerun.testing.exhaustive import distance
from forerun.testing.laws import conditional, law_after
from forerun.testing.toy import Tokens, Toy
from forerun.types import Constraint, Sampling

LONGEST = 8  # tokens of a span
PROMPT: Tokens = (0, 1)  # of toys
WISH = Sampling(max_tokens=3, constraint=Constraint("choice", "aab,abb,baa,bcc,cab,cca"))
PHRASES = (("dog", "park"), ("mom", "cake"), ("rain", "house"), ("bird", "tree"))
BEAMS = 8
NEAR = 1e-3  # nats, between a tree's pass and one of its own


@dataclass(frozen=True)
class Order:
    """How much is searched."""

    prompts: int = 8  # per category, in which spans are sought
    room: int = 64  # tokens of each, its last ones
    past: Sequence[int] = (0, 1, 4, 16, 64)  # samples before the one whose law is taken
    toys: int = 4
    phrases: Sequence[tuple[str, ...]] = PHRASES
    length: int = 48  # tokens of a story


@dataclass(frozen=True)
class Span:
    """Logarithms of the probabilities that a text begins with a span, and that it is this span."""

    begun: float
    whole: float


def measure(plain: LLM, order: Order) -> Iterator[Beside]:
    """exact-extract, asap-gad and dynamic-beam-allocation."""
    yield from spans(plain, order)
    yield from samples(order)
    yield from beams(plain, order)


def spans(plain: LLM, order: Order) -> Iterator[Beside]:
    """The span that is found, beside that of greedy choices; and whether it is the best of all."""
    items = workloads.encode(
        workloads.load(workloads.OWN, order.prompts), plain.tokenizer, plain.engine.limits.context_length
    ).items
    prompts = [item.tokens[-order.room :] for item in items]
    found = _deciding(plain, f"exact-extract:longest={LONGEST}").generate(
        prompts, Sampling(temperature=0, max_tokens=LONGEST + 1)
    )
    laws = [scored(plain.model, prompt) for prompt in prompts]
    greedy = [law[chosen(law)].whole for law in laws]
    exact = [law[result.tokens[:-1]].whole for law, result in zip(laws, found, strict=True)]
    best = [max(span.whole for span in law.values()) for law in laws]
    work, over = "spans of prompts", f"{len(prompts)} prompts, {sum(map(len, laws))} spans"
    yield Beside.means("exact-extract", work, "log-likelihood of the span", (greedy, exact), over)
    right = [[abs(a - b) < NEAR for a, b in zip(side, best, strict=True)] for side in (greedy, exact)]
    yield Beside.means("exact-extract", work, "share that is the best of all", right, over)


def _deciding(plain: LLM, decoder: str) -> LLM:
    return LLM(plain.model, plain.tokenizer, **{**PLAIN, "decoder": decoder})


def scored(model: Model, prompt: Tokens) -> dict[Tokens, Span]:
    """Every span of a prompt that may be an answer, by reading on from the prompt's end."""
    found, ends = dict[Tokens, Span](), list(model.info.eos)
    for at in range(len(prompt)):
        path = prompt[at : at + LONGEST]
        stop = next((i for i, token in enumerate(path) if token in ends), len(path))
        with torch.inference_mode():
            logs = one_pass(model, (*prompt, *path), len(path) + 1).double().log_softmax(-1)
        begun = accumulate(float(row[token]) for row, token in zip(logs, path[:stop], strict=False))
        for size, cost in enumerate(begun, 1):
            found[path[:size]] = Span(cost, cost + float(logs[size, ends].max()))
    return found


def chosen(law: Mapping[Tokens, Span]) -> Tokens:
    """The span of greedy choices: the likeliest token that goes on in the prompt, or the end where that is likelier."""
    path: Tokens = ()
    while True:
        longer = [other for other in law if other[:-1] == path]
        best = max(longer, key=lambda other: law[other].begun, default=path)
        if not longer or (path and law[path].whole >= law[best].begun):
            return path
        path = best


def samples(order: Order) -> Iterator[Beside]:
    """Distance to the model's law given the constraint, by enumeration: with masks alone, and as samples add up."""
    models = [ToyModel(3, seed) for seed in range(order.toys)]
    toys = [(model, conditional(model, PROMPT, WISH)) for model in models]
    for past in order.past:
        far = [
            [distance(law_after(Toy(decoder=decoder, model=model), PROMPT, WISH, past), law) for model, law in toys]
            for decoder in ("autoregressive", "asap-gad")
        ]
        work = f"behind {past} sample{'s' * (past != 1)}"
        yield Beside.means(
            "asap-gad", work, "total variation to the law given the constraint", far, f"{len(toys)} toys"
        )


def beams(plain: LLM, order: Order) -> Iterator[Beside]:
    """Phrases that must occur, and how likely the text is: beside a beam search that does not know of them."""
    sampling, name = Sampling(temperature=0, max_tokens=order.length, ignore_eos=True), "dynamic-beam-allocation"
    free = _deciding(plain, f"{name}:beams={BEAMS}").generate(STORIES, sampling)
    present: tuple[list[bool], list[bool]] = [], []
    likely: tuple[list[float], list[float]] = [], []
    for phrases in order.phrases:
        held = _deciding(plain, f"{name}:beams={BEAMS},phrases=[{','.join(phrases)}]").generate(STORIES, sampling)
        for side, results in enumerate((free, held)):
            present[side].extend(phrase in result.text for result in results for phrase in phrases)
            likely[side].extend(likelihood(plain.model, result) for result in results)
    over = f"{len(likely[0])} texts"
    yield Beside.means(name, "stories", "share of phrases that occur", present, over)
    yield Beside.means(name, "stories", "log-likelihood of a token", likely, over)


def likelihood(model: Model, result: Result) -> float:
    """Nats per token."""
    output = torch.tensor(result.tokens)
    with torch.inference_mode():
        logs = one_pass(model, (*result.prompt_tokens, *result.tokens)[:-1], len(output)).double().log_softmax(-1)
    return float(logs.gather(1, output[:, None]).mean())
