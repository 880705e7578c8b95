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
        turns = [Turn((), tuple(range(len(seat.pending)))) for seat in seats]  # of those that still read their prompt
        for i, seat in enumerate(seats):
            if not seat.last:
                continue
            try:
                targets.append(plans[i].target(outputs[i], seat.context, self.parts.eos))
                judged.append(i)
            except RequestError as problem:
                turns[i] = Turn((), (), error=str(problem))
        drafts, rngs = [plans[i].draft for i in judged], [seats[i].context.rng for i in judged]
        verdicts = self.verifier.verify(drafts, targets, rngs)
        outcomes = [Outcome(plan.work, output) for plan, output in zip(plans, outputs, strict=True)]
        verdicts = [_until(*one) for one in zip(verdicts, drafts, targets, strict=True)]
        for i, verdict in zip(judged, verdicts, strict=True):
            outcomes[i] = Outcome(plans[i].work, outputs[i], plans[i].draft, verdict)
            turns[i] = self._turn(seats[i], plans[i].draft, verdict, outputs[i])
        self.drafter.observe([seat.context for seat in seats], outcomes)
        return turns

    def _turn(self, seat: Seat, draft: Draft, verdict: Verdict, output: Output) -> Turn:
        pending, count = len(seat.pending), seat.context.sampling.logprobs
        tokens = [draft.tokens[node] for node in verdict.path] + [verdict.token]
        sources = [draft.source_of(node) for node in verdict.path] + ["target"]
        rows = [0, *(node + 1 for node in verdict.path)]  # the row whose p each token was judged by
        emissions = tuple(
            Emission(token, source, logprob(output.logits[row], token, count) if count is not None else None)
            for token, source, row in zip(tokens, sources, rows, strict=True)
        )
        keep = (*range(pending), *(pending + node for node in verdict.path))
        return Turn(emissions, keep, len(draft), max(draft.depths, default=0))


def _until(verdict: Verdict, draft: Draft, target: Rows | Answers) -> Verdict:
    """The verdict as far as the first node after which bans leave nothing: plain decoding ends there as well."""
    at = next((i for i, node in enumerate(verdict.path) if node in target.stuck), None)
    return verdict if at is None else Verdict(verdict.path[:at], draft.tokens[verdict.path[at]])
