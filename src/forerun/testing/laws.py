"""The laws that the contracts stand for, one function each.

A law raises LawError with a sentence. Laws run on toys, through the real engine; `checks.py` says whom each binds.
Does not: measure speed, or show that a method is of any use; that is what docs/results is for.
"""

import inspect
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, cast

import numpy as np
import torch

from forerun.build import guides_for, setup_for
from forerun.config import Choice, Config, choose
from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError, RequestError
from forerun.models.contract import Model
from forerun.models.toy import ToyModel
from forerun.registry import Registry
from forerun.rng import CounterRng, Purpose, Rng
from forerun.sampling import path_to
from forerun.testing.exhaustive import ExhaustiveRng, Table, distance, outcomes
from forerun.testing.reference import Reference
from forerun.testing.toy import Ask, Rig, Tokens, Told, Toy
from forerun.types import Bools, Constraint, Context, Dist, Draft, Floats, Outcome, Sampling, Verdict
from forerun.verifiers.contract import Verifier

TIGHT = 1e-9  # float64 toys: what rounding leaves
PROMPT: Tokens = (0, 1, 2, 0, 1)  # repeats itself, so that lookup drafters find something
LENGTH = 3
LONG = 8  # tokens that leave room for a larger draft
SAMPLINGS = {
    "plain": Sampling(max_tokens=LENGTH),
    "shaped": Sampling(  # what depends on the drafted path too: counts of what is written, not only of the prompt
        temperature=0.7, top_k=2, repetition_penalty=1.3, frequency_penalty=0.6, max_tokens=LENGTH
    ),
}
CONSTRAINED = Sampling(max_tokens=LENGTH, constraint=Constraint("choice", "ab,abca,bb,ca,cbc"))  # ends within drafts
COMPANY = (Ask((2, 0), Sampling(max_tokens=LENGTH, seed=1)),)  # of a request whose budgets depend on such
TOGETHER = 32  # runs that share an engine's steps; more is faster

reference_of = lru_cache(maxsize=16)(Reference)  # many laws ask the same of few targets


class LawError(AssertionError):
    """A member breaks a law of its contract."""


def require(holds: object, sentence: str) -> None:
    """Raise LawError unless it holds."""
    if not holds:
        raise LawError(sentence)


# Said and spelled


def is_documented(member: type[Any]) -> None:
    """A first sentence; a paper or a reason; the limits, in a sentence that begins "Does not:"."""
    text = inspect.getdoc(sys.modules[member.__module__]) or ""
    own = inspect.getdoc(member) or ""
    where = f"{member.__module__}.{member.__name__}"
    for name, doc in (("the file", text), ("the class", own)):
        require(doc.strip(), f"{name} of {where} has no docstring; say in one sentence what the method is.")
        require(doc.strip().splitlines()[0].endswith((".", ":")), f"{name} of {where} does not begin with a sentence.")
    require("Does not:" in text + own, f"{where} does not say its limits; add a sentence that begins 'Does not:'.")
    known = member.facts.paper is None or any(char.isdigit() for char in member.facts.paper)
    require(known, f"{where} names the paper {member.facts.paper!r}; give an arXiv number, or an author and a year.")


def is_spelled(registry: Registry, name: str) -> None:
    """Options survive the way to text and back; what is unknown is refused with the nearest that is known."""
    member = registry[name]
    for options in (member.toy(), *_variants(member.toy())):
        spelling = Choice(registry.family, name, member, options).spelling
        back = choose(registry, spelling).options
        require(back == options, f"{registry.family} {spelling!r} is read back as {back}; give every option one type.")
    known = [f.name for f in fields(member.Options)]
    for wrong, near in [("no_such_option", None), *((f"{option}x", option) for option in known)]:
        if wrong in known:
            continue
        sentence = _refusal(registry, f"{name}:{wrong}=1")
        said = wrong in sentence and name in sentence and (near is None or f"did you mean {near!r}" in sentence)
        require(said, f"{registry.family} {name!r} takes the unknown option {wrong!r}, or says only: {sentence!r}.")


