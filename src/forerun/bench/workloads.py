"""Prompts by category: the project's own, and public evaluation sets where their files are present.

`story`, `chat` and `code` are part of the package. `spec_bench`, `eagle_eval` and `humaneval` are read from a folder:
`--data`, else `../shared/data` beside the checkout. None of them is ever used for training.
Does not: play more than the first turn of a conversation, or judge answers.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError, unknown
from forerun.models.tokenizer import Tokenizer

OWN = ("story", "chat", "code")
SETS = {  # category -> the files below the data folder
    "spec_bench": ("spec_bench/question.jsonl",),
    "eagle_eval": tuple(f"eagle_eval/{n}.jsonl" for n in ("mt_bench", "humaneval", "gsm8k", "alpaca", "sum", "qa")),
    "humaneval": ("humaneval/HumanEval.jsonl",),
}
_SEPARATE = ("translation", "summarization", "qa", "math_reasoning", "rag")  # the rest of spec_bench is MT-bench


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or what a person says in a chat."""

    category: str  # "story", or set and part as in "spec_bench/qa"
    text: str
    chat: bool = False


def load(categories: Sequence[str], count: int, data: Path | None = None) -> list[Prompt]:
    """The first `count` prompts of every category, in the order asked for.

    A category is a name (`story`), a set (`spec_bench`, all its parts) or a part of one (`spec_bench/qa`). Raises
    ConfigError for a name that does not exist, and for a set whose files are not there.
    """
    found: list[Prompt] = []
    for name in dict.fromkeys(categories):
        by_part: dict[str, list[Prompt]] = {}
        for prompt in _prompts(name, data):
            by_part.setdefault(prompt.category, []).append(prompt)
        found += [prompt for prompts in by_part.values() for prompt in prompts[:count]]
    return found


def _prompts(name: str, data: Path | None) -> Iterator[Prompt]:
    head, _, part = name.partition("/")
    if name in OWN:
        yield from (Prompt(name, text, name == "chat") for text in _own()[name])
        return
    if head not in SETS:
        raise ConfigError(unknown("forerun bench", "prompt set", name, (*OWN, *SETS)))
    prompts = [prompt for file in SETS[head] for prompt in _rows(head, _folder(head, data) / file)]
    parts = dict.fromkeys(prompt.category for prompt in prompts)
    if part and name not in parts:
        raise ConfigError(unknown(f"category {head!r}", "part", part, [p.partition("/")[2] for p in parts]))
    yield from (prompt for prompt in prompts if not part or prompt.category == name)


def _own() -> Mapping[str, list[str]]:
    return tomllib.loads((files("forerun.bench") / "prompts.toml").read_text(encoding="utf-8"))


def folder_of(needed: Sequence[str], data: Path | None) -> Path | None:
    """The folder that holds all these files, if there is one."""
    return next((place for place in _places(data) if all((place / file).is_file() for file in needed)), None)


def _places(data: Path | None) -> list[Path]:
    beside = [Path(__file__).resolve().parents[4], Path.cwd().resolve().parent]
    return [data] if data is not None else [place / "shared" / "data" for place in dict.fromkeys(beside)]


def _folder(name: str, data: Path | None) -> Path:
    """The folder that holds every file of a set."""
    place = folder_of(SETS[name], data)
    if place is not None:
        return place
    where = " or ".join(map(str, _places(data)))
    raise ConfigError(f"category {name!r} needs {SETS[name][0]}, which is not in {where}; name its folder with --data.")


def _rows(name: str, path: Path) -> Iterator[Prompt]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for row in rows:
            text = row["prompt"] if "prompt" in row else row["turns"][0]
            yield Prompt(_category(name, path, row), text, chat="turns" in row)
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise ConfigError(f"{path} is not the {name} set that is meant ({problem!r}); get it again.") from problem


def _category(name: str, path: Path, row: Mapping[str, Any]) -> str:
    """Set and part; a set of one file and one kind of row has no parts."""
    if name == "spec_bench":
        return f"{name}/{row['category'] if row['category'] in _SEPARATE else 'mt_bench'}"
    return f"{name}/{path.stem}" if len(SETS[name]) > 1 else name


@dataclass(frozen=True)
class Item:
    """A prompt as the model reads it."""

    category: str
    number: int  # within its category, from 1
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """What can be run, and what is to be said about it."""

    items: tuple[Item, ...]
    notes: tuple[str, ...]


def encode(prompts: Sequence[Prompt], tokenizer: Tokenizer, room: int) -> Load:
    """Token ids of every prompt of at most `room` tokens; the notes say what was left out or changed."""
    items: list[Item] = []
    total, long = Counter[str](), Counter[str]()
    for prompt in prompts:
        total[prompt.category] += 1
        tokens = _ids(prompt, tokenizer)
        if len(tokens) > room:
            long[prompt.category] += 1
        else:
            items.append(Item(prompt.category, total[prompt.category], tokens))
    notes = [f"{c}: {n} of {total[c]} prompts have more than {room} tokens and were left out." for c, n in long.items()]
    if not tokenizer.has_chat and any(prompt.chat for prompt in prompts):
        notes.append("The model has no chat template: what a person says in a chat was given as plain text.")
    if not items:
        raise ConfigError(f"no prompt has at most {room} tokens; lower --max-tokens, or choose other --categories.")
    return Load(tuple(items), tuple(notes))


def _ids(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    if prompt.chat and tokenizer.has_chat:
        return tuple(tokenizer.chat([{"role": "user", "content": prompt.text}]))
    return tuple(tokenizer.encode(prompt.text, bos=True))
