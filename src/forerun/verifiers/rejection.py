"""Rejection sampling over a tree (2211.17192 alg. 1; recursive over siblings as in 2305.09781 and 2401.06706).

p: target, q: draft. Children are tried in order: x drawn from q is accepted with probability min(1, p(x) / q(x));
after a refusal p becomes norm(max(p - q, 0)) and the next sibling is tried. A chosen token is a point mass q(x) = 1,
so one rule serves chains, trees, sampled and chosen drafts. Siblings drawn without replacement report q without their
elders, which makes the same rule that of 2402.14160 and 2402.12374.
Does not: judge several siblings or levels jointly; write the same text for a seed when the budget of its drafts differs
(the law is the same, the verdicts are not), as it may under load: `match` does.
"""

from dataclasses import dataclass

from forerun.types import Dist, Facts, Floats
from forerun.verifiers.contract import Judged, Siblings, SiblingVerifier


class RejectionVerifier(SiblingVerifier):
    """The exact rule for every draft."""

    facts = Facts(
        keys=("speculative-decoding", "speculative-sampling", "multi-candidate", "rsd-swor", "sequoia"),
        paper="2211.17192",
        evidence="docs/results/README.md#acceptance",
    )

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def judge(self, p: Dist, siblings: Siblings) -> Judged:
        return in_turn(p, siblings)

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        return accepted_in_turn(p, q, count)


def in_turn(p: Dist, siblings: Siblings) -> Judged:
    """Siblings one after the other; what every rule does with a group that it has nothing better for."""
    draft = siblings.draft
    for node in siblings.nodes:
        x, q = draft.tokens[node], draft.drawn_from(node)
        if siblings.accepts(node, p.prob(x) / q.prob(x)):
            return node, p
        p = p.minus(q)
    return None, p


def accepted_in_turn(p: Floats, q: Floats, count: int) -> float:
    """Probability that one of `count` tokens drawn i.i.d. from q is accepted by `in_turn`."""
    left, drawn, refused = Dist(p), Dist(q), 1.0
    for _ in range(count):
        rest, total = left.beyond(drawn)
        if total <= 0:
            return 1.0
        refused *= total
        left = Dist(rest / rest.dtype.type(total))
    return 1 - refused
