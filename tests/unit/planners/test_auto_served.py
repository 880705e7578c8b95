"""The planner `auto` where clients come and go: a closed loop on made-up times, beside plain decoding on the same ones.

A client asks anew some milliseconds after its answer; most answers are of one length, so that several end at once. Now
and then a step is held up, and the machine is slower for a while, at the same times for all planners, so that these are
told apart to some thousandths. Times are in milliseconds, about those of the bundled pair on two cores of a Xeon.
"""

from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
import pytest

from forerun.planners.auto import AutoPlanner
from forerun.planners.contract import Spent
from forerun.rng import CounterRng
from forerun.types import Bar, Context, Costs, Draft, Emission, Facts, Sampling, Turn

ANSWER, PROMPT = 64, 30  # tokens
ALONE = 3  # requests, one after the other, before all clients come: what one request wins is not to be lost by many
READING = 1.0  # of the pass, and as much beside it, for a prompt
TELLING = 0.02  # for what the event loop does with a token
CONTEXT = Context(0, [0, 1], 2, Sampling(), CounterRng(0))
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def a_pass(rows, requests=1):
    return 0.43 + 0.034 * rows + 1e-4 * rows**2 + 0.025 * requests


def a_cached_pass(rows):
    return 0.13 + 0.072 * rows


class Given:
    drafter, bar = Facts(), Bar()

    def __init__(self, took=a_pass):
        self.took = took

    def costs(self):
        return Costs(SIZES, tuple(1e-3 * self.took(rows) for rows in SIZES))


@dataclass
class Client:
    context: Context
    left: int
    chance: float  # that a node is accepted whose parent is
    unread: int  # tokens that the drafter has not seen
    new: bool = True


class Loop:
    """So many clients, until so many answers are written; `planner`: None drafts nothing."""

    def __init__(self, clients, answers, planner, seed):
        self.clients, self.answers, self.planner = clients, answers, planner
        self.luck, self.machine, others = (np.random.default_rng([seed, part]) for part in range(3))
        self.asked = [self._ask(number, others) for number in range(answers + 2 * clients)]
        self.rests = [others.uniform(3, 9) for _ in self.asked]
        self.clock, self.speed, self.until = 0.0, 1.0, 0.0
        self.coming, self.running, self.done, self.tokens = [0.0], list[Client](), 0, 0

    @staticmethod
    def _ask(number, others):
        length = ANSWER if others.random() < 0.85 else int(others.integers(10, ANSWER))
        return Client(replace(CONTEXT, id=number), length, min(max(others.normal(0.62, 0.1), 0.2), 0.9), PROMPT)

    def rate(self):
        """Tokens per millisecond from when all are there."""
        began = tokens = 0.0
        while self.done < self.answers:
            if self.done == ALONE and not self.running and len(self.coming) == 1:
                self.coming = [self.clock + 0.3 * i for i in range(self.clients)]
                began, tokens = self.clock, self.tokens
            self._come()
            self._step()
        return (self.tokens - tokens) / (self.clock - began)

    def _come(self):
        while self.clock >= self.until:
            self.speed = 1.0 if self.speed > 1 else 1 + 0.6 * self.machine.random()
            self.until += self.machine.exponential(700)
        if not self.running:
            self.clock = max(self.clock, min(self.coming))
        self.running += [self.asked.pop(0) for at in self.coming if at <= self.clock]
        self.coming = [at for at in self.coming if at > self.clock]

    def _step(self):
        batch = [client.context for client in self.running]
        shares = self.planner.share(batch, 1000) if self.planner else [0] * len(batch)
        drafts = [Draft.chain([0] * min(share, c.left - 1)) for share, c in zip(shares, self.running, strict=True)]
        drafting = [i for i, draft in enumerate(drafts) if draft]
        if drafting:
            kept = self.planner.cut([batch[i] for i in drafting], [drafts[i] for i in drafting])
            for i, draft in zip(drafting, kept, strict=True):
                drafts[i] = draft
        made, running, around, rows = self._spent(drafting, drafts)
        turns = [self._turn(client, draft) for client, draft in zip(self.running, drafts, strict=True)]
        if self.planner:
            self.planner.observe(batch, drafts, turns, Spent(1e-3 * made, 1e-3 * running, rows, 1e-3 * around))
        written = sum(len(turn.emissions) for turn in turns)
        self.tokens += written
        self.clock += made + running + around + TELLING * self.speed * written
        ended = [client for client in self.running if client.left < 1]
        self.running = [client for client in self.running if client.left > 0]
        for _ in ended:
            self.done += 1
            self.coming.append(self.clock + self.rests[self.done])

    def _spent(self, drafting, drafts):
        """What drafting, the pass and all else took, and the rows of the pass."""
        many, new = len(drafts), sum(client.new for client in self.running)
        longest, rows = max(map(len, drafts)), many + sum(map(len, drafts))
        made = around = 0.0
        if drafting:
            unread = sum(self.running[i].unread for i in drafting)
            made = 0.06 + 0.035 * longest + len(drafting) * (0.016 + 0.018 * longest) + 0.002 * unread
            around = 0.055 + 0.0115 * len(drafting)
            for i in drafting:
                self.running[i].unread = 0
        around += 0.085 + 0.018 * many + READING * new
        held_up = self.luck.exponential(1.5) if self.luck.random() < 0.04 else 0.0
        slow = [self.speed * self.luck.lognormal(0, 0.08) for _ in range(3)]
        running = slow[1] * (a_pass(rows, many) + READING * new) + held_up
        return slow[0] * made, running, slow[2] * around, rows + (PROMPT - 1) * new

    def _turn(self, client, draft):
        accepted = 0
        while accepted < len(draft) and self.luck.random() < client.chance:
            accepted += 1
        client.new, client.left = False, client.left - accepted - 1
        client.unread += accepted + 1
        return Turn((Emission(0, ""),) * (accepted + 1), tuple(range(3 + accepted)), len(draft), len(draft))


