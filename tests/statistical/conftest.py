"""What the statistical tests share: one goodness-of-fit test, at a level that a family of 64 passes for certain."""

import numpy as np
import pytest
import torch
from scipy import stats

ALPHA = 1e-6 / 64  # per test: a right implementation passes all 64 with probability over 1 - 1e-6; seeds are fixed


class Fit:
    """Pearson's chi-square of counts against a law; cells are pooled, the rarest first, until each expects 20."""

    def __init__(self, observed, law, least=20):
        observed, expected = np.asarray(observed, np.float64), np.asarray(law, np.float64) * np.sum(observed)
        impossible = expected <= 0
        self.impossible = int(observed[impossible].sum())  # outcomes that the law forbids
        order = np.argsort(expected[~impossible], kind="stable")
        expected, observed = expected[~impossible][order], observed[~impossible][order]
        group = (np.cumsum(expected) // least).astype(int)
        group = np.unique(group, return_inverse=True)[1]
        counts = [np.bincount(group, weights=column) for column in (observed, expected)]
        while len(counts[1]) > 1 and counts[1].min() < least / 2:  # the cell that the last step left too small
            at = int(counts[1].argmin())
            other = at + 1 if at + 1 < len(counts[1]) else at - 1
            for column in counts:
                column[other] += column[at]
            counts = [np.delete(column, at) for column in counts]
        self.statistic = float(((counts[0] - counts[1]) ** 2 / counts[1]).sum())
        self.freedom = len(counts[1]) - 1
        self.p_value = 0.0 if self.impossible else float(stats.chi2.sf(self.statistic, self.freedom))

    @property
    def good(self):
        return self.p_value > ALPHA

    def __repr__(self):
        return f"chi2 {self.statistic:.0f} at {self.freedom} df, p {self.p_value:.1e}, impossible {self.impossible}"


@pytest.fixture(scope="session")
def fit():
    return Fit


@pytest.fixture(autouse=True, scope="module")  # before what a module shares is made
def one_thread():
    """Small passes are too small to share; on a busy machine, waking threads takes a hundred times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folders of two random Llama models with a real architecture and few tokens: `tiny(vocab, seed)`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = {}

    def make(vocab, seed):
        if (vocab, seed) not in made:
            folder = tmp_path_factory.mktemp("tiny") / f"{vocab}-{seed}"
            torch.manual_seed(seed)
            sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
            config = LlamaConfig(vocab_size=vocab, max_position_embeddings=128, eos_token_id=None, **sizes)
            model = LlamaForCausalLM(config)
            torch.nn.init.normal_(model.lm_head.weight, std=0.35)  # so that the tokens differ in probability
            model.save_pretrained(folder)
            made[vocab, seed] = folder
        return made[vocab, seed]

    return make


@pytest.fixture(scope="session")
def judge():
    """transformers' own logits in float64 [tokens, vocab]: the judge that shares no code with the engine."""
    from transformers import AutoModelForCausalLM

    loaded = {}

    def logits(folder, tokens):
        if folder not in loaded:
            loaded[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.inference_mode():
            return loaded[folder](torch.as_tensor(tokens)).logits

    return logits