def _variants(options: Any) -> Iterator[Any]:  # noqa: ANN401 - a member's own Options
    """The options with one field changed at a time."""
    for f in fields(options):
        value = getattr(options, f.name)
        changed = {bool: not value, str: f"{value},(x)"}.get(type(value))
        if changed is None and isinstance(value, (int, float)):
            changed = value + 1 if isinstance(value, int) else value + 0.25
        try:
            yield replace(options, **{f.name: changed}) if changed is not None else options
        except ConfigError:  # the option knows its limits, and this is beyond them
            continue


def _refusal(registry: Registry, spelled: str) -> str:
    try:
        choose(registry, spelled)
    except ConfigError as error:
        return str(error)
    return ""


# Drafts


class _Recorder(Drafter):
    """Passes everything on, and writes down what was drafted and what became of it."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.facts, self.hidden = inner, inner.facts, inner.hidden
        self.log: dict[int, list[tuple[Any, ...]]] = {}

    def start(self, context: Context) -> Any:  # noqa: ANN401 - the drafter's own
        self.log[context.id] = []
        return self.inner.start(context)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        drafts = self.inner.propose(batch, budgets)
        for context, draft in zip(batch, drafts, strict=True):
            self.log[context.id] += [("draft",), *(_told(draft, node) for node in range(len(draft)))]
        return drafts

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            if outcome.verdict is not None:
                self.log[context.id].append(("verdict", outcome.verdict.path, outcome.verdict.token))
        self.inner.observe(batch, outcomes)

    def stop(self, context: Context) -> None:
        self.inner.stop(context)


def _told(draft: Draft, node: int) -> tuple[Any, ...]:
    """A node as it is written down: where it hangs and what is said of it; then its token, and what q says of that."""
    guess = draft.confidence[node] if draft.confidence is not None else 0.0
    drawn = draft.q is not None and draft.q[node] is not None
    place = ("node", draft.parents[node], round(guess, 9) if drawn else 0.0)
    return (*place, draft.tokens[node], draft.drawn_from(node).prob(draft.tokens[node]))


def a_draft_is_a_draft(toy: Toy, prompt: Tokens = PROMPT, *, first: bool = False) -> None:
    """A tree within budget, and every token comes exactly as often as the q that it reports says.

    By enumeration, node after node: among the runs with the same past in which such a node hangs there, the share of
    each token is its q. So the shape may itself be random, but no token may decide whether it is drafted; and a drawn
    token's confidence is the same whichever token it became, for planners cut by it. `first`: only the first draft,
    which may be larger than those of a short text.
    """
    for name, sampling in SAMPLINGS.items():
        asked = replace(sampling, max_tokens=LONG) if first else sampling
        histories = outcomes(lambda rngs, s=asked: _histories(toy, prompt, s, rngs, first=first), TOGETHER)  # type: ignore[misc]
        mass: Counter[tuple[Any, ...]] = Counter()
        for history, weight in histories.items():
            past = cast("tuple[Any, ...]", history)
            for end in range(len(past) + 1):
                mass[past[:end]] += weight  # type: ignore[assignment] # a Counter adds floats as well
        places: Counter[tuple[Any, ...]] = Counter()
        for past, weight in mass.items():
            if past and past[-1][0] == "node":
                places[*past[:-1], past[-1][:3]] += weight
        for past, weight in mass.items():
            if past and past[-1][0] == "node":
                share, (*_, token, reported) = weight / places[*past[:-1], past[-1][:3]], past[-1]
                told = f"token {token} comes with probability {share:.6f} and reports {reported:.6f} ({name} sampling)"
                require(abs(share - reported) < TIGHT, f"{told}; report the q that each token was drawn from.")


def _histories(
    toy: Toy, prompt: Tokens, sampling: Sampling, rngs: Sequence[Rng], *, first: bool
) -> list[tuple[Any, ...]]:
    rig = toy.build(len(rngs))
    guard = rig.engine.members.drafter
    recorder = guard.inner = _Recorder(guard.inner)  # type: ignore[attr-defined] # the engine always guards
    numbers = [rig.add(Ask(prompt, sampling, rng)) for rng in rngs]
    if first:
        rig.first(numbers)
    rig.finish()
    is_sound(rig)
    return [tuple(recorder.log.get(number, ())) for number in numbers]


def is_sound(rig: Rig) -> None:
    """No draft failed, no request ended in error, and every cache has all its room back and balances its books."""
    stats = rig.engine.stats
    require(stats.draft_failures == 0, f"the drafter failed {stats.draft_failures} times; the log says how.")
    errors = [event.error for events in rig.said.values() for event in events if event.error]
    require(not errors, f"a request ended with an error: {errors[:1]}")
    for cache, room in zip(rig.caches, rig.rooms, strict=True):
        cache.check()
        if not rig.engine.requests:
            require(cache.free() == room, f"{room - cache.free()} tokens of room were not given back.")


# What comes out


def exact_is_true(toy: Toy, sampling: Sampling, prompt: Tokens = PROMPT) -> None:
    """The law of the output is the target's: every random outcome visited, nothing sampled."""
    law = reference_of(toy.model).law(prompt, sampling, sampling.max_tokens or LENGTH)
    far = distance(cast("Table", law), output_law(toy, sampling, prompt))
    require(far < TIGHT, f"{spelled(toy)} is {far:.2e} away from the target's law, and claims to be exact.")


