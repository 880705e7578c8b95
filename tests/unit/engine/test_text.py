"""R7 and R8: text that grows is the text of the whole; the end is the same however tokens come in.

The oracle takes one token at a time and decodes everything written so far. Does not: share code with `engine/text.py`.
"""

import functools
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from forerun.engine.request import Request
from forerun.engine.text import Detokenizer, StopFinder
from forerun.rng import CounterRng
from forerun.types import Emission, Sampling

EXAMPLES = settings.default.max_examples  # 100; more with --hypothesis-profile thorough
SAMPLE = ["Žluťoučký kůň, naïve café – 你好、世界! 👩‍👩‍👧 🇨🇭 नमस्ते สวัสดี def f(x): return x\n\t" * 3]


@functools.cache
def byte_level():
    """Byte-level BPE: a token is any run of bytes, so a character may be split anywhere."""
    found = tokenizers.Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        SAMPLE, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    )
    return found


@functools.cache
def byte_fallback():
    """Words with a leading space, and a token per byte for what is not in the vocabulary, as SentencePiece has it."""
    words = ["▁", "▁a", "▁the", "a", "b", "é", "好", "\n"]
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    vocab |= {word: len(vocab) + i for i, word in enumerate(words)}
    found = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))  # noqa: S106 - a token of text
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    found.decoder = decoders.Sequence(steps)
    return found


TOKENIZERS = {"byte-level": byte_level, "byte-fallback": byte_fallback}


def grown(decode, prompt, tokens):
    detokenizer = Detokenizer(decode, prompt)
    pieces = [detokenizer.push(token) for token in tokens]
    return [*pieces, detokenizer.finish()]


def whole(decode, prompt, tokens):
    """What the tokens add to the text of the prompt; alone, where the prompt ends within a character."""
    before = decode(prompt) if prompt else ""
    if before.endswith("\ufffd"):
        return decode(tokens)
    return decode([*prompt, *tokens])[len(before) :]


def tokens_of(kind):
    return st.lists(st.integers(0, TOKENIZERS[kind]().get_vocab_size() - 1), max_size=24)


@settings(max_examples=50 * EXAMPLES)
@given(tokens=tokens_of("byte-level"))
@example(tokens=[])
def test_pieces_of_any_tokens_are_the_whole(tokens):
    decode = byte_level().decode
    assert "".join(grown(decode, (), tokens)) == decode(tokens)


@settings(max_examples=20 * EXAMPLES)
@given(prompt=st.text(max_size=6), tokens=tokens_of("byte-level"))
def test_pieces_after_a_prompt_are_what_it_grows_by(prompt, tokens):
    decode, ids = byte_level().decode, byte_level().encode(prompt).ids
    assert "".join(grown(decode, ids, tokens)) == whole(decode, ids, tokens)


def test_half_a_character_of_the_prompt_is_not_mended():
    """The prompt ends within an é; what follows is decoded as if it stood alone."""
    alphabet = {byte: byte_level().token_to_id(char) for byte, char in _byte_characters().items()}
    first, second = (alphabet[byte] for byte in "é".encode())
    decode = byte_level().decode
    assert "".join(grown(decode, (alphabet[97], first), (second, alphabet[98]))) == decode((second, alphabet[98]))


@settings(max_examples=20 * EXAMPLES)
@given(text=st.text(max_size=12), cuts=st.lists(st.integers(0, 48), max_size=6))
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_character_is_split(kind, text, cuts):
    """Any text, byte by byte or in longer runs: no U+FFFD on the way, and every piece ends a character."""
    tokenizer = TOKENIZERS[kind]()
    ids = _bytes(kind, text, cuts)
    decode = tokenizer.decode
    pieces = grown(decode, (), ids)
    assert "".join(pieces) == decode(ids)
    if "\ufffd" not in decode(ids):
        assert all("\ufffd" not in piece for piece in pieces)


def _bytes(kind, text, cuts):
    """Token ids of a text: one per byte, and the tokenizer's own for the parts after a cut of even rank."""
    tokenizer, raw = TOKENIZERS[kind](), text.encode()
    if kind == "byte-fallback":
        return [byte + 1 for byte in raw]
    alphabet = {byte: tokenizer.token_to_id(char) for byte, char in _byte_characters().items()}
    edges = sorted({0, *(c for c in cuts if c < len(raw)), len(raw)})
    ids = []
    for i, (start, end) in enumerate(pairwise(edges)):
        part = raw[start:end]
        try:
            ids += tokenizer.encode(part.decode()).ids if i % 2 else [alphabet[b] for b in part]
        except UnicodeDecodeError:
            ids += [alphabet[b] for b in part]
    return ids


@functools.cache
def _byte_characters():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


@settings(max_examples=15 * EXAMPLES)
@given(tokens=tokens_of("byte-fallback"))
def test_pieces_of_a_byte_fallback_are_the_whole(tokens):
    """Where the bytes are text. A run of byte tokens that is not UTF-8 becomes U+FFFD from its start, and what was
    already shown of it cannot be taken back: these characters stay, and U+FFFD follows.
    """
    decode = byte_fallback().decode
    text, full = "".join(grown(decode, (), tokens)), decode(tokens)
    if "\ufffd" in full:
        assert "\ufffd" in text
    else:
        assert text == full


