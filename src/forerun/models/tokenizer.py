"""Text <-> token ids, with the tokenizer and chat template of the model's own folder.

Text of a user never becomes a special token: only the template may write those.
Does not: clean up spaces after decoding; run a template in this process; train tokenizers.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from forerun.errors import ModelError, RequestError
from forerun.models.template import Renderer
from forerun.weights.load import read_json, trim

Message = Mapping[str, Any]
Piece = bytes | str | None  # what a token writes: bytes, or its name where it is a special token
ROLES = ("system", "developer", "user", "assistant", "tool")  # templates write roles next to special tokens
ANCHOR = "\x01"  # a character that joins no other into a token: what follows it does not begin a text
_IDENTIFIER = re.compile(r"[\w$.-]+")
MOST_IDS = 1 << 24  # of a tokenizer; real ones have up to some 2^18
STAND_INS = range(0x10F000, 0x10FFFE)  # private characters, for what must not be read as a special token


class Tokenizer(ABC):
    """What the engine and the faces need of a tokenizer."""

    vocab_size: int
    bos: int | None
    eos: int | None

    @staticmethod
    def from_folder(path: str | Path) -> "Tokenizer":
        """The tokenizer of a model folder, or of a model's name."""
        name = str(path)
        if name.startswith("toy:"):
            from forerun.models.toy import toy_by_name

            return ToyTokenizer(*toy_by_name(name).words)
        from forerun.models.load import folder_of

        return FolderTokenizer(folder_of(name))

    @abstractmethod
    def encode(self, text: str, *, specials: bool = False, bos: bool = True) -> list[int]:
        """Token ids; strings of special tokens are plain text unless `specials`; begun as the folder says if `bos`."""

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD."""

    @abstractmethod
    def token_text(self, token: int) -> str:
        """One token as text, special tokens included."""

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """What every token writes; None for an id that no token has."""

    @abstractmethod
    def encode_within(self, text: str) -> list[int]:
        """Token ids of a text that goes on: as it would be encoded behind another one."""

    @property
    @abstractmethod
    def template(self) -> str | None:
        """What `chat` goes by; None where there is none."""

    @property
    def has_chat(self) -> bool:
        """Whether `chat` can be used."""
        return self.template is not None

    @abstractmethod
    def chat(self, messages: Sequence[Message], functions: Sequence[Message] = ()) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer, which may call these functions."""


