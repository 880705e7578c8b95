"""Drafts longer than can be verified, of which the most promising tokens of all requests are (TETRIS, 2502.15197).

Every request drafts `extra` nodes more than its part of the budget; then the budget goes to the nodes that are the
likeliest to be accepted together with what they stand on, whosever they are. That is greedy, and the best there is.
The paper takes the probability of the drafted token itself, which must not decide whether a drawn token is judged
(exactness); here it is the node's confidence, times those above it.
Does not: look at load or cost; tell drafts apart that say nothing of their confidence, but by depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from forerun.drafting.worth import reach
from forerun.errors import ConfigError
from forerun.planners.contract import Planner, within
from forerun.types import Context, Draft, Facts, Setup

UNSAID = 0.7  # the confidence of a node of which none is given


class TetrisPlanner(Planner):
    """One budget for the batch, spent after drafting."""

    facts = Facts(keys=("tetris",), paper="2502.15197", evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """`nodes`: per request that are verified, in the mean; `extra`: nodes more that each drafts."""

        nodes: int = 4
        extra: int = 4

        def __post_init__(self) -> None:
            if self.nodes < 1 or self.extra < 0:
                message = f"planner 'tetris': nodes is {self.nodes} and extra is {self.extra}"
                raise ConfigError(f"{message}; give 1 node or more, and 0 or more of the others.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(nodes=1, extra=1)

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        return within([self.options.nodes + self.options.extra] * len(batch), room)

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> list[Draft]:
        """The likeliest nodes; of equal ones the first, so that a node never stays without what it stands on."""
        reaches = np.array([*chain.from_iterable(reach(draft, guesses(draft)) for draft in drafts)])
        if len(reaches) <= self.options.nodes * len(drafts):
            return list(drafts)
        kept = np.zeros(len(reaches), bool)
        kept[np.argsort(-reaches, kind="stable")[: self.options.nodes * len(drafts)]] = True
        ends = np.cumsum([len(draft) for draft in drafts])
        return [
            draft.only(np.flatnonzero(part).tolist())
            for draft, part in zip(drafts, np.split(kept, ends[:-1]), strict=True)
        ]


def guesses(draft: Draft) -> Sequence[float]:
    """The drafter's own, or by depth alone."""
    return [UNSAID] * len(draft) if draft.confidence is None else [min(guess, 1.0) for guess in draft.confidence]
