"""What the two endpoints say, in OpenAI's shapes; whole, or in parts while it grows.

Does not: take back a token that completed a stop string: it is reported among the logprobs, and its text is not.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from forerun.engine.stats import RequestStats
from forerun.server.tools import Call
from forerun.types import Draft, Emission, Event, Logprob

Json = dict[str, Any]


class Words(Protocol):
    """Tokens as bytes."""

    def __call__(self, token: int, /) -> bytes: ...


class StepReport:
    """Steps of one choice: who guessed each token, and the tree that was judged."""

    def __init__(self, words: Words) -> None:
        self.words, self._reader = words, codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, event: Event) -> Json:
        """One of them. A character that several tokens write is said with the last of these."""
        tokens = [[e.token, self._reader.decode(self.words(e.token)), e.source] for e in event.emissions]
        return {"tokens": tokens, "draft": self._nodes(event.draft or Draft()), "path": event.path}

    def _nodes(self, draft: Draft) -> list[list[Any]]:
        spelled = [self.words(token).decode("utf-8", "replace") for token in draft.tokens]
        sources = map(draft.source_of, range(len(draft)))
        return [list(row) for row in zip(draft.tokens, spelled, sources, draft.parents, strict=True)]


class Report(ABC):
    """Logprobs of one choice, piece by piece."""

    def __init__(self, words: Words) -> None:
        self.words, self.place = words, 0  # where in the text the next token begins

    def spelled(self, token: int) -> str:
        """A token's text by itself; part of a character becomes U+FFFD."""
        return self.words(token).decode("utf-8", "replace")

    def begin(self, prompt: Sequence[int], text: str) -> None:
        """An echoed prompt comes first: its tokens end where this text does, which may lack some of the first."""
        self.place = len(text) - len(b"".join(map(self.words, prompt)).decode("utf-8", "replace"))

    @abstractmethod
    def of(self, emissions: Sequence[Emission]) -> Json:
        """What to say of the next tokens."""


class CompletionReport(Report):
    """Parallel lists, and where each token begins in the text."""

    def __init__(self, words: Words) -> None:
        super().__init__(words)
        self._reader = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, emissions: Sequence[Emission]) -> Json:
        logprobs = [e.logprob for e in emissions]  # none of a prompt's first token
        return {
            "tokens": [self.spelled(e.token) for e in emissions],
            "token_logprobs": [found and _finite(found.value) for found in logprobs],
            "top_logprobs": [found and {self.spelled(t): _finite(v) for t, v in found.top} for found in logprobs],
            "text_offset": [self._offset(e.token) for e in emissions],
        }

    def _offset(self, token: int) -> int:
        place = max(0, self.place)
        self.place += len(self._reader.decode(self.words(token)))
        return place


class ChatReport(Report):
    """One object per token, with its bytes."""

    def of(self, emissions: Sequence[Emission]) -> Json:
        return {"content": [self._token(e) for e in emissions], "refusal": None}

    def _token(self, emission: Emission) -> Json:
        found = emission.logprob
        assert found is not None  # noqa: S101 - they were asked for
        top = [self._one(token, value) for token, value in found.top]
        return {**self._one(emission.token, found.value), "top_logprobs": top}

    def _one(self, token: int, value: float) -> Json:
        return {"token": self.spelled(token), "logprob": value, "bytes": list(self.words(token))}


def _finite(value: float) -> float:
    """JSON has no word for the logprob of what cannot be; this is the one that others send."""
    return max(value, -9999.0)


def scored(prompt: Sequence[int], found: Sequence[Logprob | None], words: Words) -> list[Json | None]:
    """Logprobs of a prompt by themselves, as vLLM tells them: of each token and of the likeliest, by id."""

    def one(token: int, value: float, rank: int) -> Json:
        return {"logprob": _finite(value), "rank": rank, "decoded_token": words(token).decode("utf-8", "replace")}

    def every(token: int, own: Logprob) -> Json:
        ranked = enumerate(own.top, 1)
        return {str(t): one(t, v, rank) for rank, (t, v) in ranked} | {str(token): one(token, own.value, own.rank)}

    return [None if own is None else every(token, own) for token, own in zip(prompt, found, strict=True)]


class Shape(ABC):
    """How one endpoint says things."""

    operation: str  # as traces call it
    prefix: str
    whole: str  # what an answer is called
    part: str  # and a part of one
    report: type[Report]

    @abstractmethod
    def opening(self, echo: str) -> Json | None:
        """What a choice begins with, before its first text; None: nothing."""

    @abstractmethod
    def grown(self, text: str, calls: Sequence[tuple[int, Call]] = ()) -> Json:
        """More text of a choice, and more calls with their places."""

    @abstractmethod
    def said(self, text: str, calls: Sequence[Call] = ()) -> Json:
        """All text of a choice, and all calls."""

    @abstractmethod
    def scored(self, answer: Json, scores: Sequence[list[Json | None]]) -> Json:
        """A whole answer with the scores of each choice's prompt."""


class CompletionShape(Shape):
    operation = "text_completion"
    prefix, whole, part, report = "cmpl-", "text_completion", "text_completion", CompletionReport

    def opening(self, echo: str) -> Json | None:
        return self.grown(echo) if echo else None

    def grown(self, text: str, calls: Sequence[tuple[int, Call]] = ()) -> Json:
        return {"text": text}

    def said(self, text: str, calls: Sequence[Call] = ()) -> Json:
        return {"text": text}

    def scored(self, answer: Json, scores: Sequence[list[Json | None]]) -> Json:
        pairs = zip(answer["choices"], scores, strict=True)
        return answer | {"choices": [choice | {"prompt_logprobs": found} for choice, found in pairs]}


class ChatShape(Shape):
    operation = "chat"
    prefix, whole, part, report = "chatcmpl-", "chat.completion", "chat.completion.chunk", ChatReport

    def opening(self, echo: str) -> Json | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def grown(self, text: str, calls: Sequence[tuple[int, Call]] = ()) -> Json:
        delta: Json = {"content": text} if text else {}
        return {"delta": delta | ({"tool_calls": [{"index": i, **c.said()} for i, c in calls]} if calls else {})}

    def said(self, text: str, calls: Sequence[Call] = ()) -> Json:
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text if text.strip() else None, "tool_calls": [call.said() for call in calls]}
        return {"message": message}

    def scored(self, answer: Json, scores: Sequence[list[Json | None]]) -> Json:
        return answer | {"prompt_logprobs": scores[0]}  # all choices have the one prompt


def drafting(stats: RequestStats) -> Json:
    """What speculation brought to one choice; bonus included, 1.00 is plain decoding."""
    drafts, accepted = stats.reached[1], [stats.accepted_at[d] for d in range(1, max(stats.reached, default=0) + 1)]
    at_least = [drafts, *accepted, 0]
    return {
        "mean_acceptance_length": 1 + stats.accepted / drafts if drafts else 1.0,
        "draft_acceptance_rate": stats.acceptance_rate,
        "acceptance_histogram": [more - less for more, less in pairwise(at_least)],
        "num_spec_steps": drafts,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
    }


def usage(prompt: int, written: int, cached: int) -> Json:
    """Tokens read and written; a prompt counts once, however many texts it gets."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
