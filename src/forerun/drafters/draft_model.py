"""A second, smaller model guesses; a tree says in which shape.

What is drawn is drawn from the small model's own distribution q, shaped by the request's sampling (2211.17192 alg. 1,
2302.01318 alg. 2).
Does not: translate between tokenizers; both models must share one vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forerun.drafters.contract import Drafter
from forerun.drafting.recall import Recall
from forerun.errors import ConfigError
from forerun.growth import ROOT, UNSOUND, Growth
from forerun.member import check_branching
from forerun.reader import check_states, leave, second_model
from forerun.sampling import Shaper
from forerun.trees.contract import Tree
from forerun.types import Best, Context, Draft, Facts, Grown, Need, Outcome, Setup, Work


@dataclass(eq=False, slots=True)
class _Reading:
    """What the small model reads of one draft: an entry of its cache per node that is looked behind."""

    slot: int
    tree: Tree
    growth: Growth
    nodes: list[int] = field(default_factory=list)  # by entry
    entries: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})  # by node
    parents: list[int] = field(default_factory=list)  # entries, by entry

    def work(self) -> Work:
        """The nodes of the newest look as rows; their tokens do not matter where only a device knows them."""
        growth, base = self.growth, len(self.nodes)
        look = growth.newest
        for node in look.nodes:
            self.entries[node] = len(self.nodes)
            self.nodes.append(node)
            self.parents.append(self.entries[growth.parents[node]])
        tokens = tuple([growth.children[node].token for node in look.nodes])
        rows = tuple(range(len(look.nodes)))
        ask = look if look.worthwhile else None
        return Work(self.slot, tokens, tuple(self.parents), base, rows, look.hidden, ask=ask, lot=look.lot)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The entries along a path of tokens, as far as they were read."""
        return _along(tokens, self.nodes, self.growth.parents, [child.token for child in self.growth.children])


