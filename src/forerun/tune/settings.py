"""What is tried: a drafter with its tree, and a budget.

Does not: search further around what was fast; every setting is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.config import choose
from forerun.drafters import DRAFTERS
from forerun.planners import PLANNERS

COPIES = ("ngram",)  # drafters that need nothing
DEPTHS = (1, 2, 4, 6, 8)  # of the companion's chains
TREES = (("depth=4,tree=dyspec", 8), ("depth=6,tree=dyspec", 16), ("depth=4,tree=opt-tree", 8))  # and nodes
NODES = (4, 8)  # where the drafter does not say how many are of use


@dataclass(frozen=True)
class Setting:
    """One way to decode, spelled as Config takes it."""

    drafter: str
    planner: str

    def __str__(self) -> str:
        return f"{self.drafter} {self.planner}"


PLAIN = Setting("none", "fixed:nodes=0")


def usual(planner: str | None, *, companion: bool) -> list[Setting]:
    """What is tried unasked, some of it only where the model's folder names a companion."""
    found = [(drafter, count) for drafter in COPIES for count in NODES]
    if companion:
        found += [(f"draft-model:tree=chain,depth={depth}", depth) for depth in DEPTHS]
        found += [(f"draft-model:{tree}", count) for tree, count in TREES]
    return _spelled(found, planner)


def given(drafters: Sequence[str], nodes: Sequence[int], planner: str | None) -> list[Setting]:
    """Every drafter with every budget; ConfigError for a name that does not exist."""
    return _spelled([(drafter, count) for drafter in drafters for count in nodes or NODES], planner)


def _spelled(pairs: Sequence[tuple[str, int]], planner: str | None) -> list[Setting]:
    """Each once, however it is spelled; with a planner all use that one, and budgets are its business."""
    found = dict[tuple[str, str], Setting]()
    for drafter, count in pairs:
        setting = Setting(drafter, planner or f"fixed:nodes={count}")
        same = choose(DRAFTERS, setting.drafter).spelling, choose(PLANNERS, setting.planner).spelling
        found.setdefault(same, setting)
    return list(found.values())
