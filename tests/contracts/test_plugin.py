"""An installed package adds a drafter under a name of its own; the kit proves it, and finds it wrong where it is."""

from dataclasses import dataclass
from importlib import metadata

import pytest

from forerun import testing
from forerun.config import choose
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import SoloDrafter
from forerun.errors import ConfigError
from forerun.registry import Registry
from forerun.types import Draft, Facts


class EchoDrafter(SoloDrafter):
    """Guess that the last token comes again.

    Does not: look further back than one token.
    """

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """How often."""

        times: int = 2

    def __init__(self, options, setup):
        self.options = options

    def propose_one(self, context, budget):
        return Draft.chain(context.tokens[-1:] * min(self.options.times, budget), "echo")


class GreedyDrafter(EchoDrafter):
    """Takes more than its budget.

    Does not: care.
    """

    def propose_one(self, context, budget):
        return Draft.chain(context.tokens[-1:] * (budget + 1), "echo")


class Installed:
    """An entry point of an installed package."""

    name = "echo"

    def load(self):
        return EchoDrafter


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(
        "forerun.registry.entry_points", lambda group: [Installed()] if group == "forerun.drafters" else []
    )
    vars(DRAFTERS).pop("plugins", None)  # what was read before
    yield
    vars(DRAFTERS).pop("plugins", None)


def test_an_installed_drafter_is_a_row(installed):
    assert "echo" in list(DRAFTERS)
    assert choose(DRAFTERS, "echo:times=3").options.times == 3
    with pytest.raises(ConfigError, match="did you mean 'times'"):
        choose(DRAFTERS, "echo:time=3")


def test_an_installed_drafter_is_proved(installed):
    held = testing.check("echo")
    assert {"documented", "spelled"} < set(held)
    assert any(name.startswith("exact: echo") for name in held)


def test_a_class_that_stands_in_no_table_has_laws():
    names = [name for name, _ in testing.laws_of(testing.find(EchoDrafter))]
    assert any(name.startswith("greedy: EchoDrafter") for name in names)


def test_a_greedy_drafter_is_caught():
    with pytest.raises(testing.LawError, match="failed"):
        testing.check(GreedyDrafter)


def test_a_name_that_a_built_in_has_is_refused(monkeypatch):
    taken = Installed()
    taken.name = "ngram"
    monkeypatch.setattr("forerun.registry.entry_points", lambda **_: [taken])
    with pytest.raises(ConfigError, match="built in; rename it"):
        list(Registry("drafter", "forerun.drafters", {"ngram": "ngram:NgramDrafter"}))


def test_entry_points_are_read_from_the_packages_that_are_installed():
    assert list(metadata.entry_points(group="forerun.drafters")) == []


def test_an_unknown_member_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'ngram'"):
        testing.check("ngrm")
