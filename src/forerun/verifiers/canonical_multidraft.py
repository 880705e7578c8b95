"""An importance-weighted choice among i.i.d. drafts, then single-draft acceptance (2410.18234, theorem 1).

Every draft x is kept with a chance that grows with p(x) / q(x); the first one that is kept is chosen, or the eldest if
none is. So the choice has a law m in closed form, and the chosen draft is accepted with probability min(1, p / m). The
chances make m(x) = p(x) wherever that lies between the least and the most that they can give to x.
Does not: solve the paper's linear programme for weights per set of drafts (`optimal-multidraft` reaches its value);
judge anything but siblings drawn i.i.d. by this rule; others are judged one after the other, as by `rejection`.
"""

from dataclasses import dataclass

import numpy as np

from forerun.types import Dist, Facts, Floats
from forerun.verifiers.contract import Judged, Siblings, SiblingVerifier
from forerun.verifiers.rejection import in_turn
from forerun.verifiers.spectr import crossing, nearly, some, total


class CanonicalVerifier(SiblingVerifier):
    """Choose first, judge the chosen one only."""

    facts = Facts(keys=("canonical-multidraft",), paper="2410.18234", evidence="docs/results/README.md#acceptance")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def judge(self, p: Dist, siblings: Siblings) -> Judged:
        q = siblings.shared
        if q is None or p.ids is not None:
            return in_turn(p, siblings)
        weights = Weights.of(p.probs, q.over(p), len(siblings.nodes))
        draft, chosen = siblings.draft, siblings.nodes[0]
        for node in siblings.nodes:
            x = draft.tokens[node]
            if siblings.accepts(node, float(weights.kept[x]) / q.prob(x)):
                chosen = node
                break
        x = draft.tokens[chosen]
        if siblings.accepts(len(draft), p.prob(x) / (weights.of_one(x, q.prob(x)) or 1.0)):
            return chosen, p
        return None, p.minus(Dist(weights.law(q.over(p))))

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        m = Weights.of(p, q, count).law(q) if count > 1 else q
        return float(np.minimum(p, m).sum(dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Weights:
    """What of q is kept; per mass, drafts are chosen `most` times as often as drawn where kept, else `least` times."""

    kept: Floats
    least: float
    most: float

    @classmethod
    def of(cls, p: Floats, q: Floats, count: int) -> "Weights":
        room = np.empty_like(p)

        def keep(chance: float) -> Floats:
            """The chances to keep a draft, times q, that lead to m = p where they can."""
            least, most = _worth(chance, count)
            np.subtract(p, np.multiply(q, q.dtype.type(least), out=room), out=room)
            np.maximum(room, 0, out=room)
            np.multiply(room, q.dtype.type(1 / (most - least)), out=room)
            return np.minimum(room, q, out=room)

        near = nearly(p) ** 0.5  # costs less than 0.0001 of acceptance, and no exactness
        kept = keep(crossing(lambda chance: chance - total(keep(chance)), 0.0, 1.0, near))
        return cls(kept, *_worth(float(kept.sum(dtype=np.float64)), count))  # of what is really kept: m is exact

    def of_one(self, token: int, q: float) -> float:
        """The law m at one token."""
        return float(self.kept[token]) * (self.most - self.least) + q * self.least

    def law(self, q: Floats) -> Floats:
        """The law m of the choice."""
        return self.kept * q.dtype.type(self.most - self.least) + q * q.dtype.type(self.least)


def _worth(chance: float, count: int) -> tuple[float, float]:
    """How much likelier than drawn a draft is chosen, where it is not kept and where it is."""
    least = (1 - min(chance, 1.0)) ** (count - 1)
    return least, some(chance, count) / chance if chance > 0 else float(count)
