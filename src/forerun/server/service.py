"""One model behind the routes: requests become asks of the engine, and wait, run and end within their limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from time import time
from typing import Any

from forerun.build import leaves_a_core
from forerun.engine.engine import Engine
from forerun.llm import LLM
from forerun.rng import sample_seed
from forerun.server.accounts import Accounts
from forerun.server.limits import Admission
from forerun.server.loop import Ask, EngineLoop, Ticket
from forerun.server.metrics import Metrics
from forerun.server.refusal import Refusal, invalid
from forerun.server.schema import (
    ChatFields,
    Choice,
    CompletionFields,
    DetokenizeBody,
    StreamOptions,
    TokenizeBody,
    Turn,
)
from forerun.server.settings import Settings
from forerun.server.shapes import ChatShape, CompletionShape, Shape
from forerun.server.tools import BARE, MOST, Calling, form_of, held
from forerun.server.trial import Trial
from forerun.types import Constraint, Event, Sampling, salted


@dataclass(frozen=True)
class Order:
    """What one request wants, ready for the engine."""

    shape: Shape
    asks: Sequence[Ask]
    drawn: int  # asks in a row that share a prompt
    n: int  # of these, how many are told: the likeliest
    logprobs: bool  # whether these are told, too
    echoes: Sequence[str]  # what is put before each text
    stream: bool
    usage: bool  # at the end of a stream
    steps: bool  # in each part of one
    counted: bool  # usage so far in each part, where it is wanted at the end
    scored: bool  # whether logprobs of the prompt are told by themselves
    calling: Calling | None = None  # where tools may be called


class Service:
    """Everything that the routes share. Made on any thread, used on the event loop."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        self.llm, self.settings, self.began = llm, settings, int(time())
        self.name = settings.served_model_name or Path(llm.config.model).name
        self.metrics = Metrics(settings.metrics_prefix, max(1, llm.engine.cache.free()))
        self.accounts = Accounts(settings.requests_per_minute, settings.tokens_per_minute)
        self.loop = EngineLoop(llm.engine, self._observe, beside=leaves_a_core(llm.config, llm.model.info))
        self.trial = Trial(llm.engine.members.guides, self.accounts)
        self.admission = Admission(llm.config.max_requests + settings.max_queue, settings.max_per_key)

    def _observe(self, ticket: Ticket, index: int, event: Event) -> None:
        self.metrics.observe(ticket, index, event)
        self.accounts.observe(ticket, index, event)

    @cached_property
    def pieces(self) -> Sequence[bytes | str | None]:
        """What every token writes."""
        return self.llm.tokenizer.pieces()

    def words(self, token: int) -> bytes:
        """One token as bytes."""
        piece = self.pieces[token] if token < len(self.pieces) else None
        return piece.encode() if isinstance(piece, str) else piece or b""

    @property
    def well(self) -> bool:
        """Whether the engine steps, and its model can run passes."""
        steps = self.loop.broken is None and self.loop.silence() < self.settings.stall_timeout
        return steps and not self.llm.model.lost

    # what takes as long as a tokenizer does

    def completion(self, tenant: str, body: CompletionFields) -> Order:
        """`/v1/completions` -> asks."""
        sampling, expected = self._read(tenant, body)
        most, asked = self.admission.per_key, len(body.prompts()) * body.drawn
        if asked > most:
            raise invalid(f"the request asks for {asked} texts and may have {most}; ask for fewer.", "prompt")
        prompts = [self.llm.encode(prompt) for prompt in body.prompts()]
        echoes = [self._text(prompt) if body.echo else "" for prompt in body.prompts() for _ in range(body.drawn)]
        return _order(CompletionShape(), body, _asks(body, prompts, sampling, tenant, expected), echoes)

    def chat(self, tenant: str, body: ChatFields) -> Order:
        """`/v1/chat/completions` -> asks."""
        functions = body.functions()
        calling, forced = self._calling(body, functions)
        sampling, expected = self._read(tenant, body, forced)
        if calling is not None and forced is None and sampling.constraint is not None:
            raise invalid("the output is held to a form that no call has; leave that or tools out.", "tools")
        prompt = self._chat(body.messages, functions)
        order = _order(ChatShape(), body, _asks(body, [prompt], sampling, tenant, expected), [""] * body.n)
        return replace(order, calling=calling)

    def _chat(self, turns: Sequence[Turn], functions: Sequence[dict[str, Any]] = ()) -> list[int]:
        """A conversation as tokens; Refusal where the template would leave calls out."""
        messages = [turn.message() for turn in turns]
        if any("tool_calls" in m for m in messages) and "tool_calls" not in (self.llm.tokenizer.template or ""):
            raise invalid("the model's chat template writes no tool calls; put them into the content.", "messages")
        return self.llm.tokenizer.chat(messages, functions)

    def _calling(
        self, body: ChatFields, functions: Sequence[dict[str, Any]]
    ) -> tuple[Calling | None, Constraint | None]:
        """How calls are read, and what the text is held to where there must be some."""
        if not functions:
            return None, None
        form, chosen = form_of(self.llm.tokenizer.template or ""), body.tool_choice
        if form is None and chosen in (None, "auto"):
            message = "the model's chat template has no known form of tool calls"
            raise invalid(f"{message}; set tool_choice to required or to a function, or leave tools out.", "tools")
        form, several = form or BARE, body.parallel_tool_calls is not False
        calling = Calling(form, frozenset(function["name"] for function in functions), MOST if several else 1)
        if chosen in (None, "auto"):
            return calling, None
        name = chosen.function.name if isinstance(chosen, Choice) else None
        wanted = [function for function in functions if name in (None, function["name"])]
        return calling, held(form, wanted, several=several and name is None)

    def _read(
        self, tenant: str, body: CompletionFields | ChatFields, forced: Constraint | None = None
    ) -> tuple[Sampling, Sequence[int]]:
        self.check_model(body.model)
        if body.drawn > self.settings.max_n:
            name = "n" if body.drawn == body.n else "best_of"
            raise invalid(f"{name} is {body.drawn}; ask for at most {self.settings.max_n} texts.", name)
        if body.stream_options is not None and not body.stream:
            raise invalid("stream_options is given without stream; set stream to true.", "stream_options")
        sampling = body.sampling()
        if forced is not None:
            if sampling.constraint is not None:
                raise invalid("the output is held to a form and to tool calls; ask for one of them.", "tool_choice")
            sampling = replace(sampling, constraint=forced)
        return sampling, self.llm.tokenizer.encode_within(body.expected())

    def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self.llm.tokenizer.decode(prompt)

    def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """Tokens of a text or of a conversation."""
        self.check_model(body.model)
        if (body.prompt is None) is (body.messages is None):
            raise invalid("the request has both or neither of prompt and messages; give one.", "prompt")
        if body.messages is not None:
            tokens = self._chat(body.messages)
        else:
            tokens = self.llm.tokenizer.encode(body.prompt or "", bos=body.add_special_tokens)
        found = {"count": len(tokens), "max_model_len": self.llm.engine.limits.context_length, "tokens": tokens}
        spelled = {"token_strs": [self.words(t).decode("utf-8", "replace") for t in tokens]}
        return {**found, **(spelled if body.return_token_strs else {})}

    def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        """Text of tokens."""
        self.check_model(body.model)
        size = self.llm.engine.limits.vocab
        wrong = [t for t in body.tokens if not 0 <= t < size]
        if wrong:
            raise invalid(f"token {wrong[0]} does not exist; use whole numbers from 0 to {size - 1}.", "tokens")
        return {"prompt": self.llm.tokenizer.decode(body.tokens)}

    def check_model(self, name: str | None) -> None:
        """Refusal for a model that is not here."""
        if name is not None and name != self.name:
            message = f"model {name[:64]!r} is not here; ask for {self.name!r}."
            raise Refusal(404, message, param="model", code="model_not_found")

    # while they run

    @asynccontextmanager
    async def open(self, order: Order, tenant: str) -> AsyncIterator[Ticket]:
        """The order's asks while they run; what still runs at the end is aborted."""
        with self.admission.seats(tenant, len(order.asks)):
            for wish in {ask.sampling.constraint for ask in order.asks}:
                if wish is not None:
                    await self.trial.prepare(tenant, wish)
            self.accounts.ask(tenant, order.asks)
            ticket = await self.loop.submit(order.asks, eager=order.stream)
            try:
                yield ticket
            finally:
                self.loop.leave(ticket)

    async def waits(self, ticket: Ticket) -> bool:
        """Whether none of its asks has had a slot."""

        def waiting(engine: Engine) -> bool:
            inside = [engine.requests[n] for n in ticket.numbers if n in engine.requests]
            return len(inside) == len(ticket.numbers) and all(request.context is None for request in inside)

        return await self.loop.call(waiting)

    async def drain(self) -> None:
        """Take nobody in any more; let those inside finish, for some time."""
        self.admission.close(max(1, ceil(self.settings.drain_timeout)))
        try:
            async with asyncio.timeout(self.settings.drain_timeout):
                await self.admission.empty.wait()
        except TimeoutError:
            with suppress(Refusal):  # the engine broke; everybody knows already
                await self.loop.abort_all()

    def start(self) -> None:
        """Start the engine's thread, from the event loop that it tells its news."""
        self.loop.start()

    async def stop(self) -> None:
        """End that thread."""
        self.trial.stop()
        await self.loop.stop()


def _order(shape: Shape, body: CompletionFields | ChatFields, asks: Sequence[Ask], echoes: Sequence[str]) -> Order:
    asked = body.stream_options or StreamOptions()
    return Order(
        shape,
        asks,
        body.drawn,
        body.n,
        body.logprobs is not None and body.logprobs is not False,
        echoes,
        body.stream,
        asked.include_usage,
        asked.include_steps,
        asked.continuous_usage_stats,
        body.prompt_logprobs is not None,
    )


def _asks(
    body: CompletionFields | ChatFields,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    tenant: str,
    expected: Sequence[int],
) -> list[Ask]:
    """`drawn` for every prompt, each with the seed that LLM.generate would give it."""
    seed, scope = sampling.seed, tenant if body.cache_salt is None else salted(tenant, body.cache_salt)
    each = [sampling if seed is None else replace(sampling, seed=sample_seed(seed, i)) for i in range(body.drawn)]
    return [Ask(prompt, one, scope, expected, body.priority) for prompt in prompts for one in each]
