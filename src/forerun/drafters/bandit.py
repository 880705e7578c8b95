"""One of several drafters guesses, step by step and request by request: who brings most for what asking him costs.

Counted is how often a drafter has a draft and how many of its tokens are accepted, in the request, and where little is
known of it, in its scope. Drafters are asked by Pandora's rule (Weitzman 1979) until one has a draft: in falling order
of m - rate p / n, while that is above 0, where a draft comes with chance n, brings m tokens and costs p steps to ask
for. A hundredth of the time goes to whoever was not asked for longest: his draft is compared with the text as it goes
on (2510.20064), or verified in place of the best one where it was drawn, since a text does not say what would have been
accepted. So nobody is given up, and a bandit's regret (2505.15141) is that hundredth once the first drafts are counted.
Does not: merge drafts, as `several` does; say how many nodes, as planners do; without `prices` give a seed the same
text twice where the verifier is not coupled, because measured times differ.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError
from forerun.rng import RngPart
from forerun.types import Context, Draft, Facts, Outcome, Setup, Verdict

SHARE, FULL = 0.01, 2.0  # of every step that goes to trials, and steps that are saved for one drafter's at most
HOPE = 2.0  # accepted tokens that are believed in before the first draft
SCOPE_MEMORY, MEMORY = 0.98, 0.9  # what a draft counts for after the next one
SCOPE_PRIOR, PRIOR = 1.0, 4.0  # drafts that an opinion weighs against what was counted
SCOPES = 64  # that are remembered
_NOTHING = Draft()


@dataclass(eq=False, slots=True)
class Tally:
    """What one drafter was worth lately."""

    memory: float
    prior: float
    asked: float = 0.0
    given: float = 0.0  # drafts that were not empty
    accepted: float = 0.0  # tokens

    def learn(self, accepted: int | None) -> None:
        """One more draft; None: there was none."""
        self.asked = self.memory * self.asked + 1
        if accepted is not None:
            self.given, self.accepted = self.memory * self.given + 1, self.memory * self.accepted + accepted
        else:
            self.given *= self.memory
            self.accepted *= self.memory

    def opinion(self, before: tuple[float, float]) -> tuple[float, float]:
        """The chance of a draft, and the tokens that it brings; `before` anything was counted."""
        chance = (self.given + self.prior * before[0]) / (self.asked + self.prior)
        return chance, (self.accepted + self.prior * before[1]) / (self.given + self.prior)


@dataclass(eq=False, slots=True)
class _Scope:
    """What requests have in common."""

    tallies: list[Tally]
    saved: list[float]  # steps, for trials of each drafter


@dataclass(eq=False, slots=True)
class _Arm:
    """One drafter in one request."""

    context: Context
    tally: Tally
    turn: int = 0  # when it was asked last
    draws: bool = False
    trial: Draft = _NOTHING  # that the text is compared with
    node: int = -1  # of it, to which the text has come

    def follow(self, tokens: Sequence[int]) -> int | None:
        """Go down the trial's draft; how many tokens came true, once text and draft part or the draft ends."""
        for token in tokens:
            below = [node for node in self.trial.children(self.node) if self.trial.tokens[node] == token]
            if below:
                self.node = below[0]
            if not below or not self.trial.children(self.node):
                return self.trial.depths[self.node] if self.node >= 0 else 0
        return None


