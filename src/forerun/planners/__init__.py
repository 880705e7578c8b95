"""Planners: how many nodes, for whom."""

from forerun.registry import Registry

PLANNERS = Registry(
    "planner",
    __name__,
    {
        "fixed": "fixed:FixedPlanner",
        "free": "free:FreePlanner",
        "auto": "auto:AutoPlanner",
        "smartspec": "smartspec:SmartSpecPlanner",
        "tetris": "tetris:TetrisPlanner",
        "bass": "bass:BassPlanner",
        "eesd-thompson": "eesd_thompson:EesdThompsonPlanner",
        "schedule": "schedule:SchedulePlanner",
        "asymmetric": "asymmetric:AsymmetricPlanner",
        "adaeagle": "adaeagle:AdaEaglePlanner",
    },
)
