"""Draft, run the draft through the target in one pass, keep what the verifier accepts, and one token more.

With an empty draft the pass, the draw and the text are those of plain decoding. A pass has one row per pending token
and drafted node, whatever the requests beside each other drafted and accepted: no token pads (EMS-SD, 2405.07542).
Does not: draft while a prompt is still being read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.errors import RequestError
from forerun.sampling import Rows, logprob
from forerun.sheet import Answers
from forerun.types import Draft, Emission, Facts, Logprob, Outcome, Output, Turn, Verdict, Work

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
        self.hidden = tuple(dict.fromkeys((*self.drafter.hidden, *self.verifier.hidden)))

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        asked = [i for i, seat in enumerate(seats) if seat.budget > 0]
        drafts = [_NOTHING] * len(seats)
        if asked:
            contexts, budgets = [seats[i].context for i in asked], [seats[i].budget for i in asked]
            for i, draft in zip(asked, self.drafter.propose(contexts, budgets), strict=True):
                drafts[i] = draft
        return [self.work(seat, draft) for seat, draft in zip(seats, drafts, strict=True)]

    def work(self, seat: Seat, draft: Draft) -> Plan:
        """What runs the pending tokens and a draft, with the rows by which the draft is judged."""
        pending, nodes = len(seat.pending), len(draft)
        rows = tuple(range(pending - 1, pending + nodes)) if seat.last else ()
        parents = None
        if draft.parents != tuple(range(-1, nodes - 1)):
            parents = (*range(-1, pending - 1), *(pending + parent for parent in draft.parents))
        tokens, sheet = seat.pending + draft.tokens, self.sheet(seat, draft)
        work = Work(seat.slot, tokens, parents, logits=rows, hidden=self.hidden, ask=sheet)
        return Plan(work, draft, sheet)

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        judged: list[int] = []
        targets: list[Rows | Answers] = []
        turns: list[Turn | None] = [None] * len(seats)
        for i, seat in enumerate(seats):
            if not seat.last:
                turns[i] = Turn((), tuple(range(len(seat.pending))))
                continue
            try:
                targets.append(plans[i].target(outputs[i], seat.context, self.parts.eos))
                judged.append(i)
            except RequestError as problem:
                turns[i] = Turn((), (), error=str(problem))
        drafts, rngs = [plans[i].draft for i in judged], [seats[i].context.rng for i in judged]
        found = zip(judged, self.verifier.verify(drafts, targets, rngs), targets, strict=True)
        verdicts = {i: _until(verdict, plans[i].draft, target) for i, verdict, target in found}
        outcomes = [
            Outcome(plan.work, output, plan.draft, verdicts[i]) if i in verdicts else Outcome(plan.work, output)
            for i, (plan, output) in enumerate(zip(plans, outputs, strict=True))
        ]
        self.drafter.observe([seat.context for seat in seats], outcomes)
        return [turn or self._turn(seats[i], plans[i].draft, verdicts[i], outputs[i]) for i, turn in enumerate(turns)]

    def _turn(self, seat: Seat, draft: Draft, verdict: Verdict, output: Output) -> Turn:
        pending, count, path = len(seat.pending), seat.context.sampling.logprobs, verdict.path
        tokens = (*[draft.tokens[node] for node in path], verdict.token)
        sources = (*[draft.source_of(node) for node in path], "target")
        details: list[Logprob | None] = [None] * len(tokens)
        if count is not None:
            rows = (0, *[node + 1 for node in path])  # the row whose p each token was judged by
            details = [logprob(output.logits[row], token, count) for row, token in zip(rows, tokens, strict=True)]
        keep = (*range(pending), *[pending + node for node in path])
        depth = max(draft.depths) if draft else 0
        return Turn(tuple(map(Emission, tokens, sources, details)), keep, len(draft), depth)


def _until(verdict: Verdict, draft: Draft, target: Rows | Answers) -> Verdict:
    """The verdict as far as the first node after which bans leave nothing: plain decoding ends there as well."""
    if not verdict.path:
        return verdict
    at = next((i for i, node in enumerate(verdict.path) if node in target.stuck), None)
    return verdict if at is None else Verdict(verdict.path[:at], draft.tokens[verdict.path[at]])
