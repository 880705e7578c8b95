"""Whole steps of a text are judged: a drafted one stays if it is good enough (lookahead reasoning, 2506.19830).

A step ends with a token that ends a line or a sentence. The target reads everything that was drafted in one pass; a
step stays, with every step before it, if the judge finds it good enough. What comes after the steps that stay, and
every step that does not, is judged by the verifier as ever. `judge` is a function of the caller, "module:function", of
the text so far, the tokens of the step, and what the target gives to each of them in shares of its likeliest token.
Does not: let the target write its own version of every step, for the judge to compare; bring a model that judges what
a step means (`likeness` is a stand-in that knows the target's probabilities only); keep a step that does not fit into
one draft, so the drafter's `depth` and the planner's `nodes` should hold a step or more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, isnan, log

from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError
from forerun.member import imported
from forerun.rng import Purpose, Rng
from forerun.sheet import Ahead
from forerun.types import Draft, Facts, Output, Spelling, Target, Turn, Verdict
from forerun.verifiers.contract import Verifier

Judge = Callable[[Sequence[int], tuple[int, ...], tuple[float, ...]], float]
Step = tuple[tuple[int, ...], tuple[float, ...]]  # tokens since the last step's end, and their shares
_WHO = "decoder 'lookahead-reasoning'"


class LookaheadReasoningDecoder(Decoder):
    """Draft and verify, in steps and in tokens."""

    facts = Facts(
        keys=("lookahead-reasoning",),
        paper="2506.19830",
        exact=False,
        law="the drafter's whole steps where the judge finds them good enough, the target's distribution elsewhere",
        evidence="docs/results/README.md#fidelity-steps-and-bytes",
    )

    @dataclass(frozen=True)
    class Options:
        """`threshold`: what the judge must give a step; `ends`: what a step ends with, beside the end of a line."""

        threshold: float = 0.5
        ends: tuple[str, ...] = (".", "!", "?")
        judge: str = "forerun.decoders.lookahead_reasoning:likeness"

        def __post_init__(self) -> None:
            if isnan(self.threshold) or "" in self.ends:
                given = f"threshold is {self.threshold} and ends are {list(self.ends)}"
                raise ConfigError(f"{_WHO}: {given}; give a number, and endings of at least one character.")

    def __init__(self, options: Options, parts: Parts) -> None:
        judge = imported(options.judge, f"{_WHO}: the judge")
        steps = StepVerifier(
            parts.verifier, judge, options.threshold, ends_of(parts.setup.open_spelling(""), options.ends)
        )
        self.options = options
        inner = replace(parts, verifier=steps, ahead=Ahead.NOTHING)
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), inner)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(threshold=0.4, ends=("b",))

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        return self.inner.plan(seats)

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        return self.inner.commit(seats, plans, outputs)


class StepVerifier(Verifier):
    """What another verifier accepts, or more where whole steps are good."""

    facts = Facts(exact=False)

    def __init__(self, tokens: Verifier, judge: Judge, threshold: float, ends: frozenset[int]) -> None:
        self.tokens, self.judge, self.threshold, self.ends = tokens, judge, threshold, ends
        self.hidden = tokens.hidden

    def verify(self, drafts: Sequence[Draft], targets: Sequence[Target], rngs: Sequence[Rng]) -> list[Verdict]:
        verdicts = self.tokens.verify(drafts, targets, rngs)
        return [self._longer(*one) for one in zip(verdicts, drafts, targets, rngs, strict=True)]

    def _longer(self, verdict: Verdict, draft: Draft, target: Target, rng: Rng) -> Verdict:
        path = self._steps(draft, target)
        if len(path) <= len(verdict.path):
            return verdict
        return Verdict(path, rng.categorical(target[path[-1]], Purpose.TARGET, len(path)))

    def _steps(self, draft: Draft, target: Target) -> tuple[int, ...]:
        """The longest path of whole steps that are all good; the first of several."""
        open_steps: dict[int, Step] = {-1: ((), ())}
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        best: tuple[int, ...] = ()
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            share = _share(target, parent, token) if parent in open_steps else 0.0
            if share <= 0:
                continue
            before, shares = open_steps[parent]
            step, paths[node] = ((*before, token), (*shares, share)), (*paths[parent], node)
            if token not in self.ends:
                open_steps[node] = step
            elif self._good(draft, target, paths[node], step):
                open_steps[node] = ((), ())
                best = max(best, paths[node], key=len)
        return best

    def _good(self, draft: Draft, target: Target, path: tuple[int, ...], step: Step) -> bool:
        earlier = [draft.tokens[node] for node in path[: -len(step[0])]]
        return self.judge([*target.text, *earlier], *step) >= self.threshold


def _share(target: Target, parent: int, token: int) -> float:
    """What the target gives a token, in shares of its likeliest there; 0 for what is forbidden."""
    p = target.soft(parent)
    return p.prob(token) / float(p.probs.max())


def likeness(_text: Sequence[int], _step: tuple[int, ...], shares: tuple[float, ...]) -> float:
    """The geometric mean of the shares: 1 for what the target itself finds likeliest throughout."""
    return exp(sum(map(log, shares)) / len(shares))


def ends_of(spelling: Spelling, ends: Sequence[str]) -> frozenset[int]:
    """Tokens that end a step."""
    lasts = tuple(end.encode() for end in ends)
    pieces = enumerate(spelling.pieces)
    return frozenset(i for i, piece in pieces if isinstance(piece, bytes) and _closes(piece, lasts))


def _closes(piece: bytes, lasts: tuple[bytes, ...]) -> bool:
    return b"\n" in piece or piece.rstrip().endswith(lasts)
