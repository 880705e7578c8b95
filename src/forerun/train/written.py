"""`forerun train written`: texts of a teacher's own, for its student to be distilled on.

A draft is judged behind text that the target wrote, which is not that of any data set: a drafter agrees more often
where it has learned behind such text (DistillSpec, 2310.08461). The teacher goes on behind the beginnings of training
documents, half of the time greedily, else at temperatures 0.7 and 1.
Does not: learn from drafts of the student itself; keep the teacher's distributions, which the training asks for again.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from forerun.errors import TrainError
from forerun.llm import LLM
from forerun.train import data, lm, recipe
from forerun.train.tokenizer import END_OF_TEXT, special_id
from forerun.types import Sampling

SHORTEST, LONGEST = 4, 128  # tokens of a beginning
TEMPERATURES = (0.0, 0.7, 0.0, 1.0)  # by turns
TOGETHER = 64  # texts that are written beside each other


def train_written(chosen: recipe.Recipe, out: Path, data_folder: Path | None, tokens: int, length: int) -> int:
    """Let the recipe's teacher write `tokens` tokens, at most `length` behind a beginning, into the file OUT."""
    if not chosen.distil.teacher:
        raise TrainError(f"recipe {chosen.name!r} names no teacher to write; set distil.teacher to a model folder.")
    parts, words = lm.read(chosen, data_folder or data.default_folder(), out.parent)
    packed = {name: data.pack(train, words) for name, (train, _) in parts.items()}
    begun = beginnings(data.Sampler(packed, chosen.mixture, chosen.seed), words)
    llm = LLM(chosen.distil.teacher, drafter="none", decoder="autoregressive", max_requests=TOGETHER)
    end, texts, count = special_id(words, END_OF_TEXT), list[list[int]](), 0
    while count < tokens:
        prompts = [next(begun) for _ in range(8 * TOGETHER)]
        samplings = [
            Sampling(temperature=TEMPERATURES[i % len(TEMPERATURES)], max_tokens=length, seed=len(texts) + i)
            for i in range(len(prompts))
        ]
        written = [list(result.tokens) for result in llm.generate(prompts, samplings)]
        count += sum(map(len, written))
        for prompt, text in zip(prompts, written, strict=True):
            texts.append(prompt + text + [end] * (text[-1] != end))
    data.save(data.joined([np.array(text, np.uint16) for text in texts]), out)
    return count


def beginnings(sampler: data.Sampler, words: Tokenizer) -> Iterator[list[int]]:
    """Texts as far as some token, and chats as far as their first answer, of the sampler's documents without end."""
    answer, end = special_id(words, "<|assistant|>"), special_id(words, END_OF_TEXT)
    rng, step = np.random.default_rng(sampler.seed), 0
    while True:
        for row in sampler.batch(step, TOGETHER, LONGEST).tolist():
            whole = row[: row.index(end)] if end in row else row
            at = whole.index(answer) + 1 if answer in whole else int(rng.integers(SHORTEST, LONGEST))
            if len(whole) >= SHORTEST:
                yield whole[:at]
        step += 1