class Cached(Loop):
    """One client whose weights lie in a cache: arithmetic bounds the passes, so that rows are dear and two nodes lose.

    The first steps take long; so do those right after drafts, until the caches hold what steps without them need.
    """

    first, after = [15.0, 4.0, 2.0, 1.6, 1.4, 1.2], [1.7, 1.2, 1.12, 1.05]  # times as long
    steps = since = 0

    def _spent(self, drafting, drafts):
        new, longest = sum(client.new for client in self.running), max(map(len, drafts))
        rows = len(drafts) + sum(map(len, drafts))
        self.since = 0 if drafting else self.since + 1
        places = (self.first, self.steps), (self.after, self.since - 1)
        cold = [times[at] for times, at in places if 0 <= at < len(times)]
        self.steps += 1
        slow = [self.speed * self.luck.lognormal(0, 0.08) for _ in range(3)]
        made = 0.022 + 0.038 * longest if drafting else 0.003
        around = (0.07 + 0.004 * longest if drafting else 0.036) * max([1.0, *cold]) + READING * new
        running = a_cached_pass(rows) * max([1.0, *[1 + (one - 1) / 4 for one in cold]]) + READING * new
        return slow[0] * made, slow[1] * running, slow[2] * around, rows + (PROMPT - 1) * new


@pytest.mark.parametrize(("clients", "least"), [(1, 1.2), (2, 1.12), (4, 1.02), (8, 0.99), (16, 0.994), (32, 0.994)])
def test_drafts_gain_with_few_clients_and_cost_next_to_nothing_with_many(clients, least):
    def ratio(seed):
        planner = AutoPlanner(AutoPlanner.Options(), Given())
        return Loop(clients, 384, planner, seed).rate() / Loop(clients, 384, None, seed).rate()

    assert mean(ratio(seed) for seed in range(0, 30, 3)) >= least


def test_drafts_that_lose_are_found_out_though_the_first_steps_and_those_right_after_drafts_take_longer():
    def ratio(seed):
        planner = AutoPlanner(AutoPlanner.Options(), Given(a_cached_pass))
        return Cached(1, 96, planner, seed).rate() / Cached(1, 96, None, seed).rate()

    assert mean(ratio(seed) for seed in range(0, 72, 3)) >= 0.98
