"""A draft while it grows: its nodes, what may be looked at for the next ones, and what becomes a Draft.

Does not: run anything. A drafter answers the looks that its tree asks, level by level for all requests at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from forerun.look import Child, Drawn, Likeliest, Look, Origin
from forerun.sampling import Path, Shaper
from forerun.types import Context, Draft, Output

ROOT = -1


@dataclass(eq=False)
class Growth:
    """One request's draft: at most `budget` nodes, at most `depth` levels."""

    context: Context
    budget: int
    depth: int
    eos: tuple[int, ...] = ()  # ids that end a text
    parents: list[int] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)  # by node
    kept: Sequence[int] | None = None  # nodes of the draft, parents first, where not all are
    error: str | None = None  # why it cannot grow any further
    looking: bool = False  # whether there is one more look to answer
    asked: list[tuple[Look, int]] = field(default_factory=list)  # all looks so far, and how many nodes there were then

    def __post_init__(self) -> None:
        context = self.context
        shaper = Shaper(context.sampling, context.tokens, context.prompt_length, self.eos)
        self.origin = Origin(shaper, context.rng, self.path)

    def __len__(self) -> int:
        return len(self.parents)

    def likeliest(self, nodes: Sequence[int], count: int, *, traits: bool = False) -> Likeliest:
        """Look for the `count` most likely tokens after every node."""
        return Likeliest(self.origin, nodes, count, traits=traits)

    def drawn(self, nodes: Sequence[int], count: int, *, again: bool = False, traits: bool = False) -> Look:
        """Look for `count` tokens drawn after every node, `again`: with replacement; likeliest where it is greedy."""
        if self.context.sampling.greedy:
            return self.likeliest(nodes, count, traits=traits)
        return Drawn(self.origin, nodes, count, traits=traits, again=again)

    def ask(self, looks: Iterator[Look]) -> None:
        """On to the next look, if there is one."""
        look = next(looks, None) if self.error is None else None
        self.looking = look is not None
        if look is not None:
            self.asked.append((look, len(self)))

    @property
    def newest(self) -> Look:
        """The look that was asked last."""
        return self.asked[-1][0]

    def answer(self, number: int, output: Output) -> None:
        """What the pass of look `number` found. A broken row ends the growth: nothing below it is drafted."""
        look, before = self.asked[number]
        if self.error is None and all(map(isfinite, output.peak)):
            look.read(output)
        elif self.error is None:
            self.error = "the drafter's logits are not finite; check its weights and dtype."
            del self.parents[before:], self.children[before:]

    def plant(self, parent: int, child: Child) -> int:
        """A new node."""
        self.parents.append(parent)
        self.children.append(child)
        return len(self.parents) - 1

    def path(self, node: int) -> Path:
        """Drafted tokens down to a node, itself included."""
        found: list[int] = []
        while node >= 0:
            found.append(self.children[node].token)
            node = self.parents[node]
        return tuple(reversed(found))

    def draft(self, source: str) -> Draft:
        """What has grown."""
        found, parents = self.children, self.parents
        if self.kept is not None:
            at = {ROOT: ROOT, **{node: i for i, node in enumerate(self.kept)}}
            found, parents = [found[node] for node in self.kept], [at[parents[node]] for node in self.kept]
        q = tuple(child.q for child in found)
        return Draft(
            tuple(child.token for child in found),
            tuple(parents),
            q if any(one is not None for one in q) else None,
            tuple(child.confidence for child in found),
            source,
            self.error,
        )
