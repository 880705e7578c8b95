"""What a drafter's requests learn together, and which of them may not.

A sampled text depends on what was drafted for it (the distribution does not), so a request that samples learns alone:
with the same seed it writes the same, whoever its neighbours are. Greedy texts depend on no draft, and share.
Does not: hold for rules that are not exact, under which greedy texts depend on drafts too; drafters have an option
for that. Forget: what is shared stays as long as the drafter.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from forerun.types import Context

T = TypeVar("T")


class Pool(Generic[T]):
    """One thing for all greedy requests, and one for each other."""

    def __init__(self, make: Callable[[], T], *, shared: bool) -> None:
        self._make, self._shared, self._common = make, shared, make()

    def of(self, context: Context) -> T:
        """What this request learns into."""
        return self._common if self._shared and context.sampling.greedy else self._make()
