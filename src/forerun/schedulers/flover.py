"""Continuous batching: a prompt is read whole, in one step, and from then on written with all others (2305.13484).

A step reads prompts by arrival as far as they fit beside who decodes; one that has no room is read first, in parts.
Does not: keep a step short: who decodes waits for the longest prompt that fits (`sarathi` cuts it); fuse kernels, which
the engine's flat pass does for every scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup


class FloverScheduler(Scheduler):
    """Decodes first, then whole prompts by arrival."""

    facts = Facts(keys=("flover",), paper="2305.13484", stall_free=True, evidence="docs/results/README.md#schedulers")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return [c.id for c in sorted(waiting, key=lambda c: c.arrival)]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        by_age = sorted(running, key=lambda c: c.arrival)
        picks = in_order([c for c in by_age if c.decoding], room)
        prompts, left = [c for c in by_age if not c.decoding], room - len(picks)
        for c in prompts:
            if c.pending > left and c is not prompts[0]:
                break  # nobody overtakes
            picks += in_order([c], left)
            left -= c.pending
        return picks
