"""What is fuzzed: each takes bytes, and must end with a ForerunError or none.

Does not: need atheris; `scripts/fuzz` does.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from forerun.cell import Cell
from forerun.constraints.contract import Guides
from forerun.engine.text import Detokenizer
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.models.load import load_model
from forerun.models.template import Renderer, cell
from forerun.models.tokenizer import Tokenizer, ToyTokenizer
from forerun.models.toy import ToyModel
from forerun.server.schema import CHAT, COMPLETION, DetokenizeBody, TokenizeBody, read
from forerun.server.sse import encode
from forerun.types import Constraint
from forerun.weights.load import Checkpoint

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def body(data: bytes) -> None:
    """Bodies of every endpoint."""
    for kind in (COMPLETION, CHAT):
        with suppress(ForerunError):
            found = read(kind, data)
            found.sampling()
            found.expected()
    for kind in (TokenizeBody, DetokenizeBody):
        with suppress(ForerunError):
            read(kind, data)


def events(data: bytes) -> None:
    """An event is one line, and holds what was put into it."""
    text = data.decode("utf-8", "surrogateescape")
    line = encode({"text": text})
    assert line.startswith(b"data: ")
    assert line.endswith(b"\n\n")
    assert line.count(b"\n") == 2
    assert json.loads(line[6:]) == {"text": text}


def text(data: bytes) -> None:
    """A text that comes byte by byte is the text of all bytes."""
    detokenizer = Detokenizer(lambda ids: bytes(ids).decode("utf-8", "replace"))
    pieces = [detokenizer.push(byte) for byte in data]
    assert "".join([*pieces, detokenizer.finish()]) == data.decode("utf-8", "replace")


def weights(data: bytes) -> None:
    """A file of weights."""
    with tempfile.TemporaryDirectory() as folder, suppress(ForerunError):
        (Path(folder) / "model.safetensors").write_bytes(data)
        checkpoint = Checkpoint(Path(folder))
        for name in list(checkpoint.entries)[:4]:
            checkpoint.read(name)


def config(data: bytes) -> None:
    """A config.json, without weights."""
    with tempfile.TemporaryDirectory() as folder, suppress(ForerunError):
        (Path(folder) / "config.json").write_bytes(data)
        (Path(folder) / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        load_model(folder)


def tokenizer(data: bytes) -> None:
    """A tokenizer.json; and what it makes of a text."""
    with tempfile.TemporaryDirectory() as folder, suppress(ForerunError):
        (Path(folder) / "tokenizer.json").write_bytes(data)
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        found = Tokenizer.from_folder(folder)
        found.decode(found.encode("Once upon a time"))


@lru_cache(maxsize=1)
def _guides() -> Guides:
    words = [*map(chr, range(32, 127)), "\n"]
    return LLM(ToyModel(len(words)), ToyTokenizer(*words), threads=1, profiles="off").engine.members.guides


def form(data: bytes) -> None:
    """A schema, an expression or a grammar, by the first byte; and the first tokens of a text in it."""
    name = ("json_schema", "regex", "lark", "gbnf", "choice")[data[0] % 5] if data else "regex"
    with suppress(ForerunError):
        guide = _guides()(Constraint(name, data[1:].decode("utf-8", "replace")), frozenset())
        for _ in range(8):
            mask = guide.masks([()])[0]
            if not mask.any() or guide.advance(int(mask.argmax())):
                break


PARTS = (
    *(
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if ",
        "{% elif ",
        "{% else %}",
        "{% endif %}",
        " %}",
        "{{ ",
        " }}",
    ),
    *("{% set x = ", "namespace(a=1)", "{% macro f(a) %}", "{% endmacro %}", "f(1)", "{% break %}"),
    *(
        "messages",
        "m",
        "x",
        "loop.index0",
        "tools",
        "range(9)",
        "[0]",
        "['role']",
        ".content",
        ".__class__",
        "9",
        "'a'",
    ),
    *(
        " | tojson",
        " | length",
        " | trim",
        " | join",
        " | map(attribute=",
        " | attr(",
        " | sort",
        " | format(",
        ")",
        "(",
    ),
    *(" ~ ", " ** ", " * ", " + ", " == ", " is defined", " not ", " in ", " and ", ", ", "\n", "none", ")", "("),
    *("raise_exception(", "{%- generation %}", "{% endgeneration %}", "'a'"),
)


@lru_cache(maxsize=1)
def _cell() -> Cell:
    return cell()


def template(data: bytes) -> None:
    """A chat template: as it stands, and put together from parts that templates are made of."""
    parts = "".join(PARTS[byte % len(PARTS)] for byte in data[:200])
    for source in (data.decode("utf-8", "replace"), parts):
        with suppress(ForerunError):
            Renderer(source, _cell())({"messages": [{"role": "user", "content": "a"}], "tools": None})


TARGETS: dict[str, Callable[[bytes], None]] = {
    f.__name__: f for f in (body, events, text, weights, config, tokenizer, form, template)
}
