"""Proposers keep to vLLM's contract: made of its config, asked by row, and answering with lists of tokens."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import forerun.vllm
from forerun.drafters import DRAFTERS
from forerun.errors import ConfigError, ForerunError
from forerun.types import Draft

WIDTH = 64
BY_TOKENS = {
    "aggressive",
    "copyspec",
    "grammar",
    "hierarchy-drafting",
    "ngram",
    "none",
    "prediction",
    "sam-decoding",
    "suffix-decoding",
}
TEXT = [5, 6, 7, 8, 9, 5, 6, 7]


def config(**options):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(max_model_len=WIDTH, get_vocab_size=lambda: 100),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        additional_config={"forerun": options} if options else {},
    )


def table(*texts):
    """Rows as vLLM keeps them: what lies behind a text is left from others."""
    found = np.full((len(texts), WIDTH), 99, dtype=np.int32)
    for row, text in zip(found, texts, strict=True):
        row[: len(text)] = text
    return np.array([len(text) for text in texts], dtype=np.int32), found


def ask(proposer, *texts, fresh=1):
    """The call that vLLM makes, by keyword."""
    counts, rows = table(*texts)
    sampled = [text[len(text) - fresh :] if text else [] for text in texts]
    return proposer.propose(
        sampled_token_ids=sampled, num_tokens_no_spec=counts, token_ids_cpu=rows, slot_mappings=None
    )


def test_the_signature_is_vllm_s():
    names = list(inspect.signature(forerun.vllm.Proposer.propose).parameters)
    assert names == ["self", "sampled_token_ids", "num_tokens_no_spec", "token_ids_cpu", "slot_mappings"]
    assert callable(forerun.vllm.ngram(config()).propose)
    assert forerun.vllm.ngram(config()).load_model("anything") is None


def test_a_copied_continuation():
    proposer = forerun.vllm.ngram(config())
    assert ask(proposer, TEXT) == [[8, 9, 5]]
    assert ask(proposer, [*TEXT, 8]) == [[9, 5, 6]]
    assert ask(forerun.vllm.ngram(config(width=1)), TEXT) == [[8]]


def test_tensors_will_do():
    counts, rows = table(TEXT)
    found = forerun.vllm.ngram(config()).propose([[7]], torch.from_numpy(counts), torch.from_numpy(rows))
    assert found == [[8, 9, 5]]


def test_rows_may_change_places():
    """A text is known by its tokens: neighbours that come, go and move change nothing."""
    proposer, other = forerun.vllm.sam_decoding(config()), [1, 2, 3, 1, 2]
    alone = forerun.vllm.sam_decoding(config())
    first = ask(proposer, TEXT, other)
    assert first == ask(alone, TEXT) + ask(forerun.vllm.sam_decoding(config()), other)
    assert ask(proposer, [*other, 3], [*TEXT, 8], [4, 4])[1] == ask(alone, [*TEXT, 8])[0]
    assert len(proposer.requests) == 3
    assert ask(proposer, [*TEXT, 8, 9]) == ask(alone, [*TEXT, 8, 9])
    assert len(proposer.requests) == 1


def test_a_prompt_that_is_still_read_gets_nothing():
    proposer = forerun.vllm.ngram(config())
    counts, rows = table(TEXT, TEXT)
    assert proposer.propose([[], [7]], counts, rows) == [[], [8, 9, 5]]


def test_a_full_context_gets_nothing():
    proposer = forerun.vllm.ngram(config())
    assert [len(ask(proposer, (TEXT * 9)[:n])[0]) for n in (WIDTH - 4, WIDTH - 2, WIDTH - 1, WIDTH)] == [3, 1, 0, 0]


def test_what_ended_is_learnt_from():
    """Outputs of earlier requests, without their prompts' owners: suffix decoding's point."""
    proposer = forerun.vllm.suffix_decoding(config())
    story = [10, 11, 12, 13, 14, 15]
    ask(proposer, [1, *story], fresh=len(story))
    assert ask(proposer) == []
    assert ask(proposer, [2, 10, 11, 12]) == [[13, 14, 15]]


@pytest.mark.parametrize("nonsense", [Draft.chain((100,)), None, ValueError("no idea")])
def test_what_a_drafter_does_wrong_costs_its_draft(nonsense, monkeypatch):
    proposer, wrong = forerun.vllm.ngram(config()), [True]
    propose = proposer.drafter.inner.propose

    def maybe(batch, budgets):
        if isinstance(nonsense, Exception) and wrong:
            raise nonsense
        first, *others = propose(batch, budgets)
        return [nonsense if wrong else first, *others]

    monkeypatch.setattr(proposer.drafter.inner, "propose", maybe)
    found = ask(proposer, TEXT, [*TEXT, 8])
    assert found[0] == []
    assert found[1] == ([] if isinstance(nonsense, Exception) else [9, 5, 6])
    assert proposer.stats.draft_failures == 1
    wrong.clear()
    assert ask(proposer, TEXT) == [[8, 9, 5]]


def test_of_a_tree_the_likeliest_path():
    tree = Draft((1, 2, 3, 4, 5), (-1, -1, 1, 1, 3), None, (0.3, 0.6, 0.2, 0.5, 0.9), "x")
    assert forerun.vllm._chain(tree) == [2, 4, 5]
    assert forerun.vllm._chain(Draft()) == []


@pytest.mark.parametrize("name", sorted(DRAFTERS.table))
def test_every_drafter_works_or_says_why_not(name):
    """Whoever goes by tokens alone proposes lists of token ids; all others are refused in a sentence."""
    make = getattr(forerun.vllm, name.replace("-", "_"))
    if name not in BY_TOKENS:
        with pytest.raises(ForerunError, match=r"\.$"):
            make(config())
        return
    proposer = make(config())
    for _ in range(2):
        drafts = ask(proposer, TEXT, TEXT[::-1])
        assert len(drafts) == 2
        assert all(len(draft) <= 3 for draft in drafts)
        assert all(isinstance(token, int) and 0 <= token < 100 for draft in drafts for token in draft)


def test_what_there_is_not():
    assert getattr(forerun.vllm, "nonsense", None) is None
    with pytest.raises(ConfigError, match="no option 'widht'"):
        forerun.vllm.ngram(config(widht=3))
    with pytest.raises(ConfigError, match="token-recycling"):
        forerun.vllm.token_recycling(config())
