"""Drafters that copy: from the input, the chat, an expected output, and databases in their order."""

from dataclasses import replace

import pytest
import torch

from forerun.build import setup_for
from forerun.config import Config, choose
from forerun.drafters import DRAFTERS
from forerun.errors import ConfigError, RequestError
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.testing import Reference, Toy, distance, laws, outcomes
from forerun.types import Context, Draft, Outcome, Output, Sampling, Verdict, Work

GREEDY = Sampling(temperature=0)


def opened(spelled, setup=None):
    choice = choose(DRAFTERS, spelled)
    return choice.member(choice.options, setup or setup_for(Config(), ToyModel(100, 0)))


def begun(drafter, prompt, sampling=GREEDY, prediction=()):
    context = Context(0, list(prompt), len(prompt), sampling, CounterRng(0), prediction=prediction)
    return replace(context, state=drafter.start(context))


def proposed(drafter, context, written=(), budget=8):
    """The draft after these tokens were written."""
    context.tokens.extend(written)
    (draft,) = drafter.propose([context], [budget])
    draft.check(100, budget)
    return draft.tokens


def test_aggressive_copies_the_input_on_in_its_order():
    drafter = opened("aggressive")
    context = begun(drafter, (1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 2))
    assert proposed(drafter, context) == ()  # nothing of the input is written yet
    assert proposed(drafter, context, (10,)) == ()
    assert proposed(drafter, context, (11,), budget=3) == (12, 13, 14)
    assert proposed(drafter, context, (12, 99), budget=2) == (14, 15)  # one token was corrected
    assert proposed(drafter, context, (98, 97)) == ()  # three in a row are others: it waits
    assert proposed(drafter, context, (16, 17)) == (18, 2)


def test_aggressive_takes_the_next_of_equal_lines():
    drafter = opened("aggressive")
    context = begun(drafter, (5, 6, 7, 50, 5, 6, 7, 60, 5, 6, 7, 70))
    assert proposed(drafter, context, (5, 6), budget=2) == (7, 50)
    assert proposed(drafter, context, (7, 50, 5, 6), budget=2) == (7, 60)


def test_a_prediction_is_followed_from_its_first_token_and_after_edits():
    drafter = opened("prediction:width=4")
    context = begun(drafter, (1, 2), prediction=tuple(range(10, 30)))
    assert proposed(drafter, context) == (10, 11, 12, 13)
    assert proposed(drafter, context, (10, 11, 40), budget=2) == (13, 14)
    assert proposed(drafter, context, (41, 42)) == ()
    assert proposed(drafter, context, (20, 21), budget=2) == (22, 23)
    assert proposed(drafter, begun(drafter, (1, 2))) == ()  # nobody predicted anything


def test_copyspec_copies_what_followed_the_last_gamma_tokens():
    drafter = opened("copyspec:gamma=3,width=4")
    context = begun(drafter, (1, 2, 3, 4, 5, 6, 7, 8, 2, 3))
    assert proposed(drafter, context) == ()  # two tokens are no match
    assert proposed(drafter, context, (4,)) == (5, 6, 7, 8)
    assert proposed(drafter, context, (9, 2, 3, 4), budget=2) == (9, 2)  # the latest occurrence


