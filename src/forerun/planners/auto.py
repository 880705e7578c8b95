"""As many nodes as bring the most tokens per second, by what passes cost and what became of earlier drafts.

A pass of n rows takes T(n) seconds, measured when there is a first draft and corrected by how passes go now
(drafting/passes.py). What a step takes beside its pass is learnt as it goes (drafting/toll.py), mostly from steps that
are not looked at closely, for the looks take time: without drafts, and what drafts add to it; so some steps without are
taken now and then. How often a node is accepted if its parent is, is counted by who guessed it, how deep and how surely
(drafting/worth.py); so a draft that was made is cut to the nodes that pay, over all requests. How many nodes are worth
drafting is what earlier drafts of the request, and of all, have been worth by that measure, or have brought in steps
that are not looked at closely. Both times nodes are taken in falling order of their chances, as far as tokens per
second rise: a knapsack of equal weights. What is never tried is never learnt, so a little more than pays is drafted and
verified now and then, and again at once where it paid, unless drafts have cost more than they brought by a share of all
the time.
Does not: choose between drafters; give a seed the same text twice where the verifier is not coupled, because measured
times differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf

from forerun.drafting.losses import Losses
from forerun.drafting.passes import COLD, Passes
from forerun.drafting.toll import Toll
from forerun.drafting.worth import Made, Record, Trusts, path_of
from forerun.errors import ConfigError
from forerun.planners.contract import Memory, Planner, Spent, reach
from forerun.types import Context, Draft, Facts, Setup, Turn

YOUNG, LEARNT = 6, 16  # steps that are looked at closely when drafts begin, until there were so many (every other one,
APART = 8  # of one request); else every few are, for the time it takes,
QUIET, MUTE = 32, 0.03  # and fewer while nothing is drafted: after so many steps and so many seconds
GLANCE, TIMED = 2, 4  # of so many others, one draft's outcome (with one request) and one step's time are noted
STEADY = 16  # steps between two decisions, at most, while what pays is the same
FEWER = 0.75  # of the requests with which nothing paid, at most, are a reason to look again: one more may come at once
PATIENCE = 16  # steps between trials of a request
TRIED = 1  # nodes more, in a trial,
ASKED = 4  # of so many requests, where nothing is drafted: more would cost more and say little more of each other
BARE, RARE = 8, 256  # steps until there are some without drafts, at first and in the end; more where these
SURE = 1.3  # are thought to bring that much less than others,
STREAK = 3  # and so many of them: right after drafts, whose passes have emptied the caches, one takes longer
LOOK = 1.5e-4  # seconds: a row that costs less is verified sooner than it is looked at, for few are not worth it
EDGE = 1.03  # times plain's tokens per second, at least, are to be expected of drafts that go on,
START = 1.1  # and of those that begin, which have to read what was written meanwhile;
SLACK = 0.08  # less with one request, and shared by more: one's luck says little
FALLEN = 0.9  # of the highest rate: behind it nobody looks for a higher one
NOBODY: tuple[tuple[int, ...], int, list[int]] = ((), 0, [])


class AutoPlanner(Planner):
    """The budget with the highest expected tokens per second; none where plain decoding is faster."""

    facts = Facts(clocked=True, evidence="docs/results/README.md#planner-auto")

    @dataclass(frozen=True)
    class Options:
        """`most`: nodes of one request in one step."""

        most: int = 16

        def __post_init__(self) -> None:
            if self.most < 1:
                raise ConfigError(f"planner 'auto': most is {self.most}; give at least 1, or planner='fixed:nodes=0'.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.passes = options, Passes(setup.costs)
        self.lesson = min(setup.drafter.lesson, options.most)
        self.everybody, self.toll, self.trusts = Record(options.most), Toll(), Trusts()
        self.requests = Memory(lambda: Record(options.most))
        self.made = dict[int, Made]()  # in the step that is under way
        self.trying = set[int]()  # requests, in this step
        self.close, self.young = True, 0  # whether this step is looked at closely; until which there is much to learn
        self.shares = NOBODY  # requests, room, and what each gets
        self.rest, self.quiet = YOUNG, QUIET  # steps between two decisions, and two looks while nothing is drafted
        self.again = inf if setup.drafter.silent else 0  # the step of the next
        self.steps, self.floor = 0, 0.0  # what a node must be worth to be verified
        self.losses = Losses()
        self.price = 0.0  # steps that those of one step cost, as a rule
        self.bare, self.pause = BARE, BARE  # the step of the next look at some without drafts; steps until another
        self.streak = 0  # of those, how many are to come
        self.hope, self.paid = 1, False  # nodes of a trial where nobody drafts; whether the latest such trial paid
        self.gain = 0.0  # tokens per second over those without drafts; 0 until these have been seen beside drafts

    # before drafting

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        if not batch:
            return []
        self.steps += 1
        self.trying.clear()
        if self.steps < self.again and not any(self.shares[2]) and len(batch) > FEWER * len(self.shares[0]):
            self.close, self.made = self.steps % self.quiet == 0, {}  # nothing paid a moment ago, with about as many
            return [0] * len(batch)
        ids = tuple([context.id for context in batch])
        if self.trusts.of and any(self.shares[2]) and self.steps >= self.bare + (RARE if self.gain >= SURE else 0):
            self.streak = self.streak or (STREAK if self.passes.warm(len(batch)) else COLD + 1)
        if self.streak or not self.toll.idle:  # it must be known what a step takes without drafts
            self.close, self.made = True, {}
            self.streak = max(self.streak - 1, 0)
            if not self.streak:
                self.pause = min(2 * self.pause, RARE) if self.trusts.of else BARE
                self.bare = self.steps + self.pause
            return [0] * len(batch)
        same = self.shares[:2] == (ids, room)
        if same and not self.trusts.of:
            return list(self.shares[2])  # nothing has come of it yet
        bearable = self.losses.bearable(self.steps)
        due = not same or self.steps >= self.again or (any(self.shares[2]) and not bearable)
        every = APART if self.toll.warm and self.steps >= self.young else 2 if len(batch) == 1 else 1
        self.close = due or (self.again - self.steps) % every == 0
        if not self.close:
            return list(self.shares[2])
        if due:
            before, shares = self.shares[2], self._best(batch, room) if bearable else [0] * len(batch)
            self.shares, drafting = (ids, room, shares), any(shares)
            self.young = self.steps + YOUNG * (drafting and self.everybody.drafts < LEARNT)
            known = abs(sum(shares) - sum(before)) <= len(batch) // APART + 1 or not drafting
            self.rest = min(2 * self.rest, STEADY if drafting else 2 * self.quiet) if known else YOUNG
            self.again = self.steps + self.rest
        shares = self.shares[2]
        if self.trusts.of and (self.paid or self.losses.trial(self.steps)):
            shares = self._tried(batch, shares, room)
        self.made = {number: Made(share) for number, share in zip(ids, shares, strict=True) if share}
        return list(shares)

    @property
    def least(self) -> int:
        """Nodes of a draft."""
        return max(self.lesson, 1)

    def _tried(self, batch: Sequence[Context], shares: list[int], room: int) -> list[int]:
        """Some nodes more for requests that had no trial for a while."""
        asked, new = (len(batch), self.least) if any(shares) else (min(len(batch), ASKED), max(self.hope, self.least))
        pause, self.paid = 1 if self.paid else PATIENCE, False
        most, left = min(self.options.most, room // len(batch)), min(room - sum(shares), asked * new)
        for i, context in enumerate(batch):
            record = self.requests.of(context)
            more = min(TRIED if shares[i] else new, most - shares[i])
            if self.steps >= record.tried + pause and 0 <= more <= left:
                record.tried, shares, left = self.steps, [*shares[:i], shares[i] + more, *shares[i + 1 :]], left - more
                self.trying.add(context.id)
        return shares

    def _best(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes in falling order of what they are worth, as far as tokens per second rise; few, at first."""
        least = self.least
        if not self.toll.known or (len(batch) == 1 == least and not self.toll.warm):
            count = min(max(len(batch) // least, 1), room // least)
            return [least] * count + [0] * (len(batch) - count)
        running, general = len(batch), self.everybody.hoped()
        offers = merge(*[self.requests.of(context).offers(i, general, least) for i, context in enumerate(batch)])
        tokens, rows, longest, drafting, usual = float(running), 0.0, 0, 0, self.toll.without(running)
        line, shares, whose = (0.0, 0.0), [0] * running, list[int]()
        step = usual + self.passes.of(running)  # seconds, without drafts
        self.quiet = max(QUIET, int(MUTE / step))
        plain = tokens / step
        best = ((EDGE if any(self.shares[2]) else START) - SLACK / running) * plain
        count, highest, hope = 0, 0.0, 0
        for worse, i, node, there in islice(offers, room):
            tokens, rows, longest = tokens - worse, rows + there, max(longest, node + 1)
            if node == 0:
                drafting += 1
                line = self.toll.line(drafting)
            rate = tokens / (usual + self.passes.between(running + rows) + line[0] + line[1] * longest)
            whose.append(i)
            if rate > best and node >= least - 1:
                best, count = rate, len(whose)
            if rate > highest:
                highest, hope = rate, len(whose)
            elif rate < FALLEN * highest and len(whose) >= least * running:  # the first nodes bear what drafts cost
                break
        self.hope = hope // running + TRIED
        self.gain = best / plain if self.pause > BARE else 0.0
        for i in whose[:count]:
            shares[i] += 1
        return shares

    # between drafting and the pass

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """The nodes that pay, over all drafts; some more in a trial."""
        if not any(drafts):
            return drafts
        if not self.close:
            return [self._quickly(*one) for one in zip(batch, drafts, strict=True)] if self.floor else drafts
        lucks = [self.requests.of(context).luck for context in batch]
        worths = [self._worth(draft, luck) for draft, luck in zip(drafts, lucks, strict=True)]
        taken = self._paying(worths)
        for i, context in enumerate(batch):
            least = max(self.lesson, TRIED if context.id in self.trying else 0)
            taken[i] = sorted(taken[i] if len(taken[i]) >= least else _likeliest(worths[i], least))
            self.made[context.id] = Made(self.made[context.id].asked, worths[i], taken[i], lucks[i])
        return [draft.only(nodes) for draft, nodes in zip(drafts, taken, strict=True)]

    def _quickly(self, context: Context, draft: Draft) -> Draft:
        """What is worth as much as a node cost when this was looked at closely."""
        worth = self._worth(draft, self.requests.of(context).luck)
        nodes = [node for node, value in enumerate(worth) if value >= self.floor]
        return draft.only(nodes if len(nodes) >= self.lesson else sorted(_likeliest(worth, self.lesson)))

    def _worth(self, draft: Draft, luck: float) -> list[float]:
        """Of every node, the chance that it is accepted."""
        return reach(draft, self.trusts.chances(draft), luck)

    def _paying(self, worths: Sequence[list[float]]) -> list[list[int]]:
        """Per draft, the nodes among the likeliest of all with which tokens per second are highest."""
        order = sorted((-worth, i, node) for i, draft in enumerate(worths) for node, worth in enumerate(draft))
        running = len(self.shares[0])
        constant, each = self.toll.line(len(worths))
        spent = self.toll.without(running) + constant + each * max(map(len, worths))
        passes = self.passes.of
        tokens, count = float(running), 0
        best = tokens / (spent + passes(running))
        for number, (worth, _, _) in enumerate(order, 1):
            tokens -= worth
            rate = tokens / (spent + passes(running + number))
            if rate > best:
                best, count = rate, number
        each = (passes(running + max(count, 1)) - passes(running)) / max(count, 1)
        self.floor = best * each if each > LOOK else 0.0
        taken: list[list[int]] = [[] for _ in worths]
        for _, i, node in order[:count]:
            taken[i].append(node)
        return taken

    # after the pass

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        settled = spent.rows == len(batch) + sum(map(len, drafts))  # else somebody's prompt was read
        if not self.close:
            if any(self.shares[2]):
                self.losses.add(self.price, sum(len(turn.emissions) for turn in turns) / len(turns) - 1)
                self._pass_by(batch, drafts, turns, spent if settled else None)
            return
        if settled and not self.made:
            self.toll.rested(len(batch), spent.drafting + spent.around)
        if not self.trusts.of:
            return
        if settled and not (self.streak and self.passes.warm(len(batch))):
            self.passes.learn(spent.rows, spent.running, drafts=spent.rows > len(batch))
        made, accepted, first = list[Made](), 0, False
        for context, draft, turn in zip(batch, drafts, turns, strict=True):
            one = self.made.get(context.id)
            if one is not None:
                record = self.requests.of(context)
                accepted += self._learn(record, one, draft, turn)
                first = first or record.drafts == 1  # a request's first draft has its prompt to read
                made += [one] if one.worth else []
        if made:
            self._account(len(batch), made, accepted, spent, settled=settled, first=first)

    def _pass_by(
        self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent | None
    ) -> None:
        """A step with drafts that is not looked at closely, as most are: now and then an outcome, or what it took."""
        if len(turns) > 1 or self.steps % GLANCE == 0:
            number = self.steps % len(turns)
            self._glance(batch[number], drafts[number], turns[number])
        if (self.steps % TIMED == 0 or not self.toll.warm) and spent is not None and any(drafts):
            sizes = [share for share, draft in zip(self.shares[2], drafts, strict=True) if draft]
            self._pay(len(batch), len(sizes), max(sizes), spent)
            self.passes.learn(spent.rows, spent.running, drafts=True)

    def _glance(self, context: Context, draft: Draft, turn: Turn) -> None:
        """What became of one draft of a step that is not looked at closely; many that are, are a request's first."""
        ids, _, shares = self.shares
        path = path_of(turn)
        for record in (self.everybody, self.requests.of(context)):
            record.saw(shares[ids.index(context.id)], len(draft), path, self.steps)
        if self.floor:
            self.trusts.learn(draft, path, self.steps)

    def _learn(self, own: Record, made: Made, draft: Draft, turn: Turn) -> int:
        """What became of one draft; how many of its tokens were accepted."""
        path = path_of(turn)
        for record in (self.everybody, own):
            record.learn(made, len(path), self.steps)
        self.trusts.learn(draft, path, self.steps)
        return len(path)

    def _account(
        self, running: int, made: Sequence[Made], accepted: int, spent: Spent, *, settled: bool, first: bool
    ) -> None:
        """What drafts cost and brought."""
        longest = max(len(one.worth) for one in made)
        nodes, one = sum(len(one.kept) for one in made), self.toll.without(running) + self.passes.of(running)
        rows = self.passes.of(spent.rows) - self.passes.of(spent.rows - nodes)
        around = max(spent.around - self.toll.without(running), 0.0) if settled else 0.0  # else a prompt's, too
        if settled and not first and (any(self.shares[2]) or not self.toll.warm):  # who did not rest
            self._pay(running, len(made), longest, spent)
        constant, each = self.toll.line(len(made))
        usual = (constant + each * longest + rows) / one
        self.price = min(usual, 1.0)
        lost = (spent.drafting + around + rows) / one  # who rested or is new has more to read, which is no rule
        self.losses.looked(self.steps, lost, accepted / running)
        if not nodes:  # drafts of which nothing is left are waste: who goes on with them begins anew
            self.shares, self.again = (*self.shares[:2], [0] * running), self.steps
        elif not any(self.shares[2]) and usual < accepted / running:  # a trial that paid
            self.again, self.paid = self.steps, True

    def _pay(self, running: int, drafting: int, longest: int, spent: Spent) -> None:
        """What drafts took; once the first are past, what pays is asked at once."""
        before = self.toll.known, self.toll.warm
        self.toll.drafted(running, drafting, longest, spent.drafting, spent.around)
        if (self.toll.known, self.toll.warm) != before:
            self.again = self.steps


def _likeliest(worth: Sequence[float], count: int) -> list[int]:
    """So many nodes; of equal ones the first."""
    return sorted(range(len(worth)), key=lambda node: -worth[node])[:count]
