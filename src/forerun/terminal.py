"""What a person sees: a stream coloured by who guessed each token, a comparison with plain decoding, a chat."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import click
from rich.console import Console
from rich.text import Text

from forerun.engine.stats import RequestStats
from forerun.engine.text import Detokenizer
from forerun.errors import ForerunError, RequestError
from forerun.llm import LLM
from forerun.types import Emission, Event, Sampling

_COLOURS = ("green", "cyan", "yellow", "magenta", "blue", "red")


class Painter:
    """Gives every source a colour, in the order in which they appear; the target's own tokens stay plain."""

    def __init__(self, console: Console, llm: LLM, prompt: Sequence[int]) -> None:
        self.console, self.colours = console, dict[str, str]()
        self._pieces = Detokenizer(llm.tokenizer.decode, prompt)

    def paint(self, emissions: Sequence[Emission]) -> None:
        """Print one step's tokens."""
        for e in emissions:
            self._print(self._pieces.push(e.token), e.source)

    def finish(self) -> None:
        """Print what waited for the rest of a character."""
        self._print(self._pieces.finish(), "target")

    def _print(self, piece: str, source: str) -> None:
        if source != "target":
            self.colours.setdefault(source, _COLOURS[len(self.colours) % len(_COLOURS)])
        self.console.out(Text(piece).plain, style=self.colours.get(source), end="", highlight=False)

    def legend(self) -> Text:
        """Who is which colour."""
        words = [("target", "default"), *self.colours.items()]
        return Text("  ").join(Text(f"■ {name}", style=colour) for name, colour in words)


@dataclass(frozen=True)
class _Run:
    tokens: tuple[int, ...]
    seconds: float
    stats: RequestStats


def show(llm: LLM, prompt: str, sampling: Sampling, repeats: int) -> None:
    """Stream a coloured continuation, then time it against plain decoding of the same model, interleaved."""
    console = Console(highlight=False)
    sampling = replace(sampling, seed=sampling.seed if sampling.seed is not None else 0)
    tokens = llm.encode(prompt)
    painter = Painter(console, llm, tokens)
    console.out(prompt, style="bold", end="", highlight=False)
    for event in llm.stream(tokens, sampling):
        painter.paint(event.emissions)
        if event.error:
            raise ForerunError(event.error)
    painter.finish()
    console.out("")
    console.print(painter.legend())
    plain = llm.plain()
    _run(plain, tokens, replace(sampling, max_tokens=8))  # warm-up; the drafted run had the stream
    pairs = [(_run(plain, tokens, sampling), _run(llm, tokens, sampling)) for _ in range(repeats)]
    _report(console, pairs, _note(llm, sampling))


def _run(llm: LLM, tokens: Sequence[int], sampling: Sampling) -> _Run:
    began = perf_counter()
    result = llm.generate([tokens], sampling)[0]
    return _Run(result.tokens, perf_counter() - began, result.stats)


def _note(llm: LLM, sampling: Sampling) -> str:
    """Why a text may differ from plain decoding's."""
    if llm.engine.caveat:
        return f" ({llm.engine.caveat})"
    return "" if sampling.greedy else " (sampled: the same distribution; --verifier match gives the same text)"


def _report(console: Console, pairs: Sequence[tuple[_Run, _Run]], note: str) -> None:
    stats = pairs[0][1].stats
    speed_plain = median(len(p.tokens) / p.seconds for p, _ in pairs)
    speed_fast = median(len(f.tokens) / f.seconds for _, f in pairs)
    gain = median((len(f.tokens) / f.seconds) / (len(p.tokens) / p.seconds) for p, f in pairs)
    same = all(p.tokens == f.tokens for p, f in pairs)
    verdict = "yes" if same else "no"
    console.print(f"tokens {stats.tokens} · steps {stats.steps} · tokens per step {stats.tokens_per_step:.2f}")
    speeds = f"tokens/s plain {speed_plain:.0f} · forerun {speed_fast:.0f}"
    console.print(f"{speeds} · speed-up {gain:.2f}x (median of {len(pairs)})")
    console.print(f"identical to plain decoding: {verdict}{'' if same else note}")


def converse(llm: LLM, sampling: Sampling, system: str) -> None:
    """Read a line, stream the answer, remember both; Ctrl-C ends the answer, and between answers the conversation."""
    console = Console(highlight=False)
    messages = [{"role": "system", "content": system}] if system else []
    while True:
        try:
            line = console.input("[bold]> [/bold]").strip()
        except EOFError:
            return
        if not line:
            return
        messages.append({"role": "user", "content": line})
        pieces = list[str]()
        try:
            with closing(llm.stream(llm.tokenizer.chat(messages), sampling)) as events:
                pieces += (_say(console, event) for event in events)
        except KeyboardInterrupt:
            pass  # what was said stays said
        except RequestError as problem:
            click.echo(f"forerun: {problem}", err=True)
            messages.pop()  # the conversation goes on without it
            continue
        console.out("")
        messages.append({"role": "assistant", "content": "".join(pieces)})


def _say(console: Console, event: Event) -> str:
    console.out(event.text, end="", highlight=False)
    if event.error:
        raise ForerunError(event.error)
    return event.text
