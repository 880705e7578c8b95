"""LLM(...).generate / .stream / .chat: the library face."""

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from os import PathLike
from time import perf_counter
from typing import Any, cast

from rich.progress import Progress

from forerun.build import build_engine, load_target
from forerun.config import Config, plain
from forerun.engine.desk import Desk
from forerun.engine.engine import Engine
from forerun.engine.stats import RequestStats
from forerun.errors import RequestError
from forerun.models.contract import Model
from forerun.models.tokenizer import Tokenizer
from forerun.rng import sample_seed
from forerun.types import Emission, Event, Logprob, Monitor, Sampling

CROWD = 256  # requests that an engine is given at a time, at least
STEPS = 16  # that follow on each other, where nobody waits for parts
Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Result:
    """What became of one prompt, or of one sample of it."""

    prompt_tokens: tuple[int, ...]
    text: str
    emissions: tuple[Emission, ...]
    finish_reason: str  # stop, length, abort or error
    stats: RequestStats
    error: str | None = None
    seconds: float = 0.0  # from the request to its last token
    first_token: float = 0.0  # seconds to the first token
    seed: int = 0  # `Sampling(seed=...)` with this one gives the same text again, alone
    caveat: str | None = None  # how the text differs from the model's own distribution; None where it does not
    seed_caveat: str | None = None  # why the seed need not give the text again; None where it does
    prompt_logprobs: tuple[Logprob | None, ...] = ()  # of each of the prompt's tokens but the first, if asked for

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the output, an end-of-sequence token included."""
        return tuple(e.token for e in self.emissions)

    @property
    def sources(self) -> tuple[str, ...]:
        """Who guessed each token; "target" where the target said it itself."""
        return tuple(e.source for e in self.emissions)

    @property
    def logprobs(self) -> tuple[Any, ...]:
        """types.Logprob per token where the sampling asked for them, else None."""
        return tuple(e.logprob for e in self.emissions)


@dataclass
class _Collector:
    """Events of one request -> its Result."""

    prompt: tuple[int, ...]
    seed: int
    began: float
    caveat: str | None
    seed_caveat: str | None
    emissions: list[Emission] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    first: float = 0.0
    scores: tuple[Logprob | None, ...] = ()

    def add(self, event: Event) -> Result | None:
        if event.emissions and not self.emissions:
            self.first, self.scores = event.time - self.began, event.prompt_logprobs
        self.emissions += event.emissions
        self.pieces.append(event.text)
        if event.finish_reason is None:
            return None
        return Result(
            self.prompt,
            "".join(self.pieces),
            tuple(self.emissions),
            event.finish_reason,
            event.stats,
            event.error,
            event.time - self.began,
            self.first,
            self.seed,
            self.caveat,
            self.seed_caveat,
            self.scores,
        )


class LLM:
    """A model, and every way to decode from it.

    `LLM("folder", drafter="ngram", width=4)`: keywords are fields of Config; others are options of the drafter.
    `LLM(config="forerun.toml")`: a file of such fields, as `forerun tune` writes it; keywords go before it.
    `monitors`: functions of the text so far, which requests name in `Constraint("monitors", name)`.
    Threads may ask it at once, and streams may be read by turns: their requests run together.
    Does not: download anything.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Model | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        monitors: Mapping[str, Monitor] | None = None,
        **keywords: Any,  # noqa: ANN401
    ) -> None:
        given = model if isinstance(model, Model) else None
        if model is not None:
            keywords["model"] = given.info.name if given is not None else str(model)
        self.config, options = Config.parse(**keywords)
        self.model = load_target(self.config) if given is None else given
        self.tokenizer = tokenizer or Tokenizer.from_folder(self.config.model)
        self.engine: Engine = build_engine(self.config, self.model, self.tokenizer, options, monitors)
        self._desk = Desk(self.engine)
        self.monitors = monitors

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        n: int = 1,
        *,
        prediction: Prompt = "",
        progress: bool = False,
    ) -> list[Result]:
        """`n` Results per prompt, all of the first prompt first; everything runs together.

        `sampling` is one for all prompts, or one for each of them.
        The samples of a prompt are independent; at temperature 0 they are the same. Sample 0 is what n=1 gives for
        the seed, the others have seeds made from it, and `Sampling(seed=result.seed)` gives any of them again alone
        (where neighbours may cut a draft short for want of room, the verifier `match` still does; where drafts go by
        measured times or by earlier requests, `seed_caveat` says so).
        `prediction` is what the outputs are expected to be; drafters that follow it save steps where it comes true.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise RequestError(f"n is {n!r}; give a whole number of at least 1.")
        listed = _as_list(prompts)
        each = list(sampling) if isinstance(sampling, Sequence) else [sampling] * len(listed)
        if len(each) != len(listed):
            raise RequestError(f"{len(listed)} prompts have {len(each)} samplings; give one for all, or one for each.")
        each = [_sampling(one) for one in each]
        began, expected, tokens = perf_counter(), self._expected(prediction), [self.encode(prompt) for prompt in listed]
        many = deque((ids, _sample(one, i)) for ids, one in zip(tokens, each, strict=True) for i in range(n))
        for ids, one in islice(many, self.crowd, None):  # before anything is written, as the first ones are
            self.engine.check(ids, one, expected)
        collectors: dict[int, _Collector] = {}
        results: dict[int, Result] = {}
        running = set[int]()
        try:
            with Progress(disable=not progress, transient=True) as bar:
                task = bar.add_task("generating", total=len(many))
                while many or running:
                    while many and len(running) < self.crowd:
                        number, collector = self._add(running, *many.popleft(), expected, began)
                        collectors[number] = collector
                    for event in self._desk.hear(running, STEPS):
                        done = collectors[event.request].add(event)
                        if done is not None:
                            results[event.request] = done
                            bar.advance(task)
        finally:
            self._desk.leave(running)
        return [results[number] for number in collectors]

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, prediction: Prompt = ""
    ) -> Generator[Event, None, None]:
        """Events of one prompt as they come; the last one has a finish reason. Leaving the loop aborts."""
        running = set[int]()
        try:
            sampling = _sampling(sampling)
            self._add(running, self.encode(prompt), sampling, self._expected(prediction), perf_counter())
            while running:
                yield from self._desk.hear(running)
        finally:
            self._desk.leave(running)

    def chat(self, messages: Messages, sampling: Sampling | None = None) -> Result:
        """The model's answer to a conversation, by the chat template of the model's folder."""
        return self.generate([self.tokenizer.chat(messages)], sampling)[0]

    def plain(self) -> "LLM":
        """The same model and weights, decoded one token per step: what everything is compared with."""
        same = {f.name: getattr(self.config, f.name) for f in fields(self.config) if f.name != "model"}
        plain = {"drafter": "none", "decoder": "autoregressive", "verifier": Config.verifier, "draft_store": ""}
        return LLM(self.model, self.tokenizer, monitors=self.monitors, **{**same, **plain})

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, with the beginning-of-sequence token where the model wants one; ids stay as they are."""
        return self.tokenizer.encode(prompt, bos=True) if isinstance(prompt, str) else _ids(prompt, "a prompt")

    @property
    def crowd(self) -> int:
        """Requests that the engine is given at a time: it looks at all of them in every step."""
        return max(CROWD, 2 * self.config.max_requests)

    def _expected(self, prediction: Prompt) -> list[int]:
        within = self.tokenizer.encode_within
        return within(prediction) if isinstance(prediction, str) else _ids(prediction, "the prediction")

    def _add(
        self, running: set[int], tokens: list[int], sampling: Sampling, expected: list[int], began: float
    ) -> tuple[int, _Collector]:
        request = self._desk.add(running, tokens, sampling, prediction=expected)
        seed = request.sampling.seed  # a fresh one where none was given
        caveats = self.engine.caveat, None if sampling.greedy else self.engine.seed_caveat
        return request.id, _Collector(tuple(tokens), seed or 0, began, *caveats)