@dataclass(eq=False, slots=True)
class _Request:
    """One request's drafters, and the step that is under way."""

    scope: _Scope
    arms: list[_Arm]
    turn: int = 0
    draft: Draft = _NOTHING
    by: int = -1  # whose draft it is
    tried: int = -1  # whose draft is verified for a trial
    hoped: float = 0.0  # tokens, had the best one drafted
    rate: float = 1.0  # tokens that the time of a step is worth

    def plan(self, prices: Sequence[float]) -> tuple[list[int], int]:
        """In which order drafters are asked, and whose draft is compared with the text; -1: nobody's."""
        self.turn, self.draft, self.by, self.tried = self.turn + 1, _NOTHING, -1, -1
        pairs = zip(self.arms, self.scope.tallies, strict=True)
        known = [arm.tally.opinion(general.opinion((1.0, HOPE))) for arm, general in pairs]
        rates = [(1 + chance * tokens) / (1 + price) for (chance, tokens), price in zip(known, prices, strict=True)]
        self.rate = max(1.0, *rates)
        worth = [tokens - self.rate * price / chance for (chance, tokens), price in zip(known, prices, strict=True)]
        order = sorted((one for one, value in enumerate(worth) if value > 0), key=lambda one: -worth[one])
        self.hoped = known[order[0]][0] * known[order[0]][1] if order else 0.0
        stale = self._trial(order[:1], prices)
        if stale >= 0 and self.arms[stale].draws:
            self.tried = stale
            return [stale, *(one for one in order if one != stale)], -1
        return [one for one in order if one != stale], stale  # nobody is asked twice in a step

    def _trial(self, best: Sequence[int], prices: Sequence[float]) -> int:
        """Who was not asked for longest, of those whose trial is paid for; it is paid now."""
        saved = self.scope.saved
        due = list[int]()
        for one, arm in enumerate(self.arms):
            saved[one] = min(saved[one] + SHARE / len(saved), FULL)
            cost = prices[one] + (self.hoped / self.rate if arm.draws else 0.0)
            if one not in best and not arm.trial and saved[one] >= min(cost, FULL):
                due.append(one)
        if not due:
            return -1
        stale = min(due, key=lambda one: self.arms[one].turn)
        saved[stale] -= prices[stale]
        return stale

    def take(self, number: int, draft: Draft) -> None:
        """What is verified, unless it is nothing."""
        if draft:
            self.draft, self.by = draft, number
        else:
            self.learn(number, None)

    def compare(self, number: int, draft: Draft) -> None:
        """What the text is compared with; a text says nothing of drawn tokens."""
        if not draft:
            self.learn(number, None)
        elif not self.arms[number].draws:
            self.arms[number].trial = draft

    def learn(self, number: int, accepted: int | None) -> None:
        for tally in (self.arms[number].tally, self.scope.tallies[number]):
            tally.learn(accepted)

    def judge(self, draft: Draft, verdict: Verdict) -> None:
        """What was verified, and what became of it."""
        if draft and self.by >= 0:
            self.learn(self.by, len(verdict.path))
            if self.by == self.tried:
                self.scope.saved[self.by] -= max(self.hoped - len(verdict.path), 0.0) / self.rate
        self.by = -1
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        for number, arm in enumerate(self.arms):
            found = arm.follow(tokens) if arm.trial else None
            if found is not None:
                self.learn(number, found)
                arm.trial, arm.node = _NOTHING, -1


class Clock:
    """What asking each drafter takes, in steps of the target, by the clock."""

    def __init__(self, count: int) -> None:
        self.asking, self.passing, self.since = [0.0] * count, 0.0, 0.0

    @property
    def prices(self) -> list[float]:
        """Nothing, before it is known."""
        return [seconds / self.passing if self.passing else 0.0 for seconds in self.asking]

    def asked(self, number: int, seconds: float) -> None:
        """One call."""
        self.asking[number] = _lately(self.asking[number], seconds)

    def judged(self) -> None:
        """The target's pass is over."""
        if self.since:
            self.passing, self.since = _lately(self.passing, perf_counter() - self.since), 0.0


def _lately(before: float, now: float) -> float:
    return MEMORY * before + (1 - MEMORY) * now if before else now