def a_step_is_exact(toy: Toy, sampling: Sampling, prompt: Tokens = PROMPT) -> None:
    """As `exact_is_true`, for one step with a draft larger than a short text affords; the target writes the rest."""
    length, reference, long = LENGTH + 1, reference_of(toy.model), replace(sampling, max_tokens=LONG)

    def run(rngs: Sequence[Rng]) -> list[Tokens]:
        rig = toy.build(len(rngs))
        numbers = [rig.add(Ask(prompt, long, rng)) for rng in rngs]
        rig.first(numbers)
        texts = [tuple(e.token for event in rig.said[number] for e in event.emissions) for number in numbers]
        rig.finish()
        is_sound(rig)
        return texts

    law: Counter[Tokens] = Counter()
    for text, weight in outcomes(run, TOGETHER).items():
        law.update(reference.law(prompt, long, length, cast("Tokens", text), weight))
    far = distance(cast("Table", reference.law(prompt, long, length)), cast("Table", law))
    require(far < TIGHT, f"one step of {spelled(toy)} is {far:.2e} away from the target's law.")


def verdicts_are_true(verifier: Choice, drafter: Choice, sampling: Sampling, model: Model) -> None:
    """Of one draft: what the verdict says, and the target after it, has the target's law; without an engine."""
    toy, reference, depth = Toy(model=model), reference_of(model), drafter.options.depth + 1
    drafts = drafter.member(drafter.options, setup_for(toy.config, model))
    judge = verifier.member(verifier.options)

    def run(rngs: Sequence[Rng]) -> list[Tokens]:
        contexts = [Context(i, PROMPT, len(PROMPT), sampling, rng) for i, rng in enumerate(rngs)]
        proposed = drafts.propose(contexts, [99] * len(rngs))
        targets = [Told(partial(_after, reference, sampling, draft)) for draft in proposed]
        verdicts = judge.verify(proposed, targets, rngs)
        pairs = zip(proposed, verdicts, strict=True)
        return [(*(draft.tokens[node] for node in verdict.path), verdict.token) for draft, verdict in pairs]

    law, table = reference.law(PROMPT, sampling, depth), Counter[Tokens]()
    for said, weight in outcomes(run, TOGETHER).items():
        tokens = cast("Tokens", said)
        table.update(reference.law(PROMPT, sampling, depth, tokens, weight))
    far = distance(cast("Table", law), cast("Table", table))
    told = f"verifier {verifier.spelling!r} is {far:.2e} away from the target's law"
    require(far < TIGHT, f"{told} on {drafter.spelling}, and claims to be exact.")