@given(text=st.text("ab好é \n", max_size=12))
def test_spaces_at_the_edge_of_words_stay(text):
    tokenizer = byte_fallback()
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[{" ": "▁"}.get(char, char)] for char in text]
    assert "".join(grown(tokenizer.decode, (), ids)) == tokenizer.decode(ids)


def test_behind_a_token_without_text_the_one_before_it_still_counts():
    """The text of a whole begins without its space, as with a tokenizer of words; an end of turn has no text."""
    pieces = {0: " a", 1: "", 2: " b"}
    detokenizer = Detokenizer(lambda tokens: "".join(pieces[token] for token in tokens).removeprefix(" "))
    assert detokenizer.push(0, 1) + detokenizer.push(2) == "a b"


def test_half_a_character_waits_and_is_shown_once():
    ids = _bytes("byte-level", "é!", ())
    pieces = grown(byte_level().decode, (), ids)
    assert pieces == ["", "é", "!", ""]
    assert grown(byte_level().decode, (), ids[:1]) == ["", "\ufffd"]


def test_of_tokens_that_come_together_what_is_whole_is_shown():
    first, second, third = _bytes("byte-level", "aé", ())
    text = Detokenizer(byte_level().decode)
    assert [text.push(first, second), text.push(third), text.finish()] == ["a", "é", ""]


# R7: where a text ends


LETTERS = "abcé好"


BYTES = [*(c.encode() for c in LETTERS), b"\xc3", b"\xa9"]  # the last two are a character, each alone U+FFFD


def decode_letters(ids):
    return b"".join(BYTES[token] for token in ids).decode(errors="replace")


def oracle(tokens, stops, end_ids, limit, min_tokens):
    """(ids, text, reason) by one token at a time, decoding everything at each."""
    for count, token in enumerate(tokens, 1):
        if token in end_ids and count > min_tokens:
            return tokens[:count], _cut(decode_letters(tokens[: count - 1]), stops), "stop"
        text = decode_letters(tokens[:count])
        sure = text.rstrip("\ufffd") if count < limit else text  # an open character is not text yet
        found = [at for stop in stops if (at := sure.find(stop)) >= 0]
        if found:
            return tokens[:count], sure[: min(found)], "stop"
        if count == limit:
            return tokens[:count], text, "length"
    return tokens, None, None


def _cut(text, stops):
    """A stop string may be completed by what still waited when the text ended."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(found)] if found else text


def request(stops, end_ids, limit, min_tokens):
    sampling = Sampling(stop=tuple(stops), min_tokens=min_tokens)
    return Request(
        id=0,
        arrival=0,
        tokens=[0, 1],
        prompt=(0, 1),
        sampling=sampling,
        rng=CounterRng(0),
        limit=limit,
        ends=frozenset(end_ids),
        detokenizer=Detokenizer(decode_letters),
        stops=StopFinder(sampling.stop),
    )


def written(req, tokens, chunks):
    """(ids, text, reason) of a request whose tokens come in chunks, as accepted drafts do."""
    text, ids, at = "", [], 0
    for size in chunks:
        used, piece = req.commit([Emission(t, "test") for t in tokens[at : at + size]])
        text, at = text + piece, at + size
        ids += [e.token for e in used]
        if req.finish_reason is not None or at >= len(tokens):
            break
    return ids, text, req.finish_reason


STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)
STREAM = st.lists(st.integers(0, 6), min_size=1, max_size=16)


@settings(max_examples=50 * EXAMPLES)
@given(
    tokens=STREAM,
    stops=STOPS,
    end=st.one_of(st.none(), st.integers(0, 6)),
    limit=st.integers(1, 18),
    min_tokens=st.integers(0, 4),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=16),
)
@example(tokens=[0, 1, 2], stops=["bc", "abc"], end=None, limit=9, min_tokens=0, sizes=[3])  # overlapping, one chunk
@example(tokens=[0, 5, 6, 1], stops=["éb"], end=None, limit=9, min_tokens=0, sizes=[2, 2])  # split within a character
@example(tokens=[0, 1, 2], stops=["b"], end=1, limit=2, min_tokens=0, sizes=[3])  # all three ends at one place
def test_the_end_does_not_depend_on_the_chunks(tokens, stops, end, limit, min_tokens, sizes):
    ends = () if end is None else (end,)
    want_ids, want_text, want_reason = oracle(tokens, stops, ends, limit, min_tokens)
    for chunks in (sizes + [1] * 16, [1] * 16, [16]):
        ids, text, reason = written(request(stops, ends, limit, min_tokens), tokens, chunks)
        assert (ids, reason) == (want_ids, want_reason)
        if want_text is not None:
            assert text == want_text


@settings(max_examples=15 * EXAMPLES)
@given(pieces=st.lists(st.text("abc", max_size=4), max_size=12), stops=STOPS.filter(bool))
def test_what_is_shown_is_never_part_of_a_stop_string(pieces, stops):
    """Shown text is the longest that no continuation can take back, and ends where the first stop string begins."""
    finder, shown, text = StopFinder(stops), "", ""
    for piece in pieces:
        new, stopped = finder.push(piece)
        shown, text = shown + new, text + piece
        found = [at for stop in stops if (at := text.find(stop)) >= 0]
        assert stopped == bool(found)
        if stopped:
            assert shown == text[: min(found)]
            return
        held = max((n for n in range(len(text) + 1) for s in stops if n < len(s) and text.endswith(s[:n])), default=0)
        assert shown == text[: len(text) - held]
    assert shown + finder.finish() == text
