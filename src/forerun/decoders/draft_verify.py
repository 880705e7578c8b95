"""Draft, run the draft through the target in one pass, keep what the verifier accepts, and one token more.

With an empty draft the pass, the draw and the text are those of plain decoding. A pass has one row per pending token
and drafted node, whatever the requests beside each other drafted and accepted: no token pads (EMS-SD, 2405.07542).
Does not: draft while a prompt is still being read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.decoders.autoregressive import undrafted
from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.errors import RequestError
from forerun.kernels.turns import News, said
from forerun.sampling import Rows, logprob
from forerun.sheet import Answers
from forerun.types import Draft, Emission, Facts, Outcome, Output, Turn, Verdict, Work

_NOTHING = Draft()


class DraftVerifyDecoder(Decoder):
    """Speculative decoding with any drafter and any verifier."""

    facts = Facts(keys=("ems-sd",), evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, parts: Parts) -> None:
        self.options, self.parts = options, parts
        self.drafter, self.verifier = parts.drafter, parts.verifier
        self.certain = parts.verifier.facts.coupled  # which accepts what the target says by itself, and nothing else
        self.listens, self.watches = self.drafter.listens, self.drafter.watches
        self.hidden = tuple(dict.fromkeys((*self.drafter.hidden, *self.verifier.hidden)))

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        asked = [i for i, seat in enumerate(seats) if seat.budget > 0]
        if not asked:
            return [self.work(seat, _NOTHING) for seat in seats]
        drafts = [_NOTHING] * len(seats)
        contexts, budgets = [seats[i].context for i in asked], [seats[i].budget for i in asked]
        for i, draft in zip(asked, self.drafter.propose(contexts, budgets), strict=True):
            drafts[i] = draft
        return [self.work(seat, draft) for seat, draft in zip(seats, drafts, strict=True)]

    def work(self, seat: Seat, draft: Draft) -> Plan:
        """What runs the pending tokens and a draft, with the rows by which the draft is judged."""
        pending, (sheet, lot) = len(seat.pending), self.asks(seat, draft)
        if not draft.tokens:
            last = (pending - 1,) if seat.last else ()
            return Plan(Work(seat.slot, seat.pending, None, 0, last, self.hidden, None, sheet, lot), draft, sheet)
        nodes = len(draft.tokens)
        rows, parents = tuple(range(pending - 1, pending + nodes)), None
        if draft.parents != tuple(range(-1, nodes - 1)):
            parents = (*range(-1, pending - 1), *(pending + parent for parent in draft.parents))
        tokens = seat.pending + draft.tokens
        return Plan(Work(seat.slot, tokens, parents, 0, rows, self.hidden, None, sheet, lot), draft, sheet)

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        heard = any(plan.draft.tokens for plan in plans) or (self.listens and any(seat.budget > 0 for seat in seats))
        if not heard and not self.watches:
            return undrafted(seats, plans, outputs, self.parts.eos)
        told: list[News | None] = said(seats, plans, outputs) if self.certain else [None] * len(seats)
        left = [i for i, one in enumerate(told) if one is None]
        rest = self._judged([seats[i] for i in left], [plans[i] for i in left], [outputs[i] for i in left])
        for i, one in zip(left, rest, strict=True):
            told[i] = one
        news = [one for one in told if one is not None]
        # First: it may draft beside what follows.
        self.drafter.observe([seat.context for seat in seats], [outcome for outcome, _ in news])
        return [turn or _turn(seat, outcome) for seat, (outcome, turn) in zip(seats, news, strict=True)]

    def _judged(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[News]:
        """What became of everybody, one by one."""
        news, asked, targets = list[News](), list[int](), list[Rows | Answers]()
        for i, (seat, plan, output) in enumerate(zip(seats, plans, outputs, strict=True)):
            outcome, turn = Outcome(plan.work, output), None
            if seat.last and self.certain and seat.context.sampling.best:
                outcome = outcome._replace(draft=plan.draft, verdict=_said(plan.draft, output.best))
            elif seat.last:
                try:
                    targets.append(plan.target(output, seat.context, self.parts.eos))
                    asked.append(i)
                except RequestError as problem:
                    turn = Turn((), (), error=str(problem))
            news.append((outcome, turn))
        drafts, rngs = [plans[i].draft for i in asked], [seats[i].context.rng for i in asked]
        found = self.verifier.verify(drafts, targets, rngs) if asked else []
        if any(target.stuck for target in targets):
            found = [_until(*one) for one in zip(found, drafts, targets, strict=True)]
        for i, draft, verdict in zip(asked, drafts, found, strict=True):
            news[i] = news[i][0]._replace(draft=draft, verdict=verdict), None
        return news


def _said(draft: Draft, best: Sequence[int]) -> Verdict:
    """The verdict where the target says the best token of every row, and a draft is accepted as far as it says that."""
    node, path, token, tokens = -1, list[int](), best[0], draft.tokens
    for child, parent in enumerate(draft.parents):  # parents come first
        if parent == node and tokens[child] == token:
            node, token = child, best[child + 1]
            path.append(child)
    return Verdict(tuple(path), token)


def _turn(seat: Seat, outcome: Outcome) -> Turn:
    draft, verdict, read = outcome.draft, outcome.verdict, len(seat.pending)
    if draft is None or verdict is None:
        return Turn((), tuple(range(read)))
    path, asked = verdict.path, seat.context.sampling.logprobs
    emissions = [Emission(draft.tokens[node], draft.source_of(node)) for node in path]
    emissions.append(Emission(verdict.token, "target"))
    if asked is not None:  # of each by the row whose p it was judged by
        rows = [outcome.output.logits[row] for row in (0, *[node + 1 for node in path])]
        told = zip(rows, emissions, strict=True)
        emissions = [one._replace(logprob=logprob(row, one.token, asked)) for row, one in told]
    keep = (*range(read), *[read + node for node in path])
    return Turn(tuple(emissions), keep, len(draft.tokens), draft.depth)


def _until(verdict: Verdict, draft: Draft, target: Rows | Answers) -> Verdict:
    """The verdict as far as the first node after which bans leave nothing: plain decoding ends there as well."""
    at = next((i for i, node in enumerate(verdict.path) if node in target.stuck), None)
    return verdict if at is None else Verdict(verdict.path[:at], draft.tokens[verdict.path[at]])