def test_databases_are_asked_in_order_until_the_draft_is_full(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ab" * 30)
    words = setup_for(Config(), ToyModel(100, 0))

    class Letters:
        def encode(self, data):
            return list(data)

    drafter = opened(
        f"hierarchy-drafting:width=2,match=1,each=2,corpus={corpus}", replace(words, open_spelling=lambda _: Letters())
    )
    a, b = ord("a"), ord("b")
    first = begun(drafter, (1, 2))
    first.tokens.extend((a, 50, 51))
    drafter.stop(first)  # its answer is what the model wrote
    context = begun(drafter, (a, 60, 61, a))
    (draft,) = drafter.propose([context], [8])
    assert draft.tokens == (60, 61, 50, 51, b, a)
    assert draft.parents == (-1, 0, -1, 2, -1, 4)
    assert [draft.source_of(node).partition(":")[2] for node in (0, 2, 4)] == ["context", "model", "statistics"]
    assert proposed(drafter, context, budget=3) == (60, 61, 50)
    with pytest.raises(ConfigError, match="no corpus 'nowhere'"):
        opened("hierarchy-drafting:corpus=nowhere")
    corpus.write_text("\n")
    with pytest.raises(ConfigError, match=r"corpus '.*corpus\.txt' holds no text; give one that does, or leave it out"):
        opened(f"hierarchy-drafting:corpus={corpus}")


def test_common_beginnings_of_continuations_are_one_node():
    drafter = opened("hierarchy-drafting:width=2,match=1,each=3")
    context = begun(drafter, (7, 1, 2, 7, 1, 3, 7, 4, 5, 7))
    (draft,) = drafter.propose([context], [8])
    assert draft.tokens == (4, 5, 1, 3, 2)
    assert draft.parents == (-1, 0, -1, 2, 2)


PREDICTIONS = ((0, 1, 2, 0), (2, 2, 2), (1, 0, 0, 1))


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("sampling", laws.SAMPLINGS.values(), ids=laws.SAMPLINGS)
def test_whatever_is_predicted_the_law_is_the_targets(prediction, sampling):
    toy = Toy(drafter="prediction:match=1")

    def run(rngs):
        rig = toy.build()
        numbers = [rig.engine.add(laws.PROMPT, sampling, rng=rng, prediction=prediction) for rng in rngs]
        rig.said |= {number: [] for number in numbers}
        rig.finish()
        assert all(rig.said[number][-1].stats.drafted > 0 for number in numbers)
        return [rig.text(number).tokens for number in numbers]

    law = Reference(toy.model).law(laws.PROMPT, sampling, laws.LENGTH)
    assert distance(law, outcomes(run, laws.TOGETHER)) < laws.TIGHT


def test_a_prediction_that_comes_true_saves_steps_and_a_wrong_one_changes_nothing():
    toy, sampling = Toy(drafter="prediction"), Sampling(temperature=0, max_tokens=16)
    want = Reference(toy.model).greedy(laws.PROMPT, sampling, 16)
    steps = {}
    for prediction in (want, (*want[:5], 2 - want[5], *want[6:]), want[::-1], ()):
        rig = toy.build()
        number = rig.engine.add(laws.PROMPT, sampling, prediction=prediction)
        rig.said[number] = []
        rig.finish()
        assert rig.text(number).tokens == want
        steps[prediction] = rig.engine.stats.steps
    assert steps[want] == 2  # eight nodes and one token more, twice
    assert steps[()] == 16


def test_a_prediction_of_tokens_that_do_not_exist_is_refused():
    with pytest.raises(RequestError, match="token id 3 in the prediction does not exist"):
        Toy().build().engine.add((0,), Sampling(), prediction=(1, 3))


def judged(context, draft, logits, path, token):
    """What a target's rows of logits make of a draft."""
    pending = (context.tokens[-1],)
    work = Work(
        0, pending + draft.tokens, (-1, *(parent + 1 for parent in draft.parents)), logits=tuple(range(len(logits)))
    )
    best = logits.max(-1)
    output = Output(logits, tuple(best.indices.tolist()), tuple(best.values.tolist()))
    return Outcome(work, output, draft, Verdict(path, token))


def rows(*likely):
    """Logits in which each of these tokens is likelier than the next."""
    logits = torch.full((len(likely), 100), -9.0)
    for row, tokens in zip(logits, likely, strict=True):
        row[list(tokens)] = torch.arange(len(tokens), 0, -1).float()
    return logits


def told(drafter, context, outcome):
    """A step with a draft."""
    drafter.propose([context], [1])
    drafter.observe([context], [outcome])


@pytest.mark.parametrize("spelled", ["token-recycling:width=2", "aded:width=2"])
def test_of_steps_in_which_nobody_asked_for_a_draft_what_was_written_is_learned(spelled):
    drafter = opened(spelled)
    context = begun(drafter, (1, 2))
    assert proposed(drafter, context, (5, 1, 2), budget=1) == (5,)
    told(drafter, context, judged(context, Draft(), rows((7, 8)), (), 7))
    context.tokens.append(7)
    (draft,) = drafter.propose([replace(context, tokens=[*context.tokens, 1, 2])], [8])
    assert [draft.tokens[node] for node in draft.children(-1)] == [7, 8]


def test_what_came_last_comes_first():
    drafter = opened("token-recycling:nodes=2,width=2")
    context = begun(drafter, (1, 2))
    for written, found in ((7, [8]), (8, [9, 8]), (9, [10, 9]), (9, [10, 9]), (7, [8, 10])):
        context.tokens.extend((written, 2))  # nobody is shown the rows
        proposed(drafter, context)
        assert [token for token in context.state.matrix[2].tolist() if token] == found


def test_what_was_written_is_learned_when_the_request_ends():
    for spelled in ("token-recycling", "aded"):
        drafter = opened(spelled)
        context = begun(drafter, (1, 2))
        context.tokens.extend((5, 6))
        drafter.stop(context)
        assert proposed(drafter, begun(drafter, (1, 2)), budget=1) == (5,)


def test_token_recycling_drafts_the_candidates_of_every_node_that_was_read():
    drafter = opened("token-recycling:nodes=6,width=2")
    context = begun(drafter, (1, 2))
    assert proposed(drafter, context) == ()
    draft = Draft((3, 4), (-1, -1))
    told(drafter, context, judged(context, draft, rows((5, 3), (6, 7), (8, 9)), (0,), 6))  # 4 was rejected
    (found,) = drafter.propose([context], [8])
    assert found.tokens == (5, 3, 6, 7)  # behind 5 nothing was ever read, so its places go to others
    assert found.parents == (-1, -1, 1, 1)
    assert proposed(drafter, context, (4,)) == (8, 9)  # what was learned from the rejected node
    assert proposed(drafter, context, (77,)) == ()


def test_token_recycling_shares_its_matrix_unless_told_otherwise():
    drafter = opened("token-recycling:nodes=2,width=1")
    teacher = begun(drafter, (1,))
    told(drafter, teacher, judged(teacher, Draft(), rows((5,)), (), 5))
    assert proposed(drafter, begun(drafter, (1,))) == (5,)
    assert proposed(drafter, begun(drafter, (1,), Sampling(temperature=1))) == (5,)
    alone = opened("token-recycling:nodes=2,width=1,shared=false")
    teacher = begun(alone, (1,))
    told(alone, teacher, judged(teacher, Draft(), rows((5,)), (), 5))
    assert proposed(alone, begun(alone, (1,))) == ()
    assert proposed(alone, teacher) == (5,)


def test_the_tree_of_eighty_nodes_is_nearly_the_published_one():
    drafter = opened("token-recycling")
    depths = Draft((0,) * 80, tuple(above for above, _ in drafter.places[:80])).depths
    assert [depths.count(depth) for depth in range(1, 8)] == [8, 21, 25, 18, 6, 1, 1]
    assert all(above < place for place, (above, _) in enumerate(drafter.places))


def test_aded_follows_the_targets_distribution_of_two_tokens():
    drafter = opened("aded:nodes=4,width=2")
    context = begun(drafter, (1, 2, 3, 1, 2))
    assert proposed(drafter, context) == (3, 1, 2, 3)  # as the prompt has it
    logits = rows((5, 6))
    told(drafter, context, judged(context, Draft(), logits, (), 5))
    (found,) = drafter.propose([context], [4])
    assert set(found.tokens) == {5, 6}
    chances = torch.softmax(logits[0], -1)[[5, 6]].tolist()
    assert [chance for _, chance in context.state.matrix.rows[1, 2]] == pytest.approx(chances)
    assert proposed(drafter, context, (9, 2)) == (5, 6)  # a pair that is new: after its second token


def test_aded_exploits_what_is_sure_and_explores_what_is_not():
    shapes = []
    for gap in (8.0, 0.5):
        drafter = opened("aded:nodes=6,width=2")
        context = begun(drafter, (50, 1))
        logits = torch.full((1, 100), -30.0)
        for token in range(1, 8):
            logits[0, [token + 1, token + 20]] = torch.tensor([gap, 0.0])
            context.tokens[:] = [50, token]
            told(drafter, context, judged(context, Draft(), logits.clone(), (), token + 1))
            logits[0, [token + 1, token + 20]] = -30.0
        context.tokens[:] = [50, 1]
        (draft,) = drafter.propose([context], [6])
        shapes.append(max(draft.depths))
    assert shapes == [6, 4]  # a chain, and a tree


def test_aded_takes_what_has_no_probability_last():
    drafter = opened("aded:nodes=9,width=3")
    context = begun(drafter, (50, 1))
    logits = torch.full((1, 100), -1000.0)  # float32 has no e^-1000
    logits[0, 5] = 0
    for token in (1, 5):
        context.tokens[:] = [50, token]
        told(drafter, context, judged(context, Draft(), logits, (), 5))
    context.tokens[:] = [50, 1]
    draft = drafter.propose([context], [9])[0]
    assert len(draft) == 9
    assert draft.tokens[:7] == (5,) * 7


def test_what_a_prompt_has_gives_way_to_the_target():
    drafter = opened("aded:nodes=1,width=1")
    context = begun(drafter, (1, 2))
    told(drafter, context, judged(context, Draft(), rows((5,)), (), 5))
    again = begun(drafter, (1, 2, 3, 4, 2, 6, 9, 2))
    assert proposed(drafter, again) == (5,)  # nobody knows what follows on 9 and 2
    assert proposed(drafter, begun(drafter, (4, 2))) == (6,)


def test_aded_forgets_what_was_written_longest_ago():
    drafter = opened("aded:pairs=2,width=1,nodes=1")
    context = begun(drafter, (1, 2))
    for pair, token in (((1, 2), 5), ((3, 4), 6)):
        context.tokens[:] = pair
        told(drafter, context, judged(context, Draft(), rows((token,)), (), token))
    assert set(context.state.matrix.rows) == {(3, 4), (-1, 4)}


class Chain(DRAFTERS["none"]):
    """Always the same two tokens."""

    def propose_one(self, context, budget):
        return Draft.chain((10, 11)[:budget], "chain")


def test_ouroboros_lengthens_a_draft_by_what_the_target_wrote():
    def held(_spelled, setup):
        return Chain(Chain.Options(), setup)

    setup = replace(setup_for(Config(), ToyModel(100, 0)), open_drafter=held)
    drafter = opened("ouroboros:of=none,length=2,each=2", setup)
    context = begun(drafter, (1,))
    assert proposed(drafter, context) == (10, 11)
    draft = Draft.chain((10, 11), "chain")
    # the first token is refused, and the target's likeliest behind it are still worth something: 11, 30, 31
    drafter.observe([context], [judged(context, draft, rows((11,), (30,), (31,)), (), 11)])
    (found,) = drafter.propose([context], [8])
    assert found.tokens == (10, 11, 30, 31)
    assert found.parents == (-1, 0, 1, 2)
    assert found.source == ("chain", "chain", "ouroboros", "ouroboros")
    assert proposed(drafter, context, budget=3) == (10, 11, 30)
    drafter.observe([context], [judged(context, draft, rows((11,), (40,), (41,)), (), 11)])
    (found,) = drafter.propose([context], [8])
    assert found.tokens == (10, 11, 40, 41, 30, 31)  # the newest first, beside the other
    assert found.parents == (-1, 0, 1, 2, 1, 4)
    with pytest.raises(ConfigError, match="holds itself"):
        opened("ouroboros:of=ouroboros")
