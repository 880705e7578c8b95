"""`forerun batch IN.jsonl OUT.jsonl`: offline work in the format of OpenAI's batches, resumable at any line.

A line of IN has custom_id, method, url and body; a line of OUT its answer, or the error that it ends with. What OUT
holds already is not done again: a run that was killed goes on where it was, and a line that it left torn is cut off.
Does not: keep the order of the lines; keep two processes from writing the same file.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import Progress

from forerun.errors import ConfigError, ForerunError, RequestError
from forerun.llm import LLM
from forerun.models.tokenizer import Tokenizer
from forerun.rng import sample_seed
from forerun.server.schema import CHAT, COMPLETION, ChatFields, CompletionFields, read
from forerun.server.strict import loads
from forerun.types import Event, Sampling

OWN = {"scheduler": "batchllm", "cache": "paged:evict=lru"}  # what suits offline work, unless told otherwise
SYNC = 1.0  # seconds after which what was written is sent to the disk
KINDS: dict[str, type[CompletionFields | ChatFields]] = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
ONLINE = (
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "prediction",
    "tools",
)  # fields that a server has
MOST = 8  # choices


@dataclass(frozen=True)
class Job:
    """One line of the input, understood."""

    number: int  # of the line
    custom_id: str
    chat: bool
    prompt: tuple[int, ...]
    sampling: Sampling
    count: int  # choices


@dataclass
class _Choice:
    """One text while it is written."""

    index: int
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None


@dataclass
class _Answer:
    """A job while it runs."""

    job: Job
    choices: list[_Choice] = field(default_factory=list)
    error: str | None = None


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of ours
    """A line that cannot be served: what OUT says of it."""

    def __init__(self, message: str, custom_id: str | None = None, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.custom_id, self.code = custom_id, code


def read_body(url: str, body: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[Sequence[int], Sampling, int]:
    """Prompt, sampling and number of choices of a request; RequestError for what it cannot mean."""
    asked = read(KINDS[url], json.dumps(body).encode())
    for name in ONLINE:
        if getattr(asked, name, None):
            raise RequestError(f"{name} is given, and a batch does not have it; leave it out, or ask a server.")
    if asked.n > MOST:
        raise RequestError(f"n is {asked.n}; give a whole number from 1 to {MOST}.")
    if asked.drawn > asked.n:
        raise RequestError(f"best_of is {asked.drawn} and n is {asked.n}; ask for n texts and choose.")
    return _prompt(asked, tokenizer), asked.sampling(), asked.n


def _prompt(asked: CompletionFields | ChatFields, tokenizer: Tokenizer) -> Sequence[int]:
    if isinstance(asked, ChatFields):
        return tokenizer.chat([turn.message() for turn in asked.messages])
    prompts = asked.prompts()
    if len(prompts) != 1:
        raise RequestError(f"prompt has {len(prompts)} texts; give each a line of its own.")
    return tokenizer.encode(prompts[0], bos=True) if isinstance(prompts[0], str) else prompts[0]


def read_line(number: int, line: bytes, tokenizer: Tokenizer) -> Job:
    """A line of the input; Refusal, with its custom_id where it has one."""
    try:
        row = loads(line)
    except ValueError as problem:
        raise Refusal(
            f"line {number} is no JSON ({problem}); write one object per line.", code="invalid_json"
        ) from None
    mine = row.get("custom_id") if isinstance(row, dict) else None
    if not isinstance(mine, str) or not mine:
        raise Refusal(f"line {number} has no custom_id; give every line a text of its own.")
    url, body = row.get("url"), row.get("body")
    if row.get("method") != "POST" or url not in (*KINDS,) or not isinstance(body, dict):
        wanted = f"method POST, url {' or '.join(KINDS)}, and a body that is an object"
        raise Refusal(f"line {number} is no request; give {wanted}.", mine)
    try:
        prompt, sampling, count = read_body(url, body, tokenizer)
    except ForerunError as problem:
        raise Refusal(str(problem), mine) from None
    return Job(number, mine, KINDS[url] is CHAT, tuple(prompt), sampling, count)


class Writer(Protocol):
    """What a run says its answers to."""

    done: set[str]  # custom_ids, and ids of lines that have none

    def write(self, row: Mapping[str, Any]) -> None:
        """One line more."""


class Ledger:
    """The output file: what it holds, and lines that are added to it, each whole or, after a kill, repaired."""

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, set[str]()  # custom_ids, and ids of lines that have none
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as problem:
            raise ConfigError(f"cannot write {str(path)!r} ({problem.strerror}); choose another file.") from problem
        self._synced = perf_counter()

    def repair(self) -> None:
        """Read what is there; cut off a last line that a kill or a full disk has torn."""
        self._file.seek(0)
        lines, whole = self._file.read().splitlines(keepends=True), 0
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line if line.endswith(b"\n") else b"")
                self.done.add(row["custom_id"] if row["custom_id"] is not None else row["id"])
            except (ValueError, LookupError, TypeError):
                if number < len(lines):
                    message = f"line {number} of {str(self.path)!r} is no answer of a batch"
                    raise ConfigError(f"{message}; name another file, or remove the line.") from None
                self._file.truncate(whole)
            whole += len(line)

    def write(self, row: Mapping[str, Any]) -> None:
        """One line more."""
        line = json.dumps(row).encode() + b"\n"
        with self._kept():
            while line:  # of which a disk that is nearly full takes a part
                line = line[self._file.write(line) :]
            if perf_counter() - self._synced > SYNC:
                os.fsync(self._file.fileno())
                self._synced = perf_counter()

    def close(self) -> None:
        """Everything is on the disk after this."""
        with self._file, self._kept():
            os.fsync(self._file.fileno())

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """ForerunError where the disk takes no more."""
        try:
            yield
        except OSError as problem:
            remedy = "make room and run the same again, which goes on where this ended"
            raise ForerunError(f"cannot write {str(self.path)!r} ({problem.strerror}); {remedy}.") from problem


@dataclass
class Run:
    """One pass over the input."""

    llm: LLM
    ledger: Writer
    tell: Callable[[int], None]  # lines that are done
    running: dict[int, tuple[_Answer, _Choice]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # custom_ids
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("completed", "failed", "skipped", "tokens"), 0)
    )

    def go(self, lines: Iterator[tuple[int, bytes]]) -> None:
        """Keep the engine busy to the end of the input."""
        more = True
        while more or self.running:
            while more and len(self.running) < self.llm.crowd:
                number, line = next(lines, (0, b""))
                more = number > 0
                if line.strip():
                    self._begin(number, line)
            for event in self.llm.engine.step():
                self._hear(event)

    def _begin(self, number: int, line: bytes) -> None:
        """Start a line's job, or say why not; nothing where it was answered before."""
        try:
            job = self._first(read_line(number, line, self.llm.tokenizer))
            if job.custom_id in self.ledger.done:
                self._skip()
            else:
                self._add(job)
        except Refusal as refusal:
            if (refusal.custom_id or row_id(number)) in self.ledger.done:
                self._skip()
            else:
                self._refuse(number, refusal)

    def _first(self, job: Job) -> Job:
        """The job, if no earlier line has its name."""
        if job.custom_id in self.seen:
            raise twice(job.number)
        self.seen.add(job.custom_id)
        return job

    def _skip(self) -> None:
        self.counts["skipped"] += 1
        self.tell(1)

    def _add(self, job: Job) -> None:
        answer = _Answer(job)
        try:
            for index in range(job.count):
                seed = job.sampling.seed
                own = job.sampling if seed is None else replace(job.sampling, seed=sample_seed(seed, index))
                choice = _Choice(index)
                self.running[self.llm.engine.add(job.prompt, own)] = answer, choice
                answer.choices.append(choice)
        except RequestError as problem:
            raise Refusal(str(problem), job.custom_id) from None

    def _hear(self, event: Event) -> None:
        answer, choice = self.running[event.request]
        choice.text += event.text
        choice.tokens += len(event.emissions)
        answer.error = answer.error or event.error
        if event.finish_reason is None:
            return
        choice.finish_reason = event.finish_reason
        del self.running[event.request]
        if all(c.finish_reason for c in answer.choices):
            self._finish(answer)

    def _finish(self, answer: _Answer) -> None:
        job, error = answer.job, answer.error
        body = _failure(error, "server_error") if error else _body(answer, self.llm.config.model)
        self.counts["failed" if error else "completed"] += 1
        self.counts["tokens"] += sum(c.tokens for c in answer.choices)
        self._say(_row(job.number, job.custom_id, 500 if error else 200, body))

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self.counts["failed"] += 1
        self._say(refused(number, refusal))

    def _say(self, row: Mapping[str, Any]) -> None:
        self.ledger.write(row)
        self.tell(1)


