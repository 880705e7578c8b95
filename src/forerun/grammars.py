"""Grammars over the bytes that tokens write, through llguidance: compiled within limits, walked token by token.

Every token of the vocabulary is given as its bytes, special ones by name, and one more stands for the end of a text:
llguidance allows it where the text is complete, and what ends a request's text is the guide's to know.
Does not: read files, or fetch what a schema refers to.
"""

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from forerun.errors import RequestError
from forerun.guide import COMPLEX, Matcher
from forerun.kernels.masks import Bits, unpacked
from forerun.types import Bools, Setup, Spelling

BOUNDS: dict[str, Any] = {  # of llguidance's parser
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
}
LIMITS = LLParserLimits(**BOUNDS, verbose_errors=False)
STACK = 1 << 30  # bytes; only what is used is memory
_STARTING = threading.Lock()  # the size is that of every thread that starts meanwhile
_WHITE = r"( |\n {0,16})?"
_WORD = 32  # bits of a mask's words
_SAID = 200  # characters of what the library says


class _Words:
    """A vocabulary as llguidance wants it."""

    bos_token_id = None

    def __init__(self, spelling: Spelling, vocab: int, eos: Sequence[int]) -> None:
        pieces = [*spelling.pieces[:vocab], *[None] * (vocab - len(spelling.pieces))]
        named = {i for i, piece in enumerate(pieces) if isinstance(piece, str)}
        texts = [piece.encode() if isinstance(piece, str) else piece or b"" for piece in pieces]
        self._spelling, self.eos_token_id = spelling, vocab
        self.tokens = [*texts, b"<end>"]
        self.special_token_ids = sorted({*named, *eos, vocab})

    def __call__(self, data: bytes) -> list[int]:
        return self._spelling.encode(data)


@lru_cache(maxsize=4)
def vocabulary(spelling: Spelling, vocab: int, eos: tuple[int, ...]) -> Any:  # noqa: ANN401 - llguidance's
    """The tokens of a model, indexed; RequestError where they cannot be."""
    try:
        return LLTokenizer(TokenizerWrapper(_Words(spelling, vocab, eos)))
    except Exception as problem:  # the library raises nothing narrower
        message = f"the model's tokenizer cannot be used for constraints ({brief(problem)})"
        raise RequestError(f"{message}; leave the constraint out, or use a model with another tokenizer.") from problem


def grammar_of(schema: str, *, whitespace: bool, lenient: bool = False) -> str:
    """A JSON schema as a grammar. Between values a space, or a line break and its indentation, may stand, or nothing.

    What one may write without end a small model does write without end.
    """
    if not whitespace:
        return LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": False, "lenient": lenient})
    return LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": _WHITE, "lenient": lenient})


def brief(problem: object) -> str:
    """The first line of what the library says, as part of a sentence."""
    lines = str(problem).strip().splitlines() or ["no reason given"]
    return lines[0][:_SAID].rstrip(" .:;")


def written(name: str, grammar: Callable[[], str]) -> str:
    """A grammar as llguidance takes it; RequestError where it is none."""
    try:
        return str(grammar())
    except Exception as error:  # the library raises nothing narrower
        raise _failed(name, str(error) or repr(error)) from error


def compiled(name: str, setup: Setup, grammar: str) -> Callable[[], Matcher]:
    """What begins a text of a grammar; RequestError where it is none, or beyond the limits."""
    tokens = vocabulary(setup.open_spelling(""), setup.vocab, setup.eos)

    def begin() -> Any:  # noqa: ANN401 - llguidance's
        found: list[Any] = []
        deeply(lambda: found.append(LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)))
        return found[0]

    try:
        first = begin()
        problem = first.get_error()
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        problem = str(error) or repr(error)
    if problem:
        raise _failed(name, problem)
    return lambda: GrammarMatcher(first.deep_copy(), begin, setup.vocab)


def _failed(name: str, problem: str) -> RequestError:
    return RequestError(f"constraint {name!r} does not compile ({brief(problem)}); correct it, or make it smaller.")


def deeply(run: Callable[[], None]) -> None:
    """Run on a stack of its own: what is nested deeply would otherwise end the process, as the library recurses."""
    thread = threading.Thread(target=run, name="forerun-compile")
    with _STARTING:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()


class GrammarMatcher(Matcher):
    """Lifts llguidance's matcher, which never leaves an error that it met, and whose copies share their limits.

    So what was only looked at may reach a limit: a matcher that fails is compiled anew and reads the text again.
    It remembers its last mask by a row's number and the lexer's state, whatever the row holds after it was rolled back
    (llguidance 1.5.1 to 1.9.1). So it is not rolled back past a mask: walks with masks go back to a copy.
    Does not: fail at the same token whatever was drafted, where a text comes near a limit; masks are right or empty.
    """

    apart = True

    def __init__(self, inner: Any, begin: Callable[[], Any], vocab: int) -> None:  # noqa: ANN401 - llguidance's
        self._inner, self._begin, self._vocab = inner, begin, vocab
        self._pushed = list[int]()
        self._settled = 0  # tokens that stay
        self._clean: Any = None  # where a walk has found masks, a copy that has read these and knows of no mask since
        self._words = np.zeros(-(-(vocab + 1) // _WORD), np.int32)

    def _again(self) -> None:
        """The same place in a matcher that has seen nothing else."""
        self._inner = self._begin()
        self._inner.try_consume_tokens(self._pushed)

    def mask(self) -> Bools:
        return unpacked(self.bits(), self._vocab)

    def bits(self) -> Bits:
        walked = len(self._pushed) - self._settled
        if walked and self._clean is None:
            self._clean = self._inner.deep_copy()
            self._clean.rollback(walked)
        if not self._fill():
            self._again()
            if not self._fill():
                self._words[:] = 0
        found: Bits = self._words.view(np.uint8)[: -(-self._vocab // 8)].copy()
        if self._vocab % 8:  # the library knows a token more
            found[-1] &= (1 << self._vocab % 8) - 1
        return found

    def _fill(self) -> bool:
        """Find the mask; False where the matcher fails."""
        if not self._inner.is_error():
            self._inner.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        return not self._inner.is_error()

    def may_end(self) -> bool:
        return not self._inner.is_error() and bool(self._inner.is_accepting())

    def push(self, token: int) -> bool:
        taken = self._inner.try_consume_tokens([token])
        if taken != 1 and self._inner.is_error():
            self._again()
            taken = self._inner.try_consume_tokens([token])
        if taken == 1:
            self._pushed.append(token)
        return bool(taken == 1)

    def pop(self, count: int) -> None:
        count = min(count, len(self._pushed) - self._settled)
        del self._pushed[len(self._pushed) - count :]
        walked = self._pushed[self._settled :]
        if self._clean is None:
            self._inner.rollback(count)
        elif walked:
            self._inner = self._clean.deep_copy()
            self._inner.try_consume_tokens(walked)
        else:
            self._inner, self._clean = self._clean, None
        if self._inner.is_error():
            self._again()

    def settle(self) -> None:
        self._settled, self._clean = len(self._pushed), None

    def trouble(self) -> str:
        if not self._inner.is_error():
            return ""
        return f"{COMPLEX} ({brief(self._inner.get_error())}); simplify it."

    def hint(self) -> list[int]:
        tokens: list[int] = self._inner.compute_ff_tokens()
        return tokens
