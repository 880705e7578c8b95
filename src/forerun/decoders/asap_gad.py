"""Samples approach the model's distribution given the constraint (adaptive sampling, approximate futures, 2405.21047).

A mask alone gives a beginning all of its own weight, however little of what the model would write behind it the
constraint allows. So every sample of a prompt leaves behind how much it found to be allowed after each of its
beginnings, and later ones weigh tokens by that. What is left behind is never too little, so the weights fall towards
the truth and no allowed text is lost. Texts are those that the request may write, cut at its length.
Does not: change a greedy request or one without a constraint; learn from samples that run beside each other (a batch
of n is masked plainly; what comes after it is not); come nearer with every single sample, as what was seen loses weight
to what was not; undo cut-offs (top_p and the like), which apply to the weighed law.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError
from forerun.host import fetch
from forerun.sampling import Shaper, path_to
from forerun.sheet import Ahead
from forerun.types import Context, Draft, Facts, Output, Turn


@dataclass(eq=False, slots=True)
class Beginning:
    """A beginning of texts, and how much of what the model would write behind it may be allowed, as far as is known."""

    share: float = 1.0
    allowed: float = 1.0  # of the next token alone
    below: dict[int, tuple[float, "Beginning"]] = field(default_factory=dict)  # token -> its probability

    def settle(self) -> None:
        """What is known below becomes known here."""
        lost = sum(chance * (1 - node.share) for chance, node in self.below.values())
        self.share = max(self.allowed - lost, 0.0)


@dataclass(eq=False, slots=True)
class Trunk(Beginning):
    """The beginning of all texts of a prompt, and how many are known."""

    count: int = 0


@dataclass(eq=False, slots=True)
class Sample:
    """One text among those of its prompt: the known beginnings on its way, as far as they are."""

    trunk: Trunk
    way: list[Beginning]
    length: int = 0  # tokens that are committed; more than `way` has where no more can be remembered


class AsapDecoder(Decoder):
    """Draft and verify, by the weighed law."""

    facts = Facts(
        keys=("asap-gad",),
        paper="2405.21047",
        exact=False,
        law="the model's distribution given the constraint, which the samples of a prompt approach",
        learns=True,
        evidence="docs/results/README.md#guided",
    )

    @dataclass(frozen=True)
    class Options:
        """`prompts` that are remembered, the last used ones; `beginnings` of each."""

        prompts: int = 64
        beginnings: int = 65_536

        def __post_init__(self) -> None:
            if self.prompts < 1 or self.beginnings < 1:
                given = f"prompts is {self.prompts} and beginnings is {self.beginnings}"
                raise ConfigError(f"decoder 'asap-gad': {given}; give 1 or more of each.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.options, self.parts = options, parts
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), replace(parts, ahead=Ahead.NOTHING))
        self.known: OrderedDict[tuple[Any, ...], Trunk] = OrderedDict()

    def start(self, context: Context) -> Sample | None:
        sampling = context.sampling
        if sampling.constraint is None or sampling.greedy:
            return None
        asked = repr(replace(sampling, seed=None, logprobs=None))
        key = context.scope, tuple(context.tokens[: context.prompt_length]), asked
        trunk = self.known.setdefault(key, Trunk())
        self.known.move_to_end(key)
        if len(self.known) > self.options.prompts:
            self.known.popitem(last=False)
        return Sample(trunk, [trunk])

    def stop(self, state: Sample | None) -> None:
        for node in reversed(state.way if state is not None else ()):
            node.settle()

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        return self.inner.plan(seats)

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        asked = [seat.state is not None and seat.last for seat in seats]
        bent = [
            _bent(seat.context, plan.draft, output.logits, self.parts.eos) if weigh else output.logits
            for weigh, seat, plan, output in zip(asked, seats, plans, outputs, strict=True)
        ]
        judged = list(zip(seats, plans, outputs, strict=True))
        for i, weigh in enumerate(asked):
            if weigh:
                seat, plan, output = judged[i]
                judged[i] = _bare(seat), plan, output._replace(held=_weighed(seat, plan.draft, bent[i]), mass=None)
        turns = self.inner.commit(*(list(column) for column in zip(*judged, strict=True)))
        for i, weigh in enumerate(asked):
            if weigh:
                self._learn(seats[i], plans[i].draft, turns[i], bent[i])
        return turns

    def _learn(self, seat: Seat, draft: Draft, turn: Turn, bent: torch.Tensor) -> None:
        """Remember what the model and the constraint say behind every token that is committed."""
        sample, context = seat.state, seat.context
        rows, path = [0, *(row - len(seat.pending) + 1 for row in turn.keep[len(seat.pending) :])], list[int]()
        for emission, row in zip(turn.emissions, rows, strict=False):  # nothing is said while a prompt is read
            if sample.trunk.count >= self.options.beginnings or len(sample.way) <= sample.length + len(path):
                break
            node = sample.way[-1]
            if emission.token not in node.below and context.guide is not None:
                p = fetch(torch.softmax(bent[row] / context.sampling.temperature, -1))
                node.allowed = float(p[context.guide.masks([path])[0]].sum())
                node.below[emission.token] = float(p[emission.token]), Beginning()
                sample.trunk.count += 1
            sample.way.append(node.below[emission.token][1])
            path.append(emission.token)
        sample.length += len(turn.emissions)


def _bent(context: Context, draft: Draft, logits: torch.Tensor, eos: tuple[int, ...]) -> torch.Tensor:
    """The model's logits after bans, biases and penalties, before the constraint."""
    free = replace(Shaper.of(context, eos), sampling=replace(context.sampling, constraint=None), guide=None)
    return free.bent(logits, lambda row: path_to(draft, row - 1))[0]


def _bare(seat: Seat) -> Seat:
    """What is left to be done to bent logits: bans, which come twice, and what is drawn."""
    asked = replace(seat.context.sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    return seat._replace(context=replace(seat.context, sampling=replace(asked, logit_bias={})))


def _weighed(seat: Seat, draft: Draft, bent: torch.Tensor) -> torch.Tensor:
    """Every known beginning's logit falls by what is lost behind it."""
    found, here = bent.clone(), seat.state.way[-1] if len(seat.state.way) > seat.state.length else None
    nodes: list[Beginning | None] = [here]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        above = nodes[parent + 1]
        nodes.append(above.below[token][1] if above is not None and token in above.below else None)
    for row, node in enumerate(nodes):
        if node is not None and node.below:
            shares = torch.tensor([below.share for _, below in node.below.values()], dtype=bent.dtype)
            found[row, list(node.below)] += (seat.context.sampling.temperature * shares.log()).to(bent.device)
    return found