def row_id(number: int) -> str:
    """What a line's answer is called."""
    return f"batch_req_{number}"


def twice(number: int) -> Refusal:
    """A line has the name of an earlier one."""
    message = f"line {number} has the custom_id of an earlier line; give every line its own."
    return Refusal(message, None, "duplicate_custom_id")


def refused(number: int, refusal: Refusal) -> dict[str, Any]:
    """What OUT says of a line that cannot be served."""
    return _row(number, refusal.custom_id, 400, _failure(str(refusal), refusal.code))


def _row(number: int, custom_id: str | None, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req_{number}", "body": body}
    return {"id": row_id(number), "custom_id": custom_id, "response": response, "error": None}


def _failure(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "param": None, "code": code}}


def _body(answer: _Answer, model: str) -> dict[str, Any]:
    """What the endpoint would have answered."""
    job, written = answer.job, sum(c.tokens for c in answer.choices)
    usage = {"prompt_tokens": len(job.prompt), "completion_tokens": written, "total_tokens": len(job.prompt) + written}
    return {
        "id": f"{'chatcmpl' if job.chat else 'cmpl'}-{job.number}",
        "object": "chat.completion" if job.chat else "text_completion",
        "created": int(time()),
        "model": model,
        "choices": [_said(choice, chat=job.chat) for choice in answer.choices],
        "usage": usage,
    }


def _said(choice: _Choice, *, chat: bool) -> dict[str, Any]:
    text = {"message": {"role": "assistant", "content": choice.text}} if chat else {"text": choice.text}
    return {"index": choice.index, **text, "logprobs": None, "finish_reason": choice.finish_reason}


def count_lines(source: Path) -> int:
    """Lines that say something; ConfigError where there is no such file, or no such line in it."""
    try:
        with source.open("rb") as lines:
            count = sum(1 for line in lines if line.strip())
    except OSError as problem:
        raise ConfigError(f"cannot read {str(source)!r} ({problem.strerror}); name a file of requests.") from problem
    if not count:
        raise ConfigError(f"{str(source)!r} holds no request; give a file with one request per line.")
    return count


def run(source: Path, out: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The whole batch; how many lines were completed, failed and skipped."""
    total, ledger = count_lines(source), Ledger(out)
    try:
        ledger.repair()
        llm, began = LLM(**{**OWN, **config}), perf_counter()
        with source.open("rb") as lines, Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("batch", total=total)
            work = Run(llm, ledger, lambda count: bar.advance(task, count))
            work.go(enumerate(lines, 1))
    finally:
        ledger.close()
    return {"requests": total, **work.counts, "seconds": round(perf_counter() - began, 3), "file": str(out)}
