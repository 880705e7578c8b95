"""Any order of what an engine may do to a cache, against plain lists; the books are checked after every rule.

`pytest tests/unit/caches --hypothesis-profile thorough` takes more and longer walks.
"""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from forerun.caches import CACHES
from forerun.errors import CacheError
from forerun.layers.evict import TRUST

TOKENS = st.integers(0, 2)
ALIKE = [1, 2, 0, 1, 1, 2, 2, 0, 1, 0, 1, 2]
PROMPTS = st.builds(  # mostly alike, so that prefixes meet
    lambda length, tail: ALIKE[:length] + tail, st.integers(0, 12), st.lists(TOKENS, max_size=2)
)
SCOPES = st.sampled_from(["", "a"])
PICK = st.integers(0, 59)  # an index into what there is, wrapped
NODES = st.lists(st.tuples(TOKENS, PICK), min_size=1, max_size=7)  # token and parent


class Walk(RuleBasedStateMachine):
    """Requests come, draft, are judged, fork, go back and leave, in any order."""

    def __init__(self, desk):
        super().__init__()
        self.desk = desk

    def slot(self, pick):
        slots = sorted(self.desk.held)
        return slots[pick % len(slots)]

    def drafts(self):
        return bool(self.desk.held)

    @rule(tokens=PROMPTS, scope=SCOPES)
    def open(self, tokens, scope):
        if len(self.desk.held) == self.desk.slots:
            with pytest.raises(CacheError):
                self.desk.cache.open(tokens, scope)
            self.desk.close(self.slot(len(tokens)))
        slot = self.desk.open(tokens, scope)
        rest = tokens[len(self.desk.held[slot].tokens) :]
        if rest and self.desk.draft({slot: (rest, None)}):
            self.desk.keep(slot, range(len(rest)))

    @precondition(drafts)
    @rule(pick=PICK, nodes=NODES, finish=st.booleans())
    def draft(self, pick, nodes, finish):
        """A tree, or more of one; or a pass that fails midway."""
        slot = self.slot(pick)
        base = len(self.desk.held[slot].nodes)
        parents = [parent % (base + i + 1) - 1 for i, (_, parent) in enumerate(nodes)]
        self.desk.draft({slot: ([token for token, _ in nodes], parents)}, finish)

    @precondition(drafts)
    @rule(pick=PICK, nodes=NODES, node=PICK)
    def step(self, pick, nodes, node):
        self.draft(pick, nodes, finish=True)
        self.accept(pick, node)

    @precondition(drafts)
    @rule(tokens=st.lists(TOKENS, min_size=1, max_size=5))
    def draft_for_everybody(self, tokens):
        self.desk.draft({slot: (tokens[: 1 + slot], None) for slot in sorted(self.desk.held)})

    @precondition(drafts)
    @rule(pick=PICK, node=PICK)
    def accept(self, pick, node):
        slot = self.slot(pick)
        held = self.desk.held[slot]
        self.desk.keep(slot, held.path_to(node % len(held.nodes)) if held.nodes else [])

    @precondition(drafts)
    @rule(pick=PICK)
    def reject(self, pick):
        self.desk.keep(self.slot(pick), [])

    @precondition(drafts)
    @rule(pick=PICK, mark=PICK)
    def roll_back(self, pick, mark):
        slot = self.slot(pick)
        self.desk.rollback(slot, mark % (len(self.desk.held[slot].tokens) + 1))

    @precondition(drafts)
    @rule(pick=PICK)
    def fork(self, pick):
        try:
            self.desk.fork(self.slot(pick))
        except CacheError:
            assert len(self.desk.held) == self.desk.slots or self.desk.cache.free() == 0

    @precondition(drafts)
    @rule(pick=PICK, sound=st.booleans())
    def close(self, pick, sound):
        self.desk.close(self.slot(pick), sound)

    @invariant()
    def holds(self):
        self.desk.compare()

    def teardown(self):
        self.desk.close_all()
        self.desk.cache.check()
        assert self.desk.cache.free() == self.desk.empty


def tight(options):
    """The same options with less memory than the slots could use, where that can be said."""
    known = {f.name for f in fields(options)}
    return replace(options, **({"blocks": 9} if "blocks" in known else {}))


CASES = {name: CACHES[name].toy() for name in CACHES}
CASES |= {f"paged, {evict}": replace(CACHES["paged"].toy(), evict=evict) for evict in TRUST}
CASES |= {f"{name}, tight": tight(options) for name, options in CASES.items() if tight(options) != options}


@pytest.mark.parametrize("kept", [None, torch.int8], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_any_order(case, kept, desk):
    cls = CACHES[case.split(",")[0]]
    profile = settings()
    walks = settings(
        max_examples=profile.max_examples * 2 // 5, stateful_step_count=max(60, profile.stateful_step_count)
    )
    run_state_machine_as_test(lambda: Walk(desk(cls, CASES[case], kept=kept)), settings=walks)
