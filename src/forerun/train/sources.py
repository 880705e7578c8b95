"""Read every training source into documents: plain texts and chats, each with the key that decides its split.

Does not: read any evaluation set (spec_bench, eagle_eval, humaneval, gsm8k test, mbpp); judge the quality of a text.
"""

import gzip
import hashlib
import json
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import TrainError, unknown
from forerun.train import stories

TEXT = "text"
WRITTEN = Path(__file__).parent  # texts that come with forerun
BOOK_CHARS = 6000
CODE_BYTES = 6_000_000
CODE_LINE = 200
SHORTEST_CODE = 200
SHORTEST_ARTICLE = 400
CODE_SKIP = {"test", "tests", "idlelib", "encodings", "site-packages", "lib2to3", "pydoc_data", "__phello__"}


@dataclass(frozen=True)
class Document:
    """One text or chat. `key` is the underlying text: two forms of one story share it, so they share a split."""

    source: str
    key: str
    turns: tuple[tuple[str, str], ...]


def digest(text: str) -> int:
    """A stable 64-bit hash: the same split, order and templates on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def read(data: Path, names: Iterable[str]) -> dict[str, list[Document]]:
    """The documents of each named source."""
    for name in set(names) - set(READERS):
        raise TrainError(unknown("the training mixture", "source", name, READERS))
    if not (data / "tinystories").is_dir():
        message = f"training data folder {str(data)!r} has no tinystories/; pass the folder that holds it with --data."
        raise TrainError(message)
    return {name: [as_document(name, item) for item in READERS[name](data)] for name in names}


def as_document(source: str, item: "str | Document") -> Document:
    return Document(source, item, ((TEXT, item),)) if isinstance(item, str) else item


def read_stories(data: Path) -> Iterator[str]:
    cased = stories.split((data / "tinystories/cased_2316.txt").read_text(encoding="utf-8"))
    lower = stories.split((data / "tinystories/lowercase_rest.txt").read_text(encoding="utf-8"))
    names = stories.names(cased)
    yield from cased
    yield from (stories.restore_case(story, names) for story in lower)


def read_story_chats(data: Path) -> Iterator[Document]:
    for story in read_stories(data):
        question = stories.request(story, digest(story))
        yield Document("story_chat", story, (("user", question), ("assistant", story)))


def read_book(path: str) -> Callable[[Path], Iterator[str]]:
    """A reader of one hard-wrapped book, in chunks of whole paragraphs, each paragraph on one line."""

    def reader(data: Path) -> Iterator[str]:
        raw = (data / path).read_bytes()
        text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode("utf-8").replace("\r\n", "\n")
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
        yield from chunks([p for p in paragraphs if p], "\n\n", BOOK_CHARS)

    return reader


def chunks(pieces: list[str], separator: str, size: int) -> Iterator[str]:
    """Join pieces until `size` characters are reached."""
    held: list[str] = []
    for piece in pieces:
        held.append(piece)
        if sum(map(len, held)) >= size:
            yield separator.join(held)
            held = []
    if held:
        yield separator.join(held)


def read_shakespeare(data: Path) -> Iterator[str]:
    speeches = (data / "tinyshakespeare/input.txt").read_text(encoding="utf-8").strip().split("\n\n")
    yield from chunks(speeches, "\n\n", BOOK_CHARS)


def read_wikitext(data: Path) -> Iterator[str]:
    """WikiText-2 articles, detokenised; a sentence with an `<unk>` is dropped, so that the model never writes one."""
    for part in ("valid", "test"):
        text = (data / f"wikitext2/{part}.txt").read_text(encoding="utf-8")
        for article in re.split(r"\n(?= = [^=])", text):
            lines = [detokenise(line) for line in article.splitlines()]
            kept = "\n".join(line for line in lines if line)
            if len(kept) > SHORTEST_ARTICLE:
                yield kept


def detokenise(line: str) -> str:
    """Undo the spacing of WikiText ("word , word" and " @-@ ")."""
    line = " . ".join(s for s in line.strip().split(" . ") if "<unk>" not in s)
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r" ([,.;:!?%)\]])", r"\1", line)
    line = re.sub(r"([(\[$£]) ", r"\1", line)
    line = re.sub(r" (n't|'s|'m|'re|'ve|'d|'ll)\b", r"\1", line)
    return re.sub(r'" ([^"]*?) "', r'"\1"', line)


def read_c4(data: Path) -> Iterator[str]:
    for row in rows(data / "llamafactory_demo/c4_demo.jsonl"):
        yield row["text"]


def read_wiki(data: Path) -> Iterator[str]:
    text = (data / "llamafactory_demo/wiki_demo.txt").read_text(encoding="utf-8")
    for article in text.split("\n"):
        if article.strip():
            yield from chunks(re.split(r"(?<=[a-z][.])(?=[A-Z])", article), "\n", BOOK_CHARS)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    raw = path.read_bytes()
    for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8").splitlines():
        yield json.loads(line)


def read_instructions(source: str, path: str) -> Callable[[Path], Iterator[Document]]:
    """A reader of instruction, input, response rows as one-turn chats."""

    def reader(data: Path) -> Iterator[Document]:
        for row in rows(data / path):
            question = row["instruction"] + (f"\n{row['input']}" if row["input"] else "")
            yield Document(source, row["instruction"], (("user", question), ("assistant", row["response"])))

    return reader


def read_gsm8k(data: Path) -> Iterator[Document]:
    for row in rows(data / "gsm8k/train_500.jsonl"):
        answer = re.sub(r"<<[^>]*>>", "", row["answer"])
        yield Document("gsm8k", row["question"], (("user", row["question"]), ("assistant", answer)))


def read_glaive(data: Path) -> Iterator[Document]:
    roles = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "user"}
    for row in rows(data / "llamafactory_demo/glaive_toolcall_en_demo.jsonl"):
        turns = tuple((roles[m["from"]], m["value"]) for m in row["conversations"])
        system = (("system", f"You can call these functions: {row['tools']}"),) if row["tools"] else ()
        yield Document("tool_chat", turns[0][1], system + turns)


def read_reasoning(data: Path) -> Iterator[Document]:
    for row in rows(data / "llamafactory_demo/reason_tool_use_demo_50.jsonl"):
        turns = [("user" if m["role"] == "tool" else m["role"], said(m)) for m in row["messages"]]
        yield Document("reason_chat", turns[1][1], tuple(turns))


def said(message: dict[str, Any]) -> str:
    return "\n".join(part["value"] for part in message["content"])


def read_written(source: str) -> Callable[[Path], Iterator[Document]]:
    """A reader of questions and answers written for forerun; every answer is repeated on purpose."""

    def reader(_data: Path) -> Iterator[Document]:
        for row in rows(WRITTEN / f"{source}.jsonl"):
            for question in row["user"]:
                yield Document(source, question, (("user", question), ("assistant", row["assistant"])))

    return reader


def read_scripts(_data: Path) -> Iterator[str]:
    """Short Python files written for forerun."""
    yield from (row["text"] for row in rows(WRITTEN / "scripts.jsonl"))


def read_code(_data: Path) -> Iterator[str]:
    """Python source of the running interpreter's standard library, in hashed order up to CODE_BYTES."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [p for p in root.rglob("*.py") if not CODE_SKIP & set(p.relative_to(root).parts)]
    total = 0
    for path in sorted(paths, key=lambda p: digest(p.relative_to(root).as_posix())):
        text = path.read_text(encoding="utf-8", errors="ignore").strip()
        if len(text) < SHORTEST_CODE or max(map(len, text.splitlines())) > CODE_LINE:
            continue
        total += len(text)
        if total > CODE_BYTES:
            return
        yield text


READERS: dict[str, Callable[[Path], Iterator[str] | Iterator[Document]]] = {
    "stories": read_stories,
    "story_chat": read_story_chats,
    "code_chat": read_instructions("code_chat", "gpteacher/codegen-instruct.jsonl.gz"),
    "tool_instructions": read_instructions("tool_instructions", "gpteacher/toolformer-similarity-0.6.jsonl.gz"),
    "tool_chat": read_glaive,
    "reason_chat": read_reasoning,
    "gsm8k": read_gsm8k,
    "smalltalk": read_written("smalltalk"),
    "codetalk": read_written("codetalk"),
    "python": read_code,
    "scripts": read_scripts,
    "war_and_peace": read_book("books/war_and_peace.txt.gz"),
    "sherlock": read_book("books/sherlock_holmes.txt"),
    "shakespeare": read_shakespeare,
    "wikitext": read_wikitext,
    "c4": read_c4,
    "wikipedia": read_wiki,
}