def no_draft_is_plain(verifier: Choice, model: ToyModel) -> None:
    """Where nothing is drafted the verdict is plain decoding's draw; so decoders need not ask for one."""
    judge = verifier.member(verifier.options)
    for p, seed in product(_rows(model), range(8)):
        row, rng = Dist(p), CounterRng(seed)
        (verdict,) = judge.verify([Draft()], [Told({-1: row}.__getitem__)], [rng])
        sentence = f"verifier {verifier.spelling!r} says {verdict} of an empty draft"
        due = Verdict((), rng.categorical(row, Purpose.TARGET, 0))
        require(verdict == due, f"{sentence}; draw its token from p, for Purpose.TARGET at 0.")


def _after(reference: Reference, sampling: Sampling, draft: Draft, node: int) -> Dist:
    """p after a node, from a pass over its path alone."""
    return Dist(reference.next(PROMPT, path_to(draft, node), sampling).numpy())


def acceptance_is_told(verifier: Choice, models: Sequence[ToyModel], most: int = 3) -> None:
    """Where a formula gives the acceptance of i.i.d. drafts, it is the share of verdicts that accept one."""
    judge = verifier.member(verifier.options)
    for p, q in product(_rows(models[0]), _rows(models[1])):
        for count in range(1, most + 1):
            told = judge.acceptance(p, q, count)
            if told is None:
                return
            found = accepted(judge, Dist(p), Dist(q), count)
            sentence = f"verifier {verifier.spelling!r} says that {count} drafts are accepted with probability {told}"
            require(abs(told - found) < TIGHT, f"{sentence}, and it accepts {found}.")


def _rows(model: ToyModel) -> list[Floats]:
    return [model.probs(PROMPT[:end]) for end in (1, 2, 3)]


def accepted(verifier: Verifier, p: Dist, q: Dist, count: int) -> float:
    """Probability that one of `count` tokens drawn i.i.d. from q is accepted, by enumeration."""

    def run(rngs: Sequence[Rng]) -> list[bool]:
        tokens = [tuple(rng.categorical(q, Purpose.DRAFT, 0, i) for i in range(count)) for rng in rngs]
        drafts = [Draft(drawn, (-1,) * count, (q,) * count) for drawn in tokens]
        return [
            bool(verdict.path)
            for verdict in verifier.verify(drafts, [Told({-1: p, **_AFTER}.__getitem__)] * len(rngs), rngs)
        ]

    return outcomes(run).get(True, 0.0)


_AFTER = {node: Dist.point(0) for node in range(8)}  # p after an accepted draft, which is of no interest


def lossy_is_needed(toys: Sequence[Toy], prompt: Tokens = PROMPT) -> None:
    """Somewhere the law differs, at the latest for the second request; a method that is exact should say so."""
    for toy in toys:
        for sampling in (*SAMPLINGS.values(), CONSTRAINED):
            law = reference_of(toy.model).law(prompt, sampling, LENGTH)
            past = Ask(prompt, replace(sampling, seed=0)) if toy.learns else None
            if distance(cast("Table", law), output_law(toy, sampling, prompt, past)) > TIGHT:
                return
    require(not toys, f"{spelled(toys[0])} claims to change the law and does not; declare exact=True.")


BANNED = 1
BANS = (
    Sampling(bad_words=((BANNED,),), max_tokens=8),
    Sampling(logit_bias={BANNED: -math.inf}, max_tokens=8),
    Sampling(allowed_tokens=(0, 2), max_tokens=8),
    Sampling(constraint=Constraint("deny-labels", "b"), max_tokens=8),
)


def bans_hold(toy: Toy) -> None:
    """What a request forbids never comes, whatever was drafted and however it is judged."""
    asks = [
        Ask(prompt, replace(ban, temperature=temperature, seed=i))
        for temperature, ban, (i, prompt) in product((0.0, 1.0), BANS, enumerate(PROMPTS))
    ]
    for ask, text in zip(asks, _together(toy, asks), strict=True):
        told = f"{spelled(toy)} wrote {text} after {ask.prompt} under {ask.sampling}"
        require(BANNED not in text, f"{told}, and {BANNED} is forbidden; accept nothing that has no probability.")