class FolderTokenizer(Tokenizer):
    """A tokenizer.json with its tokenizer_config.json and chat template."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "tokenizer_config.json"
        self.config = read_json(file) if file.is_file() else {}
        self._plain = _load(folder)
        self._plain.encode_special_tokens = True  # read as: encode them as text
        self._added = self._plain.get_added_tokens_decoder()
        self.vocab_size = self._plain.get_vocab_size()
        self.bos, self.eos = self._id("bos_token"), self._id("eos_token")
        self._begin = self._beginning()
        trim()  # reading the file took as much again

    @cached_property
    def _trusting(self) -> tokenizers.Tokenizer:
        """The same tokenizer, reading the strings of special tokens as these tokens; for templates."""
        twin = tokenizers.Tokenizer.from_str(self._plain.to_str())
        twin.encode_special_tokens = False
        return twin

    @cached_property
    def _specials(self) -> dict[str, int]:
        return {str(token.content): i for i, token in self._added.items() if token.special and token.content}

    def _text(self, key: str) -> str | None:
        """A special token as tokenizer_config.json names it."""
        value = self.config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else None

    def _id(self, key: str) -> int | None:
        text = self._text(key)
        found: int | None = self._plain.token_to_id(text) if text is not None else None
        return found

    def _beginning(self) -> list[int]:
        """What the folder puts before a text: its post-processor's tokens, unless `add_bos_token` says otherwise."""
        plain = self._plain.encode("a", add_special_tokens=False).ids
        full = self._plain.encode("a", add_special_tokens=True).ids
        starts = [i for i in range(len(full)) if full[i : i + len(plain)] == plain]
        begin = full[: starts[0]] if starts else []
        if self.config.get("add_bos_token") is True and self.bos is not None and self.bos not in begin:
            return [self.bos, *begin]
        if self.config.get("add_bos_token") is False:
            return [token for token in begin if token != self.bos]
        return begin

    def encode(self, text: str, *, specials: bool = False, bos: bool = True) -> list[int]:
        reader = self._trusting if specials else self._plain
        try:
            ids: list[int] = reader.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeError) as error:  # half of a surrogate pair, which no UTF-8 text can hold
            raise RequestError("the text is not valid Unicode; send well-formed text.") from error
        return [*self._begin, *ids] if bos else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._plain.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_text(self, token: int) -> str:
        return self.decode([token], skip_special=False)

    def pieces(self) -> list[Piece]:
        tokens = self._plain.get_vocab()
        count = max(tokens.values(), default=-1) + 1
        if count > MOST_IDS:
            message = f"{self.folder / 'tokenizer.json'} has a token with the id {count - 1}"
            raise ModelError(f"{message}, and ids go to {MOST_IDS - 1}; download it again.")
        found: list[Piece] = [None] * count
        spell = _speller(str(self._plain.decoder))
        for text, i in tokens.items():
            added = self._added.get(i)
            found[i] = spell(text) if added is None else text if added.special else text.encode()
        return found

    @cached_property
    def _anchor(self) -> list[int]:
        return self.encode(ANCHOR, bos=False)

    def encode_within(self, text: str) -> list[int]:
        ids, before = self.encode(ANCHOR + text, bos=False), len(self._anchor)
        return ids[before:] if ids[:before] == self._anchor else self.encode(text, bos=False)

    @cached_property
    def template(self) -> str | None:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        older = self.folder / "chat_template.json"
        found = read_json(older).get("chat_template") if older.is_file() else self.config.get("chat_template")
        if isinstance(found, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else None

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self.template or "")

    def chat(self, messages: Sequence[Message], functions: Sequence[Message] = ()) -> list[int]:
        if self.template is None:
            raise RequestError(f"{self.folder} has no chat template; use a plain prompt, or a model made for chat.")
        if isinstance(messages, (str, bytes, Mapping)):
            raise RequestError(f"messages is {messages!r:.60}; give a list of messages, each with a role and content.")
        for message in messages:
            if not isinstance(message, Mapping) or message.get("role") not in ROLES:
                raise RequestError(f"a message needs a role, one of {', '.join(ROLES)}; got {message!r:.80}.")
        (hidden, shown), marks = self._hide([messages, functions])
        text = self._render(hidden, [{"type": "function", "function": function} for function in shown] or None)
        if not marks:
            return self.encode(text, specials=True, bos=False)
        ids: list[int] = []
        for piece in re.split(f"({_any(self._specials)})", text):
            if piece in self._specials:
                ids.append(self._specials[piece])
            elif piece:
                ids += self.encode(_restore(piece, marks), bos=False)
        return ids

    def _render(self, messages: list[Any], tools: list[Any] | None) -> str:
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
        tokens = {name: text for name in names if (text := self._text(name)) is not None}
        fixed = {"documents": None, "add_generation_prompt": True}
        return self._renderer({"messages": messages, "tools": tools, **fixed, **tokens})

    def _hide(self, given: Sequence[Sequence[Message]]) -> tuple[list[list[Any]], dict[str, str]]:
        """Texts in which a stand-in replaces all that could be read as a special token, and what each stands for."""
        everything = json.dumps([list(each) for each in given], ensure_ascii=False, default=str)
        edge = next((c for c in map(chr, STAND_INS) if c not in everything), None)
        if edge is None:
            raise RequestError("the messages use every private character of plane 16; leave some of them out.")
        marks: dict[str, str] = {}

        def hide(text: str) -> str:
            mark = f"{edge}{len(marks)}{edge}"
            marks[mark] = text
            return mark

        def walk(text: str) -> str:
            bare = text.strip()  # templates strip, too
            if not bare or not self._specials:
                return text
            inner = any(bare in special for special in self._specials)  # the template might write what is around it
            hidden = hide(bare) if inner else self._dangerous.sub(lambda match: hide(match.group()), bare)
            return text.replace(bare, hidden, 1)

        def name(key: str) -> str:
            plain = _IDENTIFIER.fullmatch(key) and key not in self._specials  # templates look for some of these
            return key if plain else walk(key)

        def deep(value: Any) -> Any:  # noqa: ANN401
            return _map_text(value, walk, name)

        return [[{k: v if k == "role" else deep(v) for k, v in m.items()} for m in each] for each in given], marks

    @cached_property
    def _dangerous(self) -> re.Pattern[str]:
        """Special tokens, and at the ends of a text the parts that would make one with what the template adds."""
        whole = list(self._specials)
        heads = {s[:i] for s in whole for i in range(1, len(s))}
        tails = {s[i:] for s in whole for i in range(1, len(s))}
        return re.compile(rf"{_any(whole)}|\A{_any(tails)}|{_any(heads)}\Z")


