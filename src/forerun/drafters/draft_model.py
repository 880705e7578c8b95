"""A second, smaller model guesses; a tree says in which shape.

Of trees that choose their tokens, nodes whose chance does not reach the planner's bar are left out (`Bar`). What is
drawn is drawn from the small model's own distribution q, shaped by the request's sampling (2211.17192 alg. 1,
2302.01318 alg. 2).
Does not: translate between tokenizers; both models must share one vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from forerun.drafters.contract import Drafter
from forerun.drafting.readings import GrownReading, Reading
from forerun.drafting.recall import Recall
from forerun.errors import ConfigError
from forerun.growth import UNSOUND, Growth
from forerun.member import check_branching
from forerun.reader import check_states, leave, second_model
from forerun.sampling import Shaper
from forerun.trees.contract import Tree
from forerun.types import Best, Context, Draft, Facts, Grown, Need, Outcome, Setup, Sprout, Work


class _Ahead(NamedTuple):
    """What was foreseen of a text and its next budget when a draft began to grow ahead."""

    text: int  # tokens
    last: list[int]  # of them
    budget: int
    mark: int  # the cache's, of before

    def fits(self, context: Context, budget: int) -> bool:
        """Whether it came so."""
        text = context.tokens
        return budget == self.budget and len(text) == self.text and text[-len(self.last) :] == self.last


@dataclass(eq=False, slots=True)
class _Seat:
    """A request's place in the small model's cache."""

    slot: int
    recall: Recall
    reading: Reading | GrownReading | None = None  # of its last draft
    budget: int = 0  # of that, where it grew in one go and is not judged yet
    ahead: _Ahead | None = None  # the reading is of a draft that nobody has asked for yet


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
        self.options, self.eos, self.bar = options, setup.eos, setup.bar
        self._ends = frozenset(setup.eos)
        self.tree: Tree = setup.open_tree(options.tree or "chain")
        self.runner = second_model(setup, options.model, "drafter 'draft-model'", options.cache, options.dtype)
        check_branching(f"tree {options.tree!r}", self.tree.facts, options.cache, self.runner.cache.facts)
        check_states(options.tree, self.tree.hidden, self.tree.state_size, self.runner)
        wide = not options.tree and setup.branches and self.runner.cache.facts.branches and self.runner.branches
        self.best: Tree | None = setup.open_tree("opt-tree") if wide else None  # of who chooses tokens
        self.bar.heeded = (self.best or self.tree).best(1, 1) is not None
        self._rules = lru_cache(64)(self._rule_of)
        self._growing = list[_Seat]()  # ahead
        self._end: Callable[[], list[Grown]] | None = None  # waits for that
        self._problem: Exception | None = None  # of it

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(model="toy:100", depth=2)

    @property
    def watches(self) -> bool:
        return self.tree.recalls > 0

    def start(self, context: Context) -> _Seat:
        self._settle()
        return _Seat(int(self.runner.cache.open(())[0]), Recall(self.tree.recalls))

    def pause(self, context: Context) -> None:
        self.stop(context)
        context.state.reading = context.state.ahead = None

    def resume(self, context: Context) -> None:
        self._settle()
        context.state.slot = int(self.runner.cache.open(())[0])

    def stop(self, context: Context) -> None:
        self._settle()
        leave(self.runner, context.state)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        self._settle()
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        drafts = [self._foreseen(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        left = [i for i, draft in enumerate(drafts) if draft is None]
        if left:
            asked = [batch[i] for i in left], [budgets[i] for i in left]
            for i, draft in zip(left, self._at_once(*asked) or self._by_looks(*asked), strict=True):
                drafts[i] = draft
        return [draft for draft in drafts if draft is not None]

    def _foreseen(self, context: Context, budget: int) -> Draft | None:
        """The draft that grew ahead, if it is what is asked for; else the cache is as if none had."""
        seat, cache = context.state, self.runner.cache
        ahead, seat.budget = seat.ahead, 0
        if ahead is not None and isinstance(seat.reading, GrownReading) and ahead.fits(context, budget):
            seat.ahead, seat.budget = None, budget
            return _draft(seat.reading.tree)
        self._forget(seat)
        if cache.unjudged(seat.slot):  # a draft before was never judged
            cache.keep(seat.slot, (), ())
        return None

    def _forget(self, seat: _Seat) -> None:
        """A draft that grew ahead, if there is one."""
        if seat.ahead is not None:
            self.runner.cache.rollback(seat.slot, seat.ahead.mark)
            seat.ahead = seat.reading = None

    def _settle(self) -> None:
        """Nothing may touch the cache before what grows ahead has grown."""
        if self._end is None:
            return
        end, self._end = self._end, None
        try:
            for seat, tree in zip(self._growing, end(), strict=True):
                seat.reading = GrownReading(tree)
        except Exception as problem:  # noqa: BLE001 - it is told to whoever asks for a draft, and to nobody else
            self._problem = problem

    def _by_looks(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        """Grow what the trees ask for."""
        readings = [self._begin(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        active = [r for r in readings if r.growth.looking]
        if active and self._blind(active):
            passes = list[list[Reading]]()
            for number, outputs in enumerate(self.runner.follow(self._steps(active, passes))):
                for reading, output in zip(passes[number], outputs, strict=True):
                    reading.growth.answer(number, output)
        else:
            self._by_level(active)
        return [reading.growth.draft("draft-model") for reading in readings]

    def _shape(self, *, greedy: bool) -> tuple[Tree, int]:
        """The tree of a request, and its levels."""
        tree = self.best if self.best is not None and greedy else self.tree
        return tree, self.options.depth or tree.levels

    def _rule(self, context: Context, budget: int) -> Best | None:
        """By which the best tree of a request grows, if that is what it gets."""
        return self._rules(context.sampling.greedy, budget, self.bar.chance)

    def _rule_of(self, greedy: bool, budget: int, bar: float) -> Best | None:  # noqa: FBT001 - remembered by place
        """The same for all requests that are alike in these."""
        tree, depth = self._shape(greedy=greedy)
        rule = tree.best(budget, depth)
        return rule._replace(bar=bar) if rule is not None else None

    def _begin(self, context: Context, budget: int) -> Reading:
        """A new draft."""
        seat: _Seat = context.state
        tree, depth = self._shape(greedy=context.sampling.greedy)
        growth = Growth(seat.recall.reminded(context), budget, depth, tree.grow, self.eos, self.bar.chance)
        seat.reading = reading = Reading(seat.slot, tree.blind, growth)
        return reading

    def _blind(self, active: Sequence[Reading]) -> bool:
        """Whether chains can grow in one go: nothing that the host decides depends on a drafted token."""
        looks = [reading.growth.newest for reading in active]
        asks = any((look.worthwhile and look.lot is None) or look.hidden for look in looks)
        several = any(min(reading.growth.budget, reading.growth.depth) > 1 for reading in active)
        blind = all(reading.blind for reading in active)
        return blind and several and self.runner.follows(asks=asks) and all(look.early for look in looks)

    def _steps(self, active: list[Reading], passes: list[list[Reading]]) -> Iterator[list[Work]]:
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
        wanted, cache = list[tuple[int, Sequence[int], Best]](), self.runner.cache
        for context, budget in zip(batch, budgets, strict=True):
            slot, rule = context.state.slot, self._rule(context, budget)
            tokens = context.tokens[cache.length(slot) :]
            bends = not context.sampling.best and Shaper.of(context, self.eos).bends
            if rule is None or budget < 1 or not tokens or bends:  # none: asked twice
                return None
            if not cache.reserve(slot, len(tokens) + rule.beyond):
                return None
            wanted.append((slot, tokens, rule))
        grown = self.runner.follow_best([self._sprout(*one) for one in wanted])
        for context, budget, one in zip(batch, budgets, grown, strict=True):
            context.state.reading, context.state.budget = GrownReading(one), budget
        return [_draft(one) for one in grown]

    def _sprout(self, slot: int, tokens: Sequence[int], rule: Best) -> Sprout:
        """What grows behind these tokens, for which there is room; they are about to be read."""
        past = self.runner.cache.length(slot)
        return Sprout(past, tokens, self.runner.cache.read_ahead(slot, tokens, rule.beyond), rule)

    def _by_level(self, active: list[Reading]) -> None:
        """Level after level, each from what the one before has found."""
        level = 0
        while active := [reading for reading in active if self._room(reading)]:
            outputs = self.runner.run([self._work(reading) for reading in active])
            for reading, output in zip(active, outputs, strict=True):
                reading.growth.answer(level, output)
                self._go_on(reading)
            level += 1

    def _room(self, reading: Reading) -> bool:
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

    def _work(self, reading: Reading) -> Work:
        """The first pass reads what was committed since the last draft; later ones read nodes."""
        growth, look = reading.growth, reading.growth.newest
        if len(growth.asked) > 1:
            return reading.work()
        tokens = tuple(growth.context.tokens[self.runner.cache.length(reading.slot) :])
        ask = look if look.worthwhile else None
        return Work(reading.slot, tokens, logits=(len(tokens) - 1,), hidden=look.hidden, ask=ask, lot=look.lot)

    def _go_on(self, reading: Reading) -> None:
        """The look's pass has begun: what the first one read is committed text."""
        growth, cache = reading.growth, self.runner.cache
        if len(growth.asked) == 1:
            read = growth.context.tokens[cache.length(reading.slot) :]
            cache.keep(reading.slot, read, range(len(read)))
        growth.go_on()

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        """Keep the accepted nodes that the small model has read; the rest vanishes from its cache.

        The next drafts grow while what these wrote becomes text, as if everybody went on with the same budget.
        """
        self._settle()
        sprouts, seats, aside = list[Sprout](), list[_Seat](), self.runner.aside
        for context, outcome in zip(batch, outcomes, strict=True):
            seat: _Seat = context.state
            self._forget(seat)
            seat.recall.learn(context, outcome)
            if outcome.draft is None or outcome.verdict is None:
                seat.budget = 0
                continue
            tokens = [outcome.draft.tokens[node] for node in outcome.verdict.path]
            if seat.reading is not None:
                entries = seat.reading.find(tokens)
                self.runner.cache.keep(seat.slot, tokens[: len(entries)], entries)
                seat.reading = None
            sprout = self._ahead(context, [*tokens, outcome.verdict.token]) if aside and seat.budget else None
            if sprout is not None:
                sprouts.append(sprout)
                seats.append(seat)
        if sprouts:
            self._end, self._growing = self.runner.begin_best(sprouts), seats

    def _ahead(self, context: Context, new: list[int]) -> Sprout | None:
        """What is to grow behind tokens that become text, if the request goes on and there is room."""
        seat, sampling, cache = context.state, context.sampling, self.runner.cache
        budget, seat.budget, text = seat.budget, 0, len(context.tokens) + len(new)
        if sampling.max_tokens:  # towards its end a text gets smaller budgets, and behind it none
            budget = min(budget, sampling.max_tokens - (text - context.prompt_length) - 1)
        goes_on = budget > 0 and (sampling.ignore_eos or self._ends.isdisjoint(new))
        rule = self._rule(context, budget) if goes_on else None
        mark = cache.checkpoint(seat.slot)
        unread = new[cache.length(seat.slot) - len(context.tokens) :]
        if rule is None or not cache.reserve(seat.slot, len(unread) + rule.beyond):
            return None
        seat.ahead = _Ahead(text, new, budget, mark)
        return self._sprout(seat.slot, unread, rule)


def _draft(tree: Grown) -> Draft:
    error = None if tree.sound else UNSOUND
    return Draft(tree.tokens, tree.parents, None, tree.chances, "draft-model", error)
