"""Rejection sampling with lenience (2211.17192, appendix A.5): q is taken for smaller than it is.

x drawn from q is accepted with probability min(1, p(x) / (l q(x))), and a refusal leaves norm(max(p - q, 0)) as in
`rejection`; no token comes more than 1 / l times as often as p says. At temperature 0 x is accepted if p(x), at
temperature 1, exceeds l max p. With l = 1 it is `rejection`.
Does not: bound how rare a token may become.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.rng import Purpose, Rng
from forerun.types import Dist, Draft, Facts, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class LenientVerifier(SoloVerifier):
    """Rejection sampling that lets up to 1 / l too much pass."""

    facts = Facts(paper="2211.17192, appendix A.5", exact=False, evidence="docs/results/README.md#fidelity")

    @dataclass(frozen=True)
    class Options:
        """`lenience` l: the least share of its due probability that a token needs; 1 is exact."""

        lenience: float = 0.5

        def __post_init__(self) -> None:
            if not 0 < self.lenience <= 1:
                message = f"verifier 'lenient': lenience is {self.lenience}"
                raise ConfigError(f"{message}; give a number above 0 and at most 1, which is exact.")

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            p = target[node]
            for child in draft.children(node):
                q = draft.drawn_from(child)
                chance = self._chance(p, target.soft(node), q, draft.tokens[child])
                if rng.bernoulli(chance, Purpose.ACCEPT, len(path), child):
                    node, path = child, (*path, child)
                    break
                p = p.minus(q)
            else:
                return Verdict(path, rng.categorical(p, Purpose.TARGET, len(path)))

    def _chance(self, p: Dist, soft: Dist, q: Dist, token: int) -> float:
        """Of accepting a token that was drawn from q; `soft` is p before anything was refused."""
        if p.only is None or p.only == token:
            return p.prob(token) / (self.options.lenience * q.prob(token))
        return float(soft.prob(token) > self.options.lenience * float(soft.probs.max()))
