"""What a pass costs by its rows and by the context before them, measured here, with this model.

Passes of every width alternate behind a short context, then those of some widths behind a long one, and what lies
between is taken from a straight line. The narrow ones come first, behind a few that do not count: steps of one width
follow each other, and a narrow pass behind a wide one finds a small model's weights gone from the caches. Rounds begin
at uneven times, since what a machine does beside them comes at even ones and would meet the same width every time. A
round in which the measuring thread was kept from its core does not count, where there is another: on two cores a pass
of 0.2 ms takes 7.5 beside one process that wants a core too, in every round alike, so that no spread tells. Nothing
makes a pass shorter than it is, so a width that took longer than a wider one was held up. Planners weigh drafts against
this.
Does not: measure several requests in a pass (`Costs.of` says what they add up to); measure again when the machine
gets busy.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from statistics import median_low
from time import perf_counter, thread_time
from typing import TypeVar

import numpy as np

from forerun.engine.runner import ModelRunner
from forerun.types import Costs, Work

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 25, 32, 33, 64)  # rows; a new sweep begins behind multiples of 8
FEW = (1, 4, 16, 64)  # of them, behind a long context
NEAR, FAR = 128, 640  # tokens of context
SECONDS = 1.0  # after which no new round begins
ROUNDS = 25  # at most; the first does not count
ALONE = 0.8  # of its time a thread that nobody keeps from its core runs; 0.97 and more, and 0.5 beside another process
WARMING = 0.01  # seconds of narrow passes that do not count, at the beginning of every round; up to twice as many,
UNEVEN = 0.618  # by this much of them more than in the round before

Timed = Callable[[], object]
Key = TypeVar("Key")


def passes(runner: ModelRunner, widths: Sequence[int], context: int) -> dict[int, Timed]:
    """One call per width, after a context; what a pass wrote is forgotten after it."""
    cache, tokens = runner.cache, tuple(row % runner.info.vocab_size for row in range(context))
    slot, _ = cache.open(())
    cache.reserve(slot, context)
    runner.run([Work(slot, tokens)])
    cache.keep(slot, tokens, range(context))

    def step(width: int) -> None:
        cache.reserve(slot, width)
        runner.run([Work(slot, (0,) * width, logits=tuple(range(width)))])
        cache.keep(slot, (), ())

    return {width: partial(step, width) for width in widths}


def timed(calls: Mapping[Key, Timed], turn: int) -> dict[Key, float]:
    """Seconds of each call; number `turn` of them comes first."""
    order, found = list(calls), dict[Key, float]()
    at = turn % len(order)
    for key in order[at:] + order[:at]:
        began = perf_counter()
        calls[key]()
        found[key] = perf_counter() - began
    return found


def measure(runner: ModelRunner, length: int, seconds: float = SECONDS) -> Costs:
    """The medians over the rounds that count, in two slots of `runner` that hold `length` tokens each."""
    widths = [width for width in WIDTHS if width <= max(2, length // 2)]
    few = [width for width in widths if width in FEW]
    most = length - widths[-1]
    near, far = max(1, min(NEAR, most // 2)), max(1, min(FAR, most))
    groups = [
        {(width, context): call for width, call in passes(runner, some, context).items()}
        for some, context in ((widths, near), (few, far))
    ]
    found, shares, began = list[dict[tuple[int, int], float]](), list[float](), perf_counter()
    while len(found) < 2 or (len(found) < ROUNDS and perf_counter() - began < seconds):  # noqa: PLR2004 - one warms up
        round_, ran, took = dict[tuple[int, int], float](), 0.0, 0.0
        for calls in groups:
            warm, least = perf_counter(), WARMING * (1 + UNEVEN * len(found) % 1)
            while perf_counter() - warm < least:
                groups[0][widths[0], near]()
            ran, took = ran - thread_time(), took - perf_counter()
            round_ |= timed(calls, 0)
            ran, took = ran + thread_time(), took + perf_counter()
        found.append(round_)
        shares.append(ran / max(took, 1e-9))
    counted = [times for times, share in zip(found[1:], shares[1:], strict=True) if share >= ALONE]
    middle = {key: median_low(times[key] for times in counted or found[1:]) for key in found[0]}
    rising = tuple(accumulate((middle[width, near] for width in reversed(widths)), min))[::-1]
    each = [max(middle[width, far] - middle[width, near], 0) / max(far - near, 1) for width in few]
    slopes = np.minimum(np.interp(widths, few, list(accumulate(each, max))), np.array(rising) / near)
    return Costs(tuple(widths), rising, tuple(slopes.tolist()), near, alone=bool(counted))
