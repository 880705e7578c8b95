"""What a small model reads of one draft: an entry of its cache for every node that it looks behind.

Does not: run it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.growth import ROOT, Growth
from forerun.types import Grown, Work


@dataclass(eq=False, slots=True)
class Reading:
    """What the small model reads of one draft: an entry of its cache per node that is looked behind."""

    slot: int
    blind: bool  # as its tree is
    growth: Growth
    nodes: list[int] = field(default_factory=list)  # by entry
    entries: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})  # by node
    parents: list[int] = field(default_factory=list)  # entries, by entry

    def work(self) -> Work:
        """The nodes of the newest look as rows; their tokens do not matter where only a device knows them."""
        growth, base = self.growth, len(self.nodes)
        look = growth.newest
        for node in look.nodes:
            self.entries[node] = len(self.nodes)
            self.nodes.append(node)
            self.parents.append(self.entries[growth.parents[node]])
        tokens = tuple([growth.children[node].token for node in look.nodes])
        rows = tuple(range(len(look.nodes)))
        ask = look if look.worthwhile else None
        return Work(self.slot, tokens, tuple(self.parents), base, rows, look.hidden, ask=ask, lot=look.lot)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The entries along a path of tokens, as far as they were read."""
        return _along(tokens, self.nodes, self.growth.parents, [child.token for child in self.growth.children])


@dataclass(eq=False, slots=True)
class GrownReading:
    """What the small model has read of a draft that grew in one go."""

    tree: Grown

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The same."""
        return _along(tokens, self.tree.read, self.tree.parents, self.tree.tokens)


def _along(path: Sequence[int], read: Sequence[int], parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """The entries along a path of tokens; `read`: the node of every entry, or -1."""
    found, above = list[int](), ROOT
    for token in path:
        for entry, node in enumerate(read):
            if node != ROOT and parents[node] == above and tokens[node] == token:
                found.append(entry)
                above = node
                break
        else:
            return found
    return found
