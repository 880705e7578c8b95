"""Candidates of which the first are the target's, each as long as it promises (2409.10644).

A draft begins with tokens that the target itself found likeliest after the same token the last times that it read it,
in whatever branch: `candidates` of them, or draws where it has said too little. Behind each, and behind the text, goes
a chain of drawn tokens, all chains in one pass per level; a chain ends where `stop`, a rule fitted to accepted and
rejected tokens, expects a rejection. So the length is decided candidate by candidate.
Does not: take candidates from the target's newest distribution, as the paper does: that changes the law, since of
candidates drawn from p the first is as good as accepted, and the one that goes on best is no draw from p. Slice a mask
of fixed shape: a tree has just the nodes that it has.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth, Looks
from forerun.look import Child, Look, Traits
from forerun.trees.contract import StoppingChain, Tree
from forerun.types import Facts, Need, Setup


@dataclass(eq=False, slots=True)
class _Candidate:
    """A chain while it grows."""

    node: int
    depth: int
    reach: float = 1.0
    traits: tuple[Traits, ...] = ()

    def one_more(self, node: int, child: Child, look: Look, row: int, *, traits: bool) -> "_Candidate":
        seen = (*self.traits, look.traits(row)) if traits else ()
        return _Candidate(node, self.depth + 1, self.reach * child.chance, seen)


class MultiCandidateTree(Tree):
    """The target's own candidates, then drawn chains of a length that is decided on the way."""

    facts = Facts(
        keys=("multi-candidate-improved",),
        draws=True,
        paper="2409.10644",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#candidates",
    )

    @dataclass(frozen=True)
    class Options:
        """`candidates` beside the drafter's own first token; `stop`: a tree that ends chains, spelled."""

        candidates: int = 2
        stop: str = "disco"

        def __post_init__(self) -> None:
            if self.candidates < 0:
                given = f"candidates is {self.candidates}"
                raise ConfigError(f"tree 'multi-candidate-improved': {given}; give 0 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.recalls = options, options.candidates
        rule = setup.open_tree(options.stop)
        if not isinstance(rule, StoppingChain):
            message = f"tree 'multi-candidate-improved': {options.stop!r} decides no length"
            raise ConfigError(f"{message}; give a tree that ends chains, such as stop=disco, svip or threshold.")
        self.rule, self.hidden, self.state_size = rule, rule.hidden, rule.state_size

    def grow(self, growth: Growth) -> Looks:
        """The target's are elder than what is drawn beside them; a token that is there already gets no second chain."""
        said = growth.context.first[: max(growth.budget - 1, 0)]
        chances = self.options.candidates + 1 - len(said)
        chains = [_Candidate(growth.plant(ROOT, Child(token, confidence=SAID)), 1) for token in said]
        look = growth.drawn([ROOT], chances, traits=self.rule.traits, hidden=self.hidden)
        yield look
        chains += self._grown(growth, look, 0, _Candidate(ROOT, 0), chances)
        while chains := [chain for chain in chains if chain.depth < growth.depth]:
            if len(growth) >= growth.budget:
                return
            look = growth.drawn([chain.node for chain in chains], 1, traits=self.rule.traits, hidden=self.hidden)
            yield look
            chains = [c for row, chain in enumerate(chains) for c in self._grown(growth, look, row, chain, 1)]

    def _grown(self, growth: Growth, look: Look, row: int, chain: _Candidate, count: int) -> list[_Candidate]:
        """What goes on behind a chain, where it does."""
        known = {growth.children[n].token for n, parent in enumerate(growth.parents) if parent == chain.node}
        going: list[_Candidate] = []
        for number in range(min(count, growth.budget - len(growth))):
            child = look.child(row, number)
            if child is None:
                break
            longer = chain.one_more(growth.plant(chain.node, child), child, look, row, traits=self.rule.traits)
            if child.token not in known and not self.rule.stops(longer.traits, longer.reach):
                going.append(longer)
            known.add(child.token)
        return going


SAID = 0.3  # confidence: so often such a token came true at temperature 1, on the bundled prompts; greedily 0.4
