"""What becomes of drafts, and of requests without one, where the target says every token by itself.

Compiled, for all requests of a step at once, since to make as many records takes the interpreter as long as a small
model's pass. The decoders are the plain form of it.
Does not: judge what is drawn or constrained, nor find log-probabilities.
"""

from collections.abc import Sequence
from typing import Any

from forerun.kernels import native
from forerun.types import Emission, Outcome, Output, Turn, Verdict

RECORDS = Verdict, Outcome, Emission, Turn  # which compiled code makes
News = tuple[Outcome, Turn | None]  # of a request, and its turn where that is known already


def said(seats: Sequence[Any], plans: Sequence[Any], outputs: Sequence[Output]) -> list[News | None]:
    """The news of those whose tokens are their rows' best ones, of decoders' Seats and Plans; else None."""
    module: Any = native.load()
    if module is None:
        return [None] * len(seats)
    told: list[News | None] = module.said(list(seats), list(plans), list(outputs), RECORDS)
    return told
