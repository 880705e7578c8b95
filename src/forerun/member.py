"""What every member of every family has: facts, options, and a way to be spelled, built and tested."""

from abc import ABC
from importlib import import_module
from typing import Any, ClassVar

from forerun.errors import ConfigError
from forerun.types import Facts, Need


class Member(ABC):
    """A row of some table. `Options` is a frozen dataclass whose fields are the options of the method."""

    facts: Facts
    Options: ClassVar[type[Any]]

    @classmethod
    def toy(cls) -> Any:  # noqa: ANN401 - the member's own Options
        """Options for the contract tests; override where the defaults need a model or a file."""
        return cls.Options()


def check_branching(who: str, facts: Facts, cache: str, of_cache: Facts) -> None:
    """ConfigError where somebody's trees would meet a cache of chains."""
    if Need.BRANCHING in facts.needs and not of_cache.branches:
        lacks = f"{who} needs a cache that can branch, and cache {cache!r} cannot"
        raise ConfigError(
            f"{lacks}; use one that can, such as 'contiguous', or what drafts chains, such as tree=chain."
        )


def imported(name: str, who: str) -> Any:  # noqa: ANN401 - whatever function the caller brings
    """What "module:function" names; ConfigError where there is no such function."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as problem:
        message = f"{who} {name!r} cannot be imported ({problem})"
        raise ConfigError(f"{message}; give module:function, of a module that Python finds.") from problem
    if not callable(found):
        raise ConfigError(f"{who} {name!r} is no function; give module:function.")
    return found
