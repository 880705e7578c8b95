"""Block verification: a chain is judged as a whole (2403.10444, alg. 2).

Where the draft branches, siblings are judged one after the other as by `rejection`, and the chain below the accepted
one is a block again. Every block ends in the target's own law, so the whole is exact.
Does not: accept fewer tokens of a chain on average than judging them one by one; judge siblings jointly.
"""

from dataclasses import dataclass

from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Floats, Target, Verdict
from forerun.verifiers.contract import Siblings, SoloVerifier
from forerun.verifiers.rejection import accepted_in_turn, in_turn
from forerun.verifiers.traversal import climb


class BlockVerifier(SoloVerifier):
    """Accept the longest beginning of a chain that the target's law allows."""

    facts = Facts(paper="2403.10444", evidence="docs/results/README.md#acceptance")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        def only_child(node: int) -> tuple[int, ...]:
            children = draft.children(node)
            return children if len(children) == 1 else ()

        path: tuple[int, ...] = ()
        while True:
            path, p = climb(draft, target, rng, only_child, path)
            last = path[-1] if path else -1
            child = None
            if not only_child(last):  # the whole block is accepted
                child, p = in_turn(p, Siblings(draft, draft.children(last), len(path), rng))
            if child is None:
                return Verdict(path, rng.categorical(p, Purpose.TARGET, len(path)))
            path = (*path, child)

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        return accepted_in_turn(p, q, count)  # one level holds nothing to judge jointly
