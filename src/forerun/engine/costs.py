"""What a pass costs by its rows, measured here, with this model: what planners weigh drafts against.

Passes of every width alternate, in an order that turns from round to round, after a context like a short chat's.
Does not: say what a longer context costs; measure again when the machine gets busy.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from statistics import median
from time import perf_counter

from forerun.engine.runner import ModelRunner
from forerun.types import Costs, Work

WIDTHS = (1, 2, 4, 8, 16, 32)  # rows
CONTEXT = 256  # tokens
SECONDS = 0.5  # after which no new round begins
ROUNDS = 9  # at most; the first does not count

Timed = Callable[[], object]


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


def timed(calls: Mapping[int, Timed], turn: int) -> dict[int, float]:
    """Seconds of each call; number `turn` of them comes first."""
    order, found = list(calls), dict[int, float]()
    at = turn % len(order)
    for width in order[at:] + order[:at]:
        began = perf_counter()
        calls[width]()
        found[width] = perf_counter() - began
    return found


def measure(runner: ModelRunner, length: int) -> Costs:
    """The medians over some rounds, in a slot of `runner` that holds `length` tokens."""
    widths = [width for width in WIDTHS if width <= max(2, length // 2)]
    calls = passes(runner, widths, max(1, min(CONTEXT, length - widths[-1])))
    found, began = list[dict[int, float]](), perf_counter()
    while len(found) < 2 or (len(found) < ROUNDS and perf_counter() - began < SECONDS):  # noqa: PLR2004 - one warms up
        found.append(timed(calls, len(found)))
    seconds = [median(times[width] for times in found[1:]) for width in widths]
    return Costs(tuple(widths), tuple(accumulate(seconds, max)))
