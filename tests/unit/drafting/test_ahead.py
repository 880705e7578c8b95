"""What a judged draft says of further positions: which nodes speak, and what drawn guesses report."""

import numpy as np
import pytest
import torch

from forerun.drafting.ahead import Window, filler, speakers
from forerun.rng import CounterRng
from forerun.testing.exhaustive import ExhaustiveRng
from forerun.types import Context, Dist, Draft, Outcome, Output, Sampling, Verdict, Work

TREE = Draft((1, 2, 3, 4, 5, 6), (-1, -1, 0, 1, 2, 3))  # two chains of three below the root


@pytest.mark.parametrize(
    ("path", "found"),
    [((), [0, 2, 4]), ((0,), [2, 4]), ((1,), [3, 5]), ((1, 3), [5]), ((0, 2, 4), [])],
)
def test_the_nodes_nearest_to_the_path_speak(path, found):
    assert speakers(TREE, path) == found


def test_a_refused_branch_speaks_where_the_accepted_one_ends():
    draft = Draft((1, 2, 3, 4), (-1, -1, 1, 2))
    assert speakers(draft, (0,)) == [2, 3]


def judged(draft, path, token, logits):
    best = tuple(logits.argmax(-1).tolist())
    output = Output(logits, best, tuple(logits.amax(-1).tolist()))
    return Outcome(Work(0, (0, *draft.tokens)), output, draft, Verdict(path, token))


def asked(**sampling):
    return Context(0, [3, 1, 2], 1, Sampling(**sampling), CounterRng(0))


LOGITS = torch.log(
    torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.1, 0.6, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]])
)


def test_guesses_are_what_the_rows_behind_the_refused_tokens_say():
    window, context = Window(), asked(temperature=0)
    draft = window.draft(context, 3, "me")
    assert draft.tokens == (2, 2, 2) == tuple(filler(context.tokens, 3))
    window.advance(context, judged(draft, (), 3, LOGITS), (), drawn=True)
    assert [guess.only for guess in window.guesses] == [0, 1, 0]
    context.tokens.append(3)
    assert window.draft(context, 5, "me").tokens == (0, 1, 0, 3, 3)
    assert window.draft(context, 2, "me").tokens == (0, 1)
    context.tokens.append(3)  # in a step that nobody was shown
    assert window.draft(context, 2, "me").tokens == (1, 0)


def test_what_was_not_read_is_remembered_in_its_place():
    window, context = Window([Dist.point(token) for token in (3, 2, 1, 0)], 3), asked(temperature=0)
    draft = window.draft(context, 2, "me")
    window.advance(context, judged(draft, (0,), 1, LOGITS[:3]), (), drawn=False)
    assert [guess.only for guess in window.guesses] == [1, 0]  # of depths 3 and 4
    context.tokens.extend((3, 1))
    window.advance(context, judged(Draft(), (), 1, LOGITS[:1]), (), drawn=False)
    assert [guess.only for guess in window.guesses] == [0]


def test_drawn_guesses_report_the_shaped_row_they_come_from():
    window, context = Window(), asked(temperature=0.5, top_k=2)
    draft = window.draft(context, 2, "me")
    window.advance(context, judged(draft, (), 3, LOGITS[:3]), (), drawn=True)
    first = np.array([0.4**2, 0.3**2, 0, 0]) / (0.4**2 + 0.3**2)
    assert window.guesses[0].probs == pytest.approx(first)
    context.tokens.append(3)
    again = window.draft(context, 3, "me")
    assert again.q[:2] == tuple(window.guesses)
    assert again.q[2] is None
    again.check(4, 3)


def test_every_draft_draws_anew():
    window = Window([Dist(np.array([0.5, 0.5]))] * 2, 1)
    rng = ExhaustiveRng()
    context = Context(0, [0], 1, Sampling(), rng)
    for step in range(2):  # the second would raise ReuseError if the numbers were the first's
        rng.begin(step, 1)
        window.draft(context, 2, "me")
    assert len(rng.taken) == 4