def output_law(toy: Toy, sampling: Sampling, prompt: Tokens = PROMPT, past: Ask | None = None) -> Table:
    """The exact law of what the engine writes; `past` is what every request's scope has asked before."""
    solo = toy.choices.planner.member.facts.solo

    def run(rngs: Sequence[Rng]) -> list[Tokens]:
        asks = [*(Ask(prompt, sampling, rng) for rng in rngs), *(() if solo else COMPANY)]
        rig = toy.build(len(asks))
        if past is not None:
            rig.remember(past, len(asks))
        texts = rig.write(asks)
        is_sound(rig)
        return [text.tokens for text in texts[: len(rngs)]]

    return outcomes(run, TOGETHER if solo else 1)  # a run comes again only where its budgets do


def law_after(toy: Toy, prompt: Tokens, sampling: Sampling, past: int) -> Table:
    """The exact law of a prompt's next sample, behind `past` earlier ones of the same scope."""

    def run(rngs: Sequence[Rng]) -> list[Tokens]:
        rig = toy.build(0)
        rig.scopes = None
        for seed in range(past):
            rig.write([Ask(prompt, sampling, CounterRng(seed))])
        (text,) = rig.write([Ask(prompt, sampling, rngs[0])])
        is_sound(rig)
        return [text.tokens]

    return outcomes(run)


def conditional(model: Model, prompt: Tokens, sampling: Sampling) -> Table:
    """The model's law, as if nothing was constrained, of those texts that the constraint allows."""
    reference, length = reference_of(model), sampling.max_tokens or LENGTH
    free = reference.law(prompt, replace(sampling, constraint=None), length)
    allowed = {text: free[text] for text in reference.law(prompt, sampling, length)}
    return {text: weight / sum(allowed.values()) for text, weight in allowed.items()}


def spelled(toy: Toy) -> str:
    """The members of a toy engine in one line."""
    parts = toy.choices
    own = [*([toy.tree] if toy.tree else []), *([parts.planner] if toy.planner != Toy.planner else [])]
    own += [parts.scheduler] if toy.scheduler != Toy.scheduler else []
    chosen = (parts.drafter, *own, parts.verifier, parts.cache, parts.decoder)
    return " x ".join(choice.spelling for choice in chosen)


GREEDY = (
    Sampling(temperature=0, max_tokens=16),
    Sampling(temperature=0, max_tokens=11, repetition_penalty=1.4, frequency_penalty=0.2, no_repeat_ngram=4),
    Sampling(temperature=0, max_tokens=9, logit_bias={0: 1.5}, min_tokens=5),
)
PROMPTS: tuple[Tokens, ...] = ((0,), (0, 1, 2, 0, 1), (2, 2, 2, 2), (1, 0) * 8, (0, 1, 1, 2, 0, 2, 1))


@lru_cache(maxsize=16)
def _greedy(model: Model) -> list[Tokens]:
    """What plain greedy decoding writes after every prompt, by every sampling."""
    reference = reference_of(model)
    return [reference.greedy(prompt, s, s.max_tokens or 1) for prompt, s in product(PROMPTS, GREEDY)]


def greedy_equals_greedy(toy: Toy) -> None:
    """Temperature 0 is the most likely token after each prefix: alone, and in a ragged batch."""
    asks = [Ask(prompt, sampling) for prompt, sampling in product(PROMPTS, GREEDY)]
    wanted = _greedy(toy.model)
    few = [i * len(GREEDY) + i % len(GREEDY) for i in range(len(PROMPTS))]  # each prompt once, and every sampling
    alone = [asks[i] for i in few], _alone(toy, [asks[i] for i in few]), [wanted[i] for i in few]
    for how, found in (("in a batch", (asks, _together(toy, asks), wanted)), ("alone", alone)):
        for ask, text, want in zip(*found, strict=True):
            told = f"{spelled(toy)} wrote {text} after {ask.prompt} {how}, and plain greedy decoding writes {want}."
            require(text == want, told)


def neighbours_do_not_matter(toy: Toy) -> None:
    """The same seed gives the same tokens alone, with others, in another order, and on few seats.

    Where the text of a seed depends on the draft (not `coupled`), the step must have room for everybody's draft.
    """
    asks = [Ask(p, replace(SEEDED, seed=seed)) for seed, p in enumerate(PROMPTS)]
    alone = _alone(toy, asks)
    ways = {
        "with others": _together(toy, asks),
        "in another order": _together(toy, asks[::-1])[::-1],
        "with few seats": _together(few_seats(toy), asks),
    }
    for how, texts in ways.items():
        require(texts == alone, f"{spelled(toy)} writes {texts} {how}, and alone {alone}.")


