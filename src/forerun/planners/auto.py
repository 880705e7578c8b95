"""As many nodes as bring the most tokens per second, by what passes cost and what became of earlier drafts.

A pass of n rows takes T(n) seconds, measured when there is a first draft and corrected by how passes go now
(drafting/passes.py). What a step takes beside its pass is learnt as it goes (drafting/toll.py): without drafts, and
what drafts add to it; so some steps without are taken now and then. How often a node is accepted is counted by how
many are likelier, of each request and of all (drafting/worth.py); where rows are dear, also by who guessed it, how
deep and how surely, and drafts are cut to the nodes that pay. Drafters that see chances are told which must be
reached (`Bar`), and leave out other nodes by themselves. Nodes are taken in falling order of their chances, as far
as tokens per second rise: a knapsack of equal weights. What is never tried is never learnt, so a little more than pays
is drafted and verified now and then, unless drafts have cost more than they brought by a share of all the time.
A decision holds for some steps, whose times and outcomes are noted and learnt from by the next one: a single step
says little, and to look at each would take as long as a draft.
Does not: choose between drafters; give a seed the same text twice where the verifier is not coupled, because measured
times differ.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf

from forerun.drafting.losses import Losses
from forerun.drafting.notes import Note, costs, learn_times, light
from forerun.drafting.passes import COLD, Passes
from forerun.drafting.toll import Toll
from forerun.drafting.worth import Fate, Record, Trusts, likeliest, path_of, paying, ranked, reach
from forerun.errors import ConfigError
from forerun.planners.contract import Memory, Planner, Spent
from forerun.types import Context, Draft, Facts, Setup, Turn

YOUNG, DEAR = 6, 2  # steps that a decision holds where rows are dear, and there at first; else at first, twice as many
STEADY, STILL = 16, 0.1  # each time, while what pays is the same, until so many, or as many as take so many seconds,
REST, MUTE = 64, 0.5  # or where nothing is drafted,
NOTED, THOUGHT = 16, 0.01  # of whose steps about so many are noted; and how much of all time may go into decisions
FEWER = 0.5  # of the requests of a decision, at most, are a reason for another: those that end together soon come back
PATIENCE = 16  # steps between trials of a request that has drafts
TRIED, AGAIN, LEAST = 1, 8, 2  # nodes more, in a trial, which takes one in so many of a decision's steps, at least two;
RUN = 4, 12  # steps where nothing is drafted: the first reads what was written meanwhile, others say what drafts cost;
MUCH = 1.25  # more where they seem to bring much, so many times plain's tokens, so that what they cost decides
ASKED = 4  # of so many requests, then and at first: more would cost more and say little more of each other
FIRST = 0.5  # of what the first drafts took is what later ones are thought to take
BARE, RARE = 8, 256  # steps until there are some without drafts, at first and in the end; more where these
SURE = 1.3  # are thought to bring that much less than others,
STREAK = 3  # and so many of them: right after drafts, which have emptied the caches, steps take longer, so that nothing
# is learnt of the first half;
LONG, GLANCE = 16, 1e-2  # more, up to one in BARE of the pause before, where they are not thought to bring so much
# less; and where nothing is known of as many requests, as many as take so many seconds
LOOK = 1.5e-4  # seconds: a row that costs less is verified sooner than it is looked at, for few are not worth it
EDGE = 0.95  # times plain's tokens per second, at least, are to be expected of drafts that go on: less than they bring
# is believed of them by bad luck, and by passes of short stretches, which take longer; what they really lose stops them
ALIKE = 8  # of so many requests, one may get a node more or less than before while what pays is the same
WIDE = 4  # nodes of all drafts, at least, where drafters leave out those that are not worth a row:
BETTER = 0.9  # times what a row costs in tokens is to be a node's chance, for drafters guess better than they think;
UNKNOWN, HIGHEST = 0.3, 0.9  # until that is known, and at most
FALLEN = 0.9  # of the highest rate: behind it nobody looks for a higher one


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
        self.options, self.passes, self.bar = options, Passes(setup.costs), setup.bar
        self.bar.chance = UNKNOWN
        self.lesson = min(setup.drafter.lesson, options.most)
        self.least = max(self.lesson, 1)  # nodes of a draft, before those are left out that do not pay
        self.everybody, self.toll, self.trusts = Record(options.most), Toll(), Trusts()
        self.requests = Memory(lambda: Record(options.most))
        self.losses, self.steps, self.settled = Losses(), 0, 0
        self.shares = dict[int, int]()  # the decision: nodes of each request, by id
        self.now, self.until = dict[int, int](), 0  # what they get until this step: in a trial more, in a look none
        self.drafting = False  # whether somebody gets any
        self.trying = set[int]()  # requests that get more, until then
        self.rest, self.young, self.steady, self.mute = YOUNG, YOUNG, STEADY, REST  # steps that a decision holds
        # now, at least while it drafts, and at most
        self.again, self.every = inf if setup.drafter.silent else 0, 1  # the step of the next; of how many one is noted
        self.notes, self.timed = list[Note](), 0  # since the decision; the step from which times say something
        self.made: Sequence[int] = ()  # in the step that is under way
        self.wasted = self.dear = self.cutting = False  # nothing was left of drafts; rows are looked at; drafts are cut
        self.bare, self.pause = 0, BARE  # the step of the next look at some without drafts; steps until another
        self.hope, self.much = 1, False  # nodes of a trial where nobody drafts; whether they seem to bring much
        self.gain = self.thought = 0.0  # tokens per second over those without drafts, 0 until these have been seen
        # beside drafts; seconds that the latest decision took

    # before drafting

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        if not batch:
            return []
        self.steps, self.made = self.steps + 1, ()
        if not self.drafting and self.steps < self.again and len(batch) > FEWER * len(self.now):
            return [0] * len(batch)  # nothing paid a moment ago, with about as many
        ids = [context.id for context in batch]
        if self.steps >= self.again or not self._holds(ids, room):
            self._settle()
            self._give(self._decided(batch, room))
        return [self.now[number] for number in ids]

    def _holds(self, ids: Sequence[int], room: int) -> bool:
        """Whether the decision does, as these requests are about those that it was made for."""
        if not self.drafting:
            return False
        if self.steps == self.until:
            self.now = self.shares
            self.trying.clear()
        new = len(ids) - sum(number in self.now for number in ids)
        if new or len(ids) < len(self.now):
            if min(len(ids), len(self.now)) < FEWER * max(len(ids), len(self.now)):
                return False
            usual = sum(self.shares.values()) // len(self.shares)
            self.shares = {number: self.shares.get(number, usual if usual >= self.least else 0) for number in ids}
            self._give(self.shares)
        return sum(self.now.values()) <= room

    def _give(self, now: dict[int, int]) -> None:
        """What each request gets from now on."""
        self.now, drafted, self.drafting = now, self.drafting, any(now.values())
        if not drafted and self.drafting:
            self.timed = self.steps + 1  # who has rested has more to read; who is new has as well, again and again
        elif drafted and not self.drafting:
            # of the very first ones only shorter ones count, so that none is left out
            self.timed = self.steps + max(STREAK - 1, (self.until - self.steps) // 2) * self.passes.warm(len(now))

    def _hold(self, steps: int) -> None:
        """Until the next decision."""
        self.again = self.until = self.steps + steps
        self.every = max(steps // NOTED, 1)

    def _decided(self, batch: Sequence[Context], room: int) -> dict[int, int]:
        """What each request gets, and for how long."""
        nothing = dict.fromkeys([context.id for context in batch], 0)
        heeded = self.bar.heeded and all(context.sampling.greedy for context in batch)
        self.least = max(self.lesson, min(WIDE // len(batch), self.options.most, room) if heeded else 1, 1)
        tried = bool(self.trying) and not any(self.shares.values())
        self.trying.clear()
        if not self.toll.bare(len(batch)):  # it must be known what a step takes without drafts
            self._hold(max(STREAK, min(int(GLANCE / self.passes.of(len(batch))), LONG)) if self.toll.idle else 1)
            self.bare = self.steps + BARE
            return nothing
        if self.wasted:
            self.shares = nothing
        drafting = any(self.shares.values())
        if drafting and self.everybody.drafts and self.steps >= self.bare + (RARE if self.gain >= SURE else 0):
            look = int(LONG * min((SURE - self.gain) / (SURE - 1), 1.0))
            self._hold(max(STREAK, min(look, self.pause // BARE)) if self.passes.warm(len(batch)) else COLD + 1)
            self.pause = min(2 * self.pause, RARE)
            self.bare = self.steps + self.pause
            return nothing
        if drafting and not self.everybody.drafts and self.shares.keys() == nothing.keys():
            self._hold(STEADY)  # nothing has come of it yet
            return self.shares
        before, self.cutting = self.shares, False
        if self.wasted:
            self.rest = self.mute  # they may be for long, as nothing is learnt of what is not verified
        elif self.losses.bearable(len(batch)):
            self.shares = dict(zip(nothing, self._best(batch, room), strict=True))
        else:
            self.shares = nothing
        changed = abs(sum(self.shares.values()) - sum(before.values()))
        if not any(self.shares.values()):
            self.rest = YOUNG if drafting else min(2 * self.rest, self.mute)
            self.bare = max(self.bare, self.steps + self.rest + BARE)
        else:
            most, begun = YOUNG if self.dear else self.steady, DEAR if self.dear and not drafting else self.young
            longer = 2 * self.rest if changed <= len(batch) // ALIKE + 1 else self.rest // 2
            self.rest = max(min(longer, most), begun) if drafting else begun
        self._hold(self.rest if self.toll.warm or not any(self.shares.values()) else 1)
        if self.everybody.drafts and self.losses.trial(len(batch), again=tried):
            return self._tried(batch, room)
        return self.shares

    def _tried(self, batch: Sequence[Context], room: int) -> dict[int, int]:
        """Some nodes more, for a few steps, for those that had no trial for the longest time."""
        shares, drafting = dict(self.shares), any(self.shares.values())
        asked, new = (len(batch), self.least) if drafting else (min(len(batch), ASKED), max(self.hope, self.least))
        most, left = min(self.options.most, room // len(batch)), min(room - sum(shares.values()), asked * new)
        for context in sorted(batch, key=lambda context: self.requests.of(context).tried):
            record, share = self.requests.of(context), shares[context.id]
            more = min(TRIED if share else new, most - share)
            rested = not drafting or self.steps >= record.tried + PATIENCE
            if rested and 0 <= more <= left and share + more >= self.least:
                record.tried, shares[context.id], left = self.steps, share + more, left - more
                self.trying.add(context.id)
        if self.trying:
            run = max(self.rest // AGAIN, LEAST) if drafting else RUN[self.much] if self._cheap(shares) else 1
            self.until = self.steps + run
            self.again = self.again if drafting else self.until
        return shares

    def _cheap(self, shares: Mapping[int, int]) -> bool:
        """Whether such drafts are not thought to take as long as a step without."""
        running, asked = len(shares), [share for share in shares.values() if share]
        constant, each = self.toll.line(len(asked))
        plain = self.passes.of(running)
        rows = self.passes.of(running + sum(asked)) - plain
        return constant + each * max(asked) + rows < self.toll.without(running) + plain

    def _best(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes in falling order of what they are worth, as far as tokens per second rise; few, at first."""
        least = self.least
        if not self.toll.known or (len(batch) == 1 == least and not self.toll.warm):
            count = min(max(len(batch) // least, 1), room // least, ASKED)
            return [least] * count + [0] * (len(batch) - count)
        running, general, records = len(batch), self.everybody.hoped(), map(self.requests.of, batch)
        offers = merge(*[record.offers(i, general, least, running) for i, record in enumerate(records)])
        tokens, rows, longest, drafting, usual = float(running), 0.0, 0, 0, self.toll.without(running)
        line, shares, whose = (0.0, 0.0), [0] * running, list[int]()
        step = usual + self.passes.of(running)  # seconds, without drafts
        self.steady, self.mute = max(STEADY, int(STILL / step)), max(REST, int(MUTE / step))
        self.young = min(max(YOUNG, int(self.thought / (THOUGHT * step))), self.steady)
        plain = tokens / step
        best = (EDGE if any(self.shares.values()) else self.losses.start(batch)) * plain
        count, highest, hope, bring, verified, first = 0, 0.0, 0, 0.0, 0.0, 1.0 if self.toll.warm else FIRST
        for worse, i, node, there in islice(offers, room):
            if node >= least and not self.toll.warm:
                continue
            tokens, rows, longest = tokens - worse, rows + there, max(longest, node + 1)
            if node == 0:
                drafting += 1
                line = self.toll.line(drafting)
            rate = tokens / (usual + self.passes.between(running + rows) + first * (line[0] + line[1] * longest))
            whose.append(i)
            if rate > best and node >= least - 1:
                best, count, verified = rate, len(whose), rows
            if rate > highest:
                highest, hope, bring = rate, len(whose), tokens
            elif rate < FALLEN * highest and len(whose) >= least * running:  # the first nodes bear what drafts cost
                break
        self.hope, self.much = hope // running + TRIED if self.toll.warm else 1, bring >= MUCH * running
        self.gain = best / plain if self.pause > BARE else 0.0
        more = max(verified, float(running))  # fewer rows more say little: both ends are guessed
        each = (self.passes.between(running + more) - self.passes.of(running)) / more
        self.dear, self.bar.chance = each > LOOK, min(BETTER * each * max(best, plain), HIGHEST)
        self.cutting = self.dear and count > 0
        for i in whose[:count]:
            shares[i] += 1
        return shares

    # between drafting and the pass

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Where rows are dear, those among the likeliest nodes of all with which tokens per second are highest."""
        self.made = [context.id for context, draft in zip(batch, drafts, strict=True) if draft]
        if not self.cutting:
            return drafts
        lucks = [self.requests.of(context).luck for context in batch]
        worths = [reach(one, self.trusts.chances(one), luck) for one, luck in zip(drafts, lucks, strict=True)]
        running, (constant, each) = len(self.now), self.toll.line(len(self.made))
        spent = self.toll.without(running) + constant + each * max(map(len, worths))
        taken = paying(worths, running, lambda rows: spent + self.passes.of(rows))
        for i, context in enumerate(batch):
            least = max(self.lesson, TRIED if context.id in self.trying else 0)
            taken[i] = sorted(taken[i] if len(taken[i]) >= least else likeliest(worths[i], least))
        return [draft.only(nodes) for draft, nodes in zip(drafts, taken, strict=True)]

    # after the pass

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        timed, every = self.steps >= self.timed, 1 if self.trying or self.steps < self.timed else self.every
        self.thought = spent.planning if self.steps == self.settled else self.thought  # there was a decision
        if self.drafting and not self.steps % every:
            ids, records = [context.id for context in batch], [self.requests.of(context) for context in batch]
            drafted = ids, records, self.now, light(drafts), turns, self.made, timed, every
            self.notes.append(Note(len(batch), *drafted, *spent[:4]))
        elif not self.drafting and timed and self.again < inf and not self.steps % every:
            self.notes.append(Note(len(batch), (), (), {}, (), (), (), timed, every, *spent[:4]))

    def _settle(self) -> None:
        """What the steps since the decision took, brought and cost."""
        notes, self.notes = self.notes, []
        self.losses.passed(len(self.now), self.steps - self.settled)
        self.settled = self.steps
        learn_times(notes, self.toll, self.passes)
        drafted = [note for note in notes if note.ids]
        self.wasted = any(note.made for note in drafted) and not any(any(note.drafts) for note in drafted)
        if drafted:
            spent = costs(drafted, self.thought, self.toll, self.passes)
            self.losses.add(len(self.now), spent, self._learn(drafted), first=not drafted[0].timed)

    def _learn(self, notes: Sequence[Note]) -> float:
        """What became of drafts; how many tokens were accepted of each request, on average."""
        fates, records, accepted = defaultdict[int, list[Fate]](list), dict[int, Record](), 0.0
        for note in notes:
            for number, record, draft, turn in zip(note.ids, note.records, note.drafts, note.turns, strict=True):
                share = note.shares.get(number, 0)
                if share:
                    path = path_of(turn)
                    records[number] = record
                    fates[number].append(Fate(share, len(draft), ranked(draft, path)))
                    accepted += note.steps * len(path) / note.requests
                    if self.dear and draft:
                        expected = sum(reach(draft, self.trusts.chances(draft)))
                        record.met(expected, len(path))
                        self.trusts.learn(draft, path, self.steps)
        self.everybody.learn([fate for some in fates.values() for fate in some], self.steps)
        for number, some in fates.items():
            records[number].learn(some, self.steps)
        return accepted
