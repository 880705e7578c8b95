"""A draft of chosen tokens put together from chains: what begins alike is one node, within a budget.

Does not: hold drawn tokens; each of these stands for itself.
"""

from collections.abc import Sequence

from forerun.types import Draft

ROOT = -1


class Trie:
    """At most `budget` nodes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self._found: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Sequence[int], parent: int = ROOT, chance: float | None = None) -> list[int]:
        """The nodes of a chain below `parent`, as far as there is room.

        `chance`: the confidence of those that are new; given always or never.
        """
        nodes: list[int] = []
        for token in tokens:
            node = self._found.get((parent, token))
            if node is None:
                if len(self.tokens) == self.budget:
                    break
                node = self._found[parent, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
                if chance is not None:
                    self.chances.append(chance)
            nodes.append(node)
            parent = node
        return nodes

    def draft(self, source: str) -> Draft:
        """The nodes so far."""
        confidence = tuple(self.chances) if self.chances else None
        return Draft(tuple(self.tokens), tuple(self.parents), None, confidence, source)
