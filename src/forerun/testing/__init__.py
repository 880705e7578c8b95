"""The contract kit, public so that a plugin's author can prove a method: `forerun.testing.check(MyDrafter)`."""

from forerun.testing.checks import check, find, laws_of
from forerun.testing.exhaustive import ExhaustiveRng, ReuseError, distance, outcomes
from forerun.testing.laws import LawError
from forerun.testing.reference import Reference
from forerun.testing.toy import Ask, BushyDrafter, Rig, SiblingsDrafter, Text, Told, Toy

__all__ = [
    "Ask",
    "BushyDrafter",
    "ExhaustiveRng",
    "LawError",
    "Reference",
    "ReuseError",
    "Rig",
    "SiblingsDrafter",
    "Text",
    "Told",
    "Toy",
    "check",
    "distance",
    "find",
    "laws_of",
    "outcomes",
]
