"""One request's life: its tokens, where it stands, and the text that became certain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.engine.stats import RequestStats
from forerun.engine.swap import Copy
from forerun.engine.text import Detokenizer, StopFinder
from forerun.rng import Rng
from forerun.sampling import logprob
from forerun.types import Context, Emission, Guide, Logprob, Output, Sampling

SCORED = 128  # rows of a prompt at a time whose logits are all kept


@dataclass(eq=False, slots=True)
class Request:
    """Changes only through the engine. `tokens` are the prompt, then everything committed."""

    id: int
    arrival: int
    tokens: list[int]
    prompt: tuple[int, ...]
    sampling: Sampling
    rng: Rng
    limit: int  # tokens it may write
    ends: frozenset[int]  # tokens that end it
    detokenizer: Detokenizer
    stops: StopFinder
    scope: str = ""
    prediction: tuple[int, ...] = ()
    priority: int = 0
    pace: float = 0.0  # tokens per second that are read; 0: not said
    arrived: float = 0.0  # seconds on the engine's clock
    since: float = 0.0  # when it was charged last
    guide: Guide | None = None  # where it stands in its constraint
    slot: int | None = None
    done: int = 0  # tokens whose keys and values are in the cache
    saved: Copy | None = None  # what it held when it gave its slot up
    context: Context | None = None
    state: Any = None  # the decoder's
    finish_reason: str | None = None
    error: str | None = None
    scores: list[Logprob | None] = field(default_factory=list)  # of the prompt's tokens, as far as they were asked for
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def prompt_length(self) -> int:
        """Tokens before the first of the output."""
        return len(self.prompt)

    @property
    def pending(self) -> int:
        """Tokens that must still go through the target."""
        return len(self.tokens) - self.done

    @property
    def written(self) -> int:
        """Tokens committed after the prompt."""
        return len(self.tokens) - len(self.prompt)

    @property
    def scoring(self) -> bool:
        """Whether log-probabilities of the prompt are still to be found."""
        return self.sampling.prompt_logprobs is not None and len(self.scores) < self.prompt_length

    def readable(self, count: int) -> int:
        """As many of `count` pending tokens as a step may read: whose rows are all kept are few, and not the last."""
        return min(count, SCORED, max(1, self.pending - 1)) if self.scoring else count

    def score(self, output: Output) -> Output:
        """Take what a pass over the next pending tokens says of the tokens behind them; the same without its rows.

        Tokens that are read again were scored before.
        """
        for row, logits in enumerate(output.logits):
            if self.done + row + 1 == len(self.scores):
                token = self.prompt[len(self.scores)]
                self.scores.append(logprob(logits, token, self.sampling.prompt_logprobs or 0))
        return output._replace(held=output.logits[:0], best=(), mass=None)

    def charge(self, now: float) -> None:
        """Count the time since the last call: it waited, or held entries of the cache."""
        if self.slot is None:
            self.stats.queued += now - self.since
        else:
            self.stats.held += self.done * (now - self.since)
        self.since = now

    def commit(self, emissions: Sequence[Emission]) -> tuple[tuple[Emission, ...], str]:
        """Append tokens until one ends the request; what was appended, and the text that became certain."""
        tokens = [emission.token for emission in emissions]
        if tokens and not self.stops and self.guide is None and self._goes_on(tokens):
            self.tokens += tokens
            return tuple(emissions), self.detokenizer.push(*tokens)
        pieces: list[str] = []
        for count, emission in enumerate(emissions, 1):
            self.tokens.append(emission.token)
            piece, reason = self._read(emission.token)
            pieces.append(piece)
            if reason is not None:
                self.finish_reason = reason
                return tuple(emissions[:count]), "".join(pieces)
        return tuple(emissions), "".join(pieces)

    def _goes_on(self, tokens: Sequence[int]) -> bool:
        """Whether neither an end nor the limit is among new tokens."""
        return self.ends.isdisjoint(tokens) and self.written + len(tokens) < self.limit

    def _read(self, token: int) -> tuple[str, str | None]:
        """Text of one more token, and why the request ends with it, if it does."""
        if token in self.ends and self.written > self.sampling.min_tokens:
            return self.flush(), "stop"
        shown, stopped = self.stops.push(self.detokenizer.push(token))
        if stopped:
            return shown, "stop"
        complete = self.guide is not None and self.guide.advance(token)
        if self.written < self.limit and not complete:
            return shown, None
        rest, stopped = self.stops.push(self.detokenizer.finish())
        reason = "stop" if complete else "length"
        return (shown + rest, "stop") if stopped else (shown + rest + self.stops.finish(), reason)

    def flush(self) -> str:
        """Text still held back, when the request ends for another reason than a stop string."""
        shown, stopped = self.stops.push(self.detokenizer.finish())
        return shown if stopped else shown + self.stops.finish()