def _sample(sampling: Sampling, sample: int) -> Sampling:
    """The sampling of one of many samples; without a seed every sample gets a fresh one anyway."""
    return sampling if sampling.seed is None else replace(sampling, seed=sample_seed(sampling.seed, sample))


def _sampling(given: Sampling | None) -> Sampling:
    if given is not None and not isinstance(given, Sampling):
        raise RequestError(f"sampling is {given!r:.60}; give a Sampling.")
    return given or Sampling()


def _as_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One text or one row of token ids alone, or many of either."""
    if isinstance(prompts, str):
        return [prompts]
    many = list(_each(prompts, "prompts"))
    if not many:
        raise RequestError("there are no prompts; give at least one.")
    return [cast("Prompt", many)] if isinstance(plain(many[0]), int) else many


def _ids(given: Iterable[int], what: str) -> list[int]:
    """Token ids as they come, from a list, an array or a tensor."""
    return [token if type(token) is int else plain(token) for token in _each(given, what)]


def _each(given: Any, what: str) -> Iterable[Any]:  # noqa: ANN401
    found = plain(given)
    if not isinstance(found, Iterable) or isinstance(found, (bytes, Mapping)):
        raise RequestError(f"{what} is {given!r:.60}; give a text, token ids, or a list of either.")
    return found