@dataclass(eq=False, slots=True)
class _Grown:
    """What the small model has read of a draft that grew in one go."""

    tree: Grown

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The same."""
        return _along(tokens, self.tree.read, self.tree.parents, self.tree.tokens)


def _along(path: Sequence[int], read: Sequence[int], parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """The entries along a path of tokens; `read`: the node of every entry, or -1."""
    found, above = list[int](), ROOT
    for token in path:
        for entry, node in enumerate(read):
            if node != ROOT and parents[node] == above and tokens[node] == token:
                found.append(entry)
                above = node
                break
        else:
            return found
    return found


@dataclass(eq=False, slots=True)
class _Seat:
    """A request's place in the small model's cache."""

    slot: int
    recall: Recall
    reading: "_Reading | _Grown | None" = None  # of its last draft


class DraftModelDrafter(Drafter):
    """Speculative decoding with a small model of the same vocabulary."""

    facts = Facts(
        keys=("speculative-decoding", "speculative-sampling"),
        paper="2211.17192",
        needs=frozenset({Need.SECOND_MODEL}),
        draws=True,
        evidence="docs/results/README.md#speed",
    )

    @dataclass(frozen=True)
    class Options:
        """`model`: a folder ("" takes the one that the target's folder names); `tree`: the shape, (level:width=3).

        Without a tree tokens that are drawn are a chain, and those that are chosen the best tree (`opt-tree`) where the
        small model is compiled and can grow that in one go, else a chain too.
        `depth`: levels of the tree, each a pass of the small model; 0: as many as the tree asks for. `dtype` is the
        small model's precision: rounding it changes what is guessed, never what comes out.
        """

        model: str = ""
        tree: str = ""
        depth: int = 0
        dtype: str = "fastest"
        cache: str = "contiguous"

        def __post_init__(self) -> None:
            if self.depth < 0:
                raise ConfigError(f"drafter 'draft-model': depth is {self.depth}; give 1 or more levels, or 0.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.eos = options, setup.eos
        self.tree: Tree = setup.open_tree(options.tree or "chain")
        self.runner = second_model(setup, options.model, "drafter 'draft-model'", options.cache, options.dtype)
        check_branching(f"tree {options.tree!r}", self.tree.facts, options.cache, self.runner.cache.facts)
        check_states(options.tree, self.tree.hidden, self.tree.state_size, self.runner)
        wide = not options.tree and setup.branches and self.runner.cache.facts.branches and self.runner.branches
        self.best: Tree | None = setup.open_tree("opt-tree") if wide else None  # of who chooses tokens

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(model="toy:100", depth=2)

    @property
    def watches(self) -> bool:
        return self.tree.recalls > 0

    def start(self, context: Context) -> _Seat:
        return _Seat(int(self.runner.cache.open(())[0]), Recall(self.tree.recalls))

    def pause(self, context: Context) -> None:
        leave(self.runner, context.state)
        context.state.reading = None

    def resume(self, context: Context) -> None:
        context.state.slot = int(self.runner.cache.open(())[0])

    def stop(self, context: Context) -> None:
        leave(self.runner, context.state)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        cache = self.runner.cache
        for context in batch:
            if cache.unjudged(context.state.slot):  # a draft before was never judged
                cache.keep(context.state.slot, (), ())
        return self._at_once(batch, budgets) or self._by_looks(batch, budgets)

    def _by_looks(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        """Grow what the trees ask for."""
        readings = [self._begin(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        active = [r for r in readings if r.growth.looking]
        if active and self._blind(active):
            passes = list[list[_Reading]]()
            for number, outputs in enumerate(self.runner.follow(self._steps(active, passes))):
                for reading, output in zip(passes[number], outputs, strict=True):
                    reading.growth.answer(number, output)
        else:
            self._by_level(active)
        return [reading.growth.draft("draft-model") for reading in readings]

    def _shape(self, context: Context) -> tuple[Tree, int]:
        """The tree of a request, and its levels."""
        tree = self.best if self.best is not None and context.sampling.greedy else self.tree
        return tree, self.options.depth or tree.levels

    def _begin(self, context: Context, budget: int) -> _Reading:
        """A new draft."""
        seat: _Seat = context.state
        tree, depth = self._shape(context)
        growth = Growth(seat.recall.reminded(context), budget, depth, tree.grow, self.eos)
        seat.reading = reading = _Reading(seat.slot, tree, growth)
        return reading

    def _blind(self, active: Sequence[_Reading]) -> bool:
        """Whether chains can grow in one go: nothing that the host decides depends on a drafted token."""
        looks = [reading.growth.newest for reading in active]
        asks = any((look.worthwhile and look.lot is None) or look.hidden for look in looks)
        several = any(min(reading.growth.budget, reading.growth.depth) > 1 for reading in active)
        blind = all(reading.tree.blind for reading in active)
        return blind and several and self.runner.follows(asks=asks) and all(look.early for look in looks)

    def _steps(self, active: list[_Reading], passes: list[list[_Reading]]) -> Iterator[list[Work]]:
        """Pass after pass of whole chains, of which the host learns at the end."""
        while active := [reading for reading in active if self._room(reading)]:
            passes.append(active)
            yield [self._work(reading) for reading in active]
            for reading in active:
                self._go_on(reading)

    def _at_once(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft] | None:
        """Grow the best trees without the host, where that is what all of them are, and there is room."""
        if not self.runner.branches:
            return None
        works, rules, cache = list[Work](), list[Best](), self.runner.cache
        for context, budget in zip(batch, budgets, strict=True):
            tree, depth = self._shape(context)
            rule = tree.best(budget, depth)
            tokens = tuple(context.tokens[cache.length(context.state.slot) :])
            bends = not context.sampling.best and Shaper.of(context, self.eos).bends
            if rule is None or budget < 1 or not tokens or bends:  # none: asked twice
                return None
            works.append(Work(context.state.slot, tokens, logits=(len(tokens) - 1,)))
            rules.append(rule)
        grown = self.runner.follow_best(works, rules)
        if grown is None:
            return None
        for context, one in zip(batch, grown, strict=True):
            context.state.reading = _Grown(one)
        return [_draft(one) for one in grown]

    def _by_level(self, active: list[_Reading]) -> None:
        """Level after level, each from what the one before has found."""
        level = 0
        while active := [reading for reading in active if self._room(reading)]:
            outputs = self.runner.run([self._work(reading) for reading in active])
            for reading, output in zip(active, outputs, strict=True):
                reading.growth.answer(level, output)
                self._go_on(reading)
            level += 1

    def _room(self, reading: _Reading) -> bool:
        """Whether there is something to read, and the small model can; its context may be the shorter one.

        There is nothing new for who is asked twice in a step.
        """
        growth, cache = reading.growth, self.runner.cache
        if not growth.looking:
            return False
        if len(growth.asked) > 1:
            return bool(cache.reserve(reading.slot, len(growth.newest.nodes)))
        new = len(growth.context.tokens) - cache.length(reading.slot)
        return new > 0 and bool(cache.reserve(reading.slot, max(new, len(growth.newest.nodes))))

    def _work(self, reading: _Reading) -> Work:
        """The first pass reads what was committed since the last draft; later ones read nodes."""
        growth, look = reading.growth, reading.growth.newest
        if len(growth.asked) > 1:
            return reading.work()
        tokens = tuple(growth.context.tokens[self.runner.cache.length(reading.slot) :])
        ask = look if look.worthwhile else None
        return Work(reading.slot, tokens, logits=(len(tokens) - 1,), hidden=look.hidden, ask=ask, lot=look.lot)

    def _go_on(self, reading: _Reading) -> None:
        """The look's pass has begun: what the first one read is committed text."""
        growth, cache = reading.growth, self.runner.cache
        if len(growth.asked) == 1:
            read = growth.context.tokens[cache.length(reading.slot) :]
            cache.keep(reading.slot, read, range(len(read)))
        growth.go_on()

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        """Keep the accepted nodes that the small model has read; the rest vanishes from its cache."""
        for context, outcome in zip(batch, outcomes, strict=True):
            seat = context.state
            seat.recall.learn(context, outcome)
            if outcome.draft is not None and outcome.verdict is not None and seat.reading is not None:
                tokens = [outcome.draft.tokens[node] for node in outcome.verdict.path]
                entries = seat.reading.find(tokens)
                self.runner.cache.keep(seat.slot, tokens[: len(entries)], entries)
                seat.reading = None


def _draft(tree: Grown) -> Draft:
    error = None if tree.sound else UNSOUND
    return Draft(tuple(tree.tokens), tuple(tree.parents), None, tuple(tree.chances), "draft-model", error)
