"""What every member of every family has: facts, options, and a way to be spelled, built and tested."""

from abc import ABC
from typing import Any, ClassVar

from forerun.types import Facts


class Member(ABC):
    """A row of some table. `Options` is a frozen dataclass whose fields are the options of the method."""

    facts: Facts
    Options: ClassVar[type[Any]]

    @classmethod
    def toy(cls) -> Any:  # noqa: ANN401 - the member's own Options
        """Options for the contract tests; override where the defaults need a model or a file."""
        return cls.Options()
