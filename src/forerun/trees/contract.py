"""What a tree is: the shape and growth of a draft, from the distributions that a drafter finds.

A tree asks looks, one after the other: a drafter answers the looks of all requests of a step in one pass, and the tree
plants what it found. It never learns whose distributions they are.

Two laws make a draft exact. Whether a drawn token is drafted may depend on everything that was drawn before it, and on
nothing of itself: only its descendants may be left out because it turned out unlikely. And siblings stand in the order
in which they were drawn. Chosen tokens are free of both.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from forerun.growth import Growth
from forerun.look import Look
from forerun.member import Member
from forerun.types import Setup


class Tree(Member):
    """Grows drafts; `self` holds options, and what a growth knows lives in its generator."""

    levels: ClassVar[int] = 8  # a drafter's passes per draft, where it is not told a number
    blind: ClassVar[bool] = False  # a chain that never looks at what it planted, so that a device can go on by itself

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def grow(self, growth: Growth) -> Iterator[Look]:
        """Plant at most growth.budget nodes on at most growth.depth levels.

        A look is answered when the generator goes on; it may not go on at all. A node is looked behind at most once.
        """
