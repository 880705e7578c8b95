"""What a drafter's requests learn together, and which of them may not.

A sampled text depends on what was drafted for it (the distribution does not), so a request that samples learns alone:
with the same seed it writes the same, whoever its neighbours are. Greedy texts depend on no draft, and those of one
scope share; nobody's drafts show what another scope wrote.
Does not: hold for rules that are not exact, under which greedy texts depend on drafts too; drafters have an option
for that.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from forerun.types import Context

T = TypeVar("T")
SCOPES = 64  # whose pools are kept; the one that was asked for longest ago goes


class Pool(Generic[T]):
    """One thing for all greedy requests of a scope, and one for each other."""

    def __init__(self, make: Callable[[], T], *, shared: bool) -> None:
        self._make, self._shared = make, shared
        self._held: dict[str, T] = {}

    def of(self, context: Context) -> T:
        """What this request learns into."""
        if not (self._shared and context.sampling.greedy):
            return self._make()
        found = self._held.pop(context.scope, None)
        self._held[context.scope] = found if found is not None else self._make()
        if len(self._held) > SCOPES:
            del self._held[next(iter(self._held))]
        return self._held[context.scope]