class ToyTokenizer(Tokenizer):
    """One word per id, for toy models; a text is read from the left, the longest word first."""

    bos = eos = template = None

    def __init__(self, *words: str) -> None:
        self.vocab_size = len(words)
        self._words = words
        self._ids = {word: i for i, word in enumerate(words)}
        self._reader = re.compile(_any(words))

    def encode(self, text: str, *, specials: bool = False, bos: bool = True) -> list[int]:
        strange = self._reader.sub("", text)
        if strange:
            known = f"{self._words[0]} to {self._words[-1]}"
            raise RequestError(f"the toy model has no token {strange[0]!r}; write with its letters {known}.")
        return self.encode_within(text)

    def encode_within(self, text: str) -> list[int]:
        return [self._ids[word] for word in self._reader.findall(text)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(self._words[token] for token in ids)

    def token_text(self, token: int) -> str:
        return self._words[token]

    def pieces(self) -> list[Piece]:
        return [word.encode() for word in self._words]

    def chat(self, messages: Sequence[Message], functions: Sequence[Message] = ()) -> list[int]:
        raise RequestError("a toy model has no chat template; use a plain prompt.")


def _load(folder: Path) -> tokenizers.Tokenizer:
    """tokenizer.json, or what transformers makes of an older tokenizer's files."""
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise ModelError(f"{file} is not a sound tokenizer ({error}); download it again.") from error
    if not any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
        raise ModelError(f"{folder} has no tokenizer; put its tokenizer.json there.")
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return tokenizers.Tokenizer.from_str(found.backend_tokenizer.to_str())
    except Exception as error:  # whatever the older format's code raises
        message = f"the tokenizer in {folder} cannot be read ({error})"
        raise ModelError(f"{message}; convert it to tokenizer.json with AutoTokenizer and save_pretrained.") from error


def _speller(decoder: str) -> Callable[[str], bytes]:
    """How a vocabulary writes its tokens, by its decoder: bytes as letters (2019, GPT-2), or a mark for the space."""
    if "ByteLevel" in decoder:
        return lambda text: bytes(_LETTERS[c] for c in text) if _LETTERS.keys() >= set(text) else text.encode()

    def spell(text: str) -> bytes:
        fallback = re.fullmatch(r"<0x([0-9A-F]{2})>", text) if "ByteFallback" in decoder else None
        return bytes.fromhex(fallback[1]) if fallback else text.replace("\u2581", " ").encode()

    return spell


def _letters() -> dict[str, int]:
    """The letters of byte-level vocabularies: what can be seen stands for itself, the rest follows from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(b): b for b in seen} | {chr(256 + i): b for i, b in enumerate(hidden)}


_LETTERS = _letters()


def _map_text(value: Any, change: Callable[[str], str], name: Callable[[str], str]) -> Any:  # noqa: ANN401
    """Every text inside a value, and the names of its fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name(str(k)): _map_text(v, change, name) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_text(v, change, name) for v in value]
    return value


def _any(texts: Iterable[str]) -> str:
    """A pattern for any of these, the longest that fits."""
    return f"(?:{'|'.join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or '(?!)'})"


def _restore(text: str, marks: Mapping[str, str]) -> str:
    for mark, original in marks.items():
        text = text.replace(mark, original)
    return text