class BanditDrafter(Drafter):
    """Holds other drafters and asks them one by one."""

    facts = Facts(paper="2505.15141", draws=True, clocked=True, learns=True, evidence="docs/results/README.md#choices")

    @dataclass(frozen=True)
    class Options:
        """`of`: drafters, spelled; one with several options in brackets: [ngram,(draft-model:tree=svip,depth=4)].

        `prices`: what asking each of them takes, in steps of the target; none: measured as it goes.
        """

        of: tuple[str, ...] = ("ngram", "draft-model")
        prices: tuple[float, ...] = ()

        def __post_init__(self) -> None:
            if not self.of:
                message = "drafter 'bandit' holds no drafter"
                raise ConfigError(f"{message}; name some, as in bandit:of=[ngram,draft-model].")
            sound = all(price >= 0 for price in self.prices)
            if self.prices and not (sound and len(self.prices) == len(self.of)):
                message = f"drafter 'bandit' has prices {list(self.prices)} for {len(self.of)} drafters"
                raise ConfigError(f"{message}; give each a number of 0 or more, or none to any.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.drafters: list[Drafter] = [setup.open_drafter(spelled, setup) for spelled in options.of]
        self.hidden = tuple(sorted({layer for drafter in self.drafters for layer in drafter.hidden}))
        self.scopes, self.clock = OrderedDict[str, _Scope](), Clock(len(options.of))

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(("ngram:width=2,min_match=1,max_match=2", "draft-model:model=toy:100,depth=2"), (0.0, 0.1))

    def start(self, context: Context) -> _Request:
        arms, count = list[_Arm](), len(self.drafters)
        for number, drafter in enumerate(self.drafters):
            own = replace(context, rng=RngPart(context.rng, number, count))
            arms.append(_Arm(replace(own, state=drafter.start(own)), Tally(MEMORY, PRIOR)))
        return _Request(self._scope(context.scope), arms)

    def pause(self, context: Context) -> None:
        for drafter, arm in zip(self.drafters, context.state.arms, strict=True):
            drafter.pause(arm.context)

    def resume(self, context: Context) -> None:
        for drafter, arm in zip(self.drafters, context.state.arms, strict=True):
            drafter.resume(arm.context)

    def stop(self, context: Context) -> None:
        for drafter, arm in zip(self.drafters, context.state.arms, strict=True):
            drafter.stop(arm.context)

    def _scope(self, name: str) -> _Scope:
        if name not in self.scopes:
            count = len(self.drafters)
            self.scopes[name] = _Scope([Tally(SCOPE_MEMORY, SCOPE_PRIOR) for _ in range(count)], [0.0] * count)
            if len(self.scopes) > SCOPES:
                self.scopes.popitem(last=False)
        self.scopes.move_to_end(name)
        return self.scopes[name]

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        prices = self.options.prices or self.clock.prices
        requests: dict[int, _Request] = {i: batch[i].state for i, budget in enumerate(budgets) if budget}
        plans = {i: request.plan(prices) for i, request in requests.items()}
        self._ask({i: trial for i, (_, trial) in plans.items()}, requests, budgets, _Request.compare)
        for turn in range(len(self.drafters)):
            due = {i: order[turn] for i, (order, _) in plans.items() if turn < len(order) and not requests[i].draft}
            self._ask(due, requests, budgets, _Request.take)
        self.clock.since = perf_counter()
        return [requests[i].draft if i in requests else _NOTHING for i in range(len(batch))]

    def _ask(
        self,
        whom: Mapping[int, int],
        requests: Mapping[int, _Request],
        budgets: Sequence[int],
        hear: Callable[[_Request, int, Draft], None],
    ) -> None:
        """One drafter per request; those of one drafter together."""
        for number, drafter in enumerate(self.drafters):
            asked = [i for i, one in whom.items() if one == number]
            if not asked:
                continue
            arms, began = [requests[i].arms[number] for i in asked], perf_counter()
            drafts = drafter.propose([arm.context for arm in arms], [budgets[i] for i in asked])
            if all(arm.turn for arm in arms):  # a request's first draft has its prompt to read
                self.clock.asked(number, perf_counter() - began)
            for i, arm, draft in zip(asked, arms, drafts, strict=True):
                arm.turn, arm.draws = requests[i].turn, arm.draws or draft.q is not None
                hear(requests[i], number, draft)

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.clock.judged()
        for number, drafter in enumerate(self.drafters):
            drafter.observe([context.state.arms[number].context for context in batch], outcomes)
        for context, outcome in zip(batch, outcomes, strict=True):
            if outcome.draft is not None and outcome.verdict is not None:
                context.state.judge(outcome.draft, outcome.verdict)
