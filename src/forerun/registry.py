"""The one table type: name -> "module:Class", imported on first use.

An installed package adds a row through an entry point of the group `forerun.<family>s`, under any name that no
built-in has. Does not: import a member before somebody asks for it.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from forerun.errors import ConfigError, unknown


class Registry(Mapping[str, Any]):
    """One family's table; iterates names, built-in ones first, then those of installed packages."""

    def __init__(self, family: str, package: str, table: dict[str, str]) -> None:
        self.family, self.package, self.table = family, package, table

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """Rows that installed packages declare; a name that a built-in has is refused, not replaced."""
        plural = f"{self.family[:-1]}ies" if self.family.endswith("y") else f"{self.family}s"
        found = {e.name: e for e in entry_points(group=f"forerun.{plural}")}
        taken = sorted(found.keys() & self.table.keys())
        if taken:
            message = (
                f"an installed package declares the {self.family} {taken[0]!r}, which is built in; rename it there."
            )
            raise ConfigError(message)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self.table
        yield from self.plugins

    def __len__(self) -> int:
        return len(self.table) + len(self.plugins)

    def __contains__(self, name: object) -> bool:
        return name in self.table or name in self.plugins

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the class that the row names
        if name in self.table:
            module, attribute = self.table[name].split(":")
            return getattr(import_module(f"{self.package}.{module}"), attribute)
        if name in self.plugins:
            return self.plugins[name].load()
        raise ConfigError(unknown("forerun", self.family, name, self))

    def modules(self) -> set[str]:
        """The file stems that the built-in rows name."""
        return {target.split(":")[0] for target in self.table.values()}
