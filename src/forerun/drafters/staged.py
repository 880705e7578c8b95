"""A small model guesses, and is itself spared passes by a cheaper drafter (staged speculative decoding, 2308.04623).

A pass of the small model reads, behind the nodes that its tree looks at, what the cheaper drafter expects there. While
the tree then goes where it was expected, the answers are there already, at any depth and in any branch. Every token is
still drawn from the small model's own q, so the draft is that of `draft-model`, in fewer passes.
Does not: verify the cheaper drafter's guesses (none of them is ever drafted); expect something behind more than one
node per pass; draw on a device, or let passes follow each other there, as `draft-model` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from forerun.drafters.contract import Drafter
from forerun.drafting.recall import Recall
from forerun.errors import ConfigError
from forerun.growth import Growth
from forerun.member import check_branching
from forerun.reader import check_states, leave, second_model
from forerun.sampling import Path, path_to
from forerun.trees.contract import Tree
from forerun.types import Context, Draft, Facts, Need, Outcome, Output, Setup, Work


@dataclass(eq=False)
class _Known:
    """What the small model has read since the committed text that its cache holds."""

    text: tuple[int, ...]  # committed by now, and not in the cache
    parents: list[int] = field(default_factory=list)  # by entry of the cache
    entries: dict[Path, int] = field(default_factory=dict)  # by what stands behind the text
    found: dict[Path, tuple[Output, int]] = field(default_factory=dict)  # a row of some pass

    def lacks(self, path: Path) -> list[Path]:
        """What is to be read for a row there, and is not."""
        ways = (path[:end] for end in range(len(path) + 1))
        return [way for way in ways if way not in self.entries]

    def work(self, slot: int, ways: Sequence[Path], hidden: tuple[int, ...]) -> Work:
        """Reads behind the text, and all of this before it where nothing is read yet."""
        base, text = len(self.parents), self.text if not self.parents else ()
        self.parents += range(-1, len(text) - 1)
        if text:
            self.entries[()] = len(text) - 1
        for way in ways:
            self.parents.append(self.entries[way[:-1]])
            self.entries[way] = len(self.parents) - 1
        rows = tuple(range(max(len(text) - 1, 0), len(self.parents) - base))
        return Work(slot, (*text, *(way[-1] for way in ways)), tuple(self.parents), base, rows, hidden)

    def output(self, paths: Sequence[Path]) -> Output:
        """As if these had been a pass of their own."""
        rows = [self.found[path] for path in paths]
        masses = [output.mass[row] for output, row in rows if output.mass is not None]
        return Output(
            torch.stack([output.logits[row] for output, row in rows]),
            tuple(output.best[row] for output, row in rows),
            tuple(output.peak[row] for output, row in rows),
            tuple(masses) if len(masses) == len(rows) else None,
            {
                layer: torch.stack([output.hidden[layer][row - len(output.best)] for output, row in rows])
                for layer in rows[0][0].hidden
            },
        )


@dataclass(eq=False)
class _Seat:
    """A request's place in the small model's cache, and what the cheaper drafter sees of it."""

    slot: int
    recall: Recall
    cheap: Context
    known: _Known = field(default_factory=lambda: _Known(()))


class StagedDrafter(Drafter):
    """Speculative decoding of the drafter."""

    facts = Facts(
        keys=("staged",),
        paper="2308.04623",
        needs=frozenset({Need.SECOND_MODEL}),
        draws=True,
        ahead=True,
        evidence="docs/results/README.md#cascade",
    )

    @dataclass(frozen=True)
    class Options:
        """`model`, `tree`, `depth`, `dtype` and `cache` as in `draft-model`; `by`: the cheaper drafter, spelled.

        `guess`: tokens that it may expect per pass.
        """

        model: str = ""
        by: str = "ngram"
        guess: int = 8
        tree: str = "chain"
        depth: int = 0
        dtype: str = "fastest"
        cache: str = "contiguous"

        def __post_init__(self) -> None:
            if self.depth < 0 or self.guess < 1:
                given = f"depth {self.depth} and a guess of {self.guess}"
                raise ConfigError(f"drafter 'staged' has {given}; give 0 or more levels, and a guess of 1 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.eos = options, setup.eos
        self.tree: Tree = setup.open_tree(options.tree)
        self.depth = options.depth or self.tree.levels
        self.runner = second_model(setup, options.model, "drafter 'staged'", options.cache, options.dtype)
        branches = Facts(needs=frozenset({Need.BRANCHING}))  # what is expected stands beside what is drawn
        check_branching("drafter 'staged'", branches, options.cache, self.runner.cache.facts)
        check_states(options.tree, self.tree.hidden, self.tree.state_size, self.runner)
        self.cheaper: Drafter = setup.open_drafter(options.by, setup)
        if not self.cheaper.facts.ahead:
            lacks = f"drafter 'staged' is to be helped by {options.by!r}, which cannot go on behind a draft"
            raise ConfigError(f"{lacks}; use by=ngram.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(model="toy:100", by="ngram:width=2,min_match=1,max_match=2", depth=2)

    def start(self, context: Context) -> _Seat:
        greedy = replace(context, sampling=replace(context.sampling, temperature=0.0))  # what it expects is not drawn
        cheap = replace(greedy, state=self.cheaper.start(greedy))
        return _Seat(int(self.runner.cache.open(())[0]), Recall(self.tree.recalls), cheap)

    def pause(self, context: Context) -> None:
        self.cheaper.pause(context.state.cheap)
        leave(self.runner, context.state)

    def resume(self, context: Context) -> None:
        self.cheaper.resume(context.state.cheap)
        context.state.slot, context.state.known = int(self.runner.cache.open(())[0]), _Known(())

    def stop(self, context: Context) -> None:
        self.cheaper.stop(context.state.cheap)
        leave(self.runner, context.state)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        growths = [self._begin(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        active = growths
        while active := [growth for growth in active if self._asks(growth)]:
            works = [self._work(*one) for one in zip(active, self._expected(active), strict=True)]
            active = [growth for growth, work in zip(active, works, strict=True) if work is not None]
            outputs = self.runner.run([work for work in works if work is not None]) if active else []
            for growth, output in zip(active, outputs, strict=True):
                self._find(growth.context.state.known, output)
        return [growth.draft("staged") for growth in growths]

    def _begin(self, context: Context, budget: int) -> Growth:
        """A new draft; what was read for an earlier one still holds where no token was committed since."""
        seat, cache = context.state, self.runner.cache
        same = cache.length(seat.slot) + len(seat.known.text) == len(context.tokens)
        if not (same and self._sound(seat)):
            self._keep(seat, ())
            seat.known = _Known(tuple(context.tokens[cache.length(seat.slot) :]))
        return Growth(seat.recall.reminded(context), budget, self.depth, self.tree.grow, self.eos)

    def _asks(self, growth: Growth) -> bool:
        """Answer all that can be answered; whether something is left to be read."""
        known: _Known = growth.context.state.known
        while growth.looking:
            paths = [growth.path(node) for node in growth.newest.nodes]
            if not known.found.keys() >= set(paths):
                return True
            growth.answer(len(growth.asked) - 1, known.output(paths))
            growth.go_on()
        return False

    def _missing(self, growth: Growth) -> list[Path]:
        known: _Known = growth.context.state.known
        paths = [growth.path(node) for node in growth.newest.nodes]
        return [path for path in paths if path not in known.found]

    def _expected(self, active: Sequence[Growth]) -> list[list[Path]]:
        """What the cheaper drafter expects behind the first place where something is asked, as deep as it is of use."""
        places = [self._missing(growth)[0] for growth in active]
        asked = [replace(g.context.state.cheap, ahead=place) for g, place in zip(active, places, strict=True)]
        drafts = self.cheaper.propose(asked, [self.options.guess] * len(asked))
        deepest = [len(growth.context.ahead) + growth.depth - 1 for growth in active]
        found = [
            [(*place, *path_to(draft, node)) for node in range(len(draft))]
            for place, draft in zip(places, drafts, strict=True)
        ]
        return [[path for path in paths if len(path) <= most] for paths, most in zip(found, deepest, strict=True)]

    def _work(self, growth: Growth, expected: Sequence[Path]) -> Work | None:
        """What is asked, and what is expected where there is room; None where there is none, and the draft ends."""
        seat, cache = growth.context.state, self.runner.cache
        known: _Known = seat.known
        asked = [way for path in self._missing(growth) for way in known.lacks(path)]
        for wanted in ([*asked, *expected], asked):
            ways = [way for way in dict.fromkeys(wanted) if way and way not in known.entries]
            if cache.reserve(seat.slot, len(ways) + (0 if known.parents else len(known.text))):
                return known.work(seat.slot, ways, self.tree.hidden)
        return None

    def _find(self, known: _Known, output: Output) -> None:
        """Rows of a pass belong to the newest entries."""
        if self.runner.lends:
            output = output._replace(held=output.logits.clone())
        newest = list(known.entries)[-len(output.best) :]
        known.found.update({path: (output, row) for row, path in enumerate(newest)})

    def _sound(self, seat: _Seat) -> bool:
        """Whether the cache holds what is known; where a pass failed it does not."""
        return bool(self.runner.cache.unjudged(seat.slot) == len(seat.known.parents))

    def _keep(self, seat: _Seat, path: Path) -> None:
        """What was read of the text stays in the cache, and what was read along a path; the rest vanishes."""
        known = seat.known if self._sound(seat) else _Known(())
        seat.known = _Known(())
        ways = [path[:end] for end in range(1, len(path) + 1) if path[:end] in known.entries]
        text = known.text if known.parents else ()
        tokens = [*text, *(way[-1] for way in ways)]
        self.runner.cache.keep(seat.slot, tokens, [*range(len(text)), *(known.entries[way] for way in ways)])

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.cheaper.observe([context.state.cheap for context in batch], outcomes)
        for context, outcome in zip(batch, outcomes, strict=True):
            context.state.recall.learn(context, outcome)
            if outcome.draft is not None and outcome.verdict is not None:
                tokens = tuple(outcome.draft.tokens[node] for node in outcome.verdict.path)
                self._keep(context.state, tokens)
