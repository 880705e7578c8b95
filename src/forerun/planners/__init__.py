"""Planners: how many nodes, for whom."""

from forerun.registry import Registry

PLANNERS = Registry(
    "planner",
    __name__,
    {
        "fixed": "fixed:FixedPlanner",
        "free": "free:FreePlanner",
        "auto": "auto:AutoPlanner",
    },
)