SEEDED = Sampling(temperature=0.9, top_p=0.95, presence_penalty=0.1, max_tokens=12)


def few_seats(toy: Toy) -> Toy:
    """Three seats, so that others wait; and steps so small that drafts are cut, where that may not matter."""
    return toy.resized(max_requests=3, max_step_tokens=11 if coupled(toy) else 80)


def coupled(toy: Toy) -> bool:
    """Whether the text of a seed is plain decoding's, whatever is drafted."""
    return bool(toy.choices.verifier.member.facts.coupled)


def chunks_do_not_matter(toy: Toy) -> None:
    """A prompt read in chunks gives the same tokens as one read at once."""
    small = replace(toy, planner="fixed:nodes=2")  # the last chunk and a draft fit into one step of six
    lengths = (8, 9, 10, 16, 20)
    prompts = [(prompt * 20)[:length] for prompt, length in zip(PROMPTS, lengths, strict=True)]
    asks = [Ask(prompt, replace(SEEDED, seed=seed)) for seed, prompt in enumerate(prompts)]
    whole, chunked = _alone(small, asks), _alone(small.resized(max_step_tokens=6), asks)
    require(chunked == whole, f"{spelled(toy)} writes {chunked} after prompts read in chunks, and {whole} otherwise.")


def seeds_are_plain_decodings(toy: Toy) -> None:
    """A coupled verifier: the text is not only distributed as plain decoding's, with the same seed it is the same."""
    asks = [Ask(p, replace(SEEDED, seed=seed)) for seed, p in enumerate(PROMPTS * 2)]
    require(
        _together(toy, asks) == _together(toy.plain(), asks), f"{spelled(toy)} differs from plain decoding by seed."
    )


def _together(toy: Toy, asks: Sequence[Ask]) -> list[Tokens]:
    rig = toy.build(len(asks))
    texts = [text.tokens for text in rig.write(asks)]
    is_sound(rig)
    return texts


def _alone(toy: Toy, asks: Sequence[Ask]) -> list[Tokens]:
    rig = toy.build(len(asks))
    texts = [rig.write([ask])[0].tokens for ask in asks]
    is_sound(rig)
    return texts


# Memory


def rejection_leaves_no_trace(toy: Toy) -> None:
    """After every step the cache is bit-equal to that of plain decoding with the same tokens."""
    sampling = Sampling(temperature=0, max_tokens=16)
    wanted = {length: snapshot for _, length, snapshot in _snapshots(toy.plain(), sampling)}
    for tokens, length, snapshot in _snapshots(toy, sampling):
        same = length in wanted and all(
            torch.equal(mine, theirs)
            for pair, other in zip(snapshot, wanted[length], strict=True)
            for mine, theirs in zip(pair, other, strict=True)
        )
        require(same, f"{spelled(toy)} leaves a trace of its drafts in the cache after {tokens}.")


def _snapshots(toy: Toy, sampling: Sampling) -> Iterator[tuple[Tokens, int, Any]]:
    rig = toy.build(1)
    number = rig.add(Ask(PROMPT, sampling))
    cache = rig.engine.cache
    while rig.engine.busy:
        rig.step()
        request = rig.engine.requests.get(number)
        if request is not None and request.slot is not None:
            require(cache.unjudged(request.slot) == 0, f"{spelled(toy)} leaves unjudged tokens after a step.")
            yield tuple(request.tokens), cache.length(request.slot), cache.snapshot(request.slot)
    is_sound(rig)


