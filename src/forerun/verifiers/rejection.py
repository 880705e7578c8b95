"""Rejection sampling over a tree (2211.17192 alg. 1; recursive over siblings as in 2305.09781).

p: target, q: draft. Children are tried in order: x drawn from q is accepted with probability min(1, p(x) / q(x));
after a refusal p becomes norm(max(p - q, 0)) and the next sibling is tried. A chosen token is a point mass q(x) = 1,
so one rule serves chains, trees, sampled and chosen drafts.
Does not: judge several levels jointly; write the same text for a seed when the budget of its drafts differs (the law
is the same, the verdicts are not), as it may under load: `match` does.
"""

from dataclasses import dataclass

from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class RejectionVerifier(SoloVerifier):
    """The exact rule for every draft."""

    facts = Facts(keys=("speculative-decoding", "speculative-sampling"), paper="2211.17192")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            p = target[node]
            for child in draft.children(node):
                x, q = draft.tokens[child], draft.drawn_from(child)
                if rng.bernoulli(p.prob(x) / q.prob(x), Purpose.ACCEPT, len(path), child):
                    node, path = child, (*path, child)
                    break
                p = p.minus(q)
            else:
                return Verdict(path, rng.categorical(p, Purpose.TARGET, len(path)))
