"""What a drafter's requests learn together: one thing for each scope; nobody's drafts show what another scope wrote.

Does not: keep a sampled text from depending on its neighbours' under a verifier that is not coupled, whose texts depend
on what is drafted: who has a pool declares that (`Facts.learns`), and has an option against it.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from forerun.types import Context

T = TypeVar("T")
SCOPES = 64  # whose pools are kept; the one that was asked for longest ago goes


class Pool(Generic[T]):
    """One thing for all requests of a scope, or one for each request."""

    def __init__(self, make: Callable[[], T], *, shared: bool) -> None:
        self._make, self._shared = make, shared
        self._held: dict[str, T] = {}

    def of(self, context: Context) -> T:
        """What this request learns into."""
        if not self._shared:
            return self._make()
        found = self._held.pop(context.scope, None)
        self._held[context.scope] = found if found is not None else self._make()
        if len(self._held) > SCOPES:
            del self._held[next(iter(self._held))]
        return self._held[context.scope]