def cancelling_is_free(toy: Toy) -> None:
    """Stop at any step: every slot of every cache returns, and the neighbours go on unchanged."""
    asks = [Ask(p, replace(SEEDED, seed=seed, max_tokens=4)) for seed, p in enumerate(PROMPTS)]
    small = few_seats(toy)
    whole = _together(small, asks)
    for steps in range(40):
        rig = small.build(len(asks))
        numbers = [rig.add(ask) for ask in asks]
        for _ in range(steps):
            rig.step()
        if not rig.engine.busy:
            return
        for number in numbers[::2]:
            rig.engine.abort(number)
        rig.finish()
        is_sound(rig)
        for number, want in list(zip(numbers, whole, strict=True))[1::2]:
            got = rig.text(number).tokens
            require(got == want, f"{spelled(toy)} writes {got} after a neighbour was aborted, and {want} otherwise.")


# Constraints


def walks_leave_no_trace(model: ToyModel, wish: Constraint) -> None:
    """What may follow every path is what a guide that has read nothing else says, wherever the text stands."""
    guides, vocab = guides_for(setup_for(Config(), model)), model.info.vocab_size
    paths = [path for length in range(3) for path in product(range(vocab), repeat=length)]

    def fresh(tokens: Sequence[int]) -> Bools:
        """Token by token: nothing may follow what was forbidden."""
        guide = guides(wish, frozenset())
        for token in tokens:
            if not guide.masks([()])[0, token]:
                return np.zeros(vocab, np.bool_)
            guide.advance(token)
        found: Bools = guide.masks([()])[0]
        return found

    guide, text = guides(wish, frozenset()), list[int]()
    for _ in range(LONG):
        found = guide.masks([*paths[::-1], *paths])[len(paths) :]
        for path, mask in zip(paths, found, strict=True):
            told = f"constraint {wish.name!r} allows {np.flatnonzero(mask)} after {text} and {path}"
            require(np.array_equal(mask, fresh((*text, *path))), f"{told}, and a fresh guide says otherwise.")
        if not found[0].any():
            return
        text.append(int(np.flatnonzero(found[0])[len(text) % found[0].sum()]))
        guide.advance(text[-1])


def bad_constraints_are_refused(model: ToyModel, name: str) -> None:
    """What cannot be read is refused with a sentence, and the engine serves the next one."""
    rig = Toy(model=model).build()
    for text in ("\x00", '{"type": ', "start: (", "(" * 5000, "a" * 100_000):
        try:
            rig.add(Ask((0,), Sampling(constraint=Constraint(name, text), max_tokens=2)))
        except RequestError as problem:
            require(name in str(problem) and str(problem).endswith("."), f"{name} says only {problem}.")
    require(rig.write([Ask((0,), Sampling(max_tokens=2))])[0].error is None, f"{name} breaks the engine.")


def ends_are_ends(toy: Toy, wish: Constraint) -> None:
    """A text that stops is complete, one that does not could go on, and none goes on behind its end."""
    eos = toy.model.info.eos
    asks = [Ask((0, 1), Sampling(seed=seed, max_tokens=LONG, constraint=wish)) for seed in range(8)]
    guides, rig = guides_for(setup_for(toy.config, toy.model)), toy.build(len(asks))
    for text in rig.write(asks):
        guide, over = guides(wish, frozenset(eos)), False
        told = f"{spelled(toy)} wrote {text.tokens} under {wish} and finished with {text.finish_reason!r}"
        for token in text.tokens:
            require(not over and guide.masks([()])[0, token], f"{told}; {token} is forbidden where it stands.")
            over = token in eos or guide.advance(token)
        require(over == (text.finish_reason == "stop"), f"{told}; stop where the text is complete, and only there.")
    is_sound(rig)


# Shares and picks


def shares_fit(planner: Choice) -> None:
    """One share per request, never negative, at most the room in total; the same question has the same answer."""
    toy = Toy()
    planned = planner.member(planner.options, setup_for(toy.config, toy.model))
    for size, room in product((0, 1, 3, 8), (0, 1, 7, 100)):
        batch = [Context(i, [0, 1], 2, Sampling(), ExhaustiveRng()) for i in range(size)]
        shares = planned.share(batch, room)
        told = f"planner {planner.spelling!r} shares {shares} among {size} requests with room for {room}"
        require(len(shares) == size, f"{told}; give one share per request.")
        require(all(share >= 0 for share in shares) and sum(shares) <= room, f"{told}; share no more than the room.")
