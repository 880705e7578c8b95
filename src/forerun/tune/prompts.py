"""One's own prompts, from a file.

A text has one prompt per line; a file that ends in .jsonl has a JSON object per line, with `prompt` (a text to go on
with) or `turns` (the first is what a person says in a chat).
Does not: play more than the first turn.
"""

import json
from pathlib import Path

from forerun.bench.workloads import Prompt
from forerun.errors import ConfigError

CATEGORY = "prompts"
_REMEDY = "give a text with one prompt per line, or JSON objects with a prompt in a .jsonl file"


def read(path: Path) -> list[Prompt]:
    """Every prompt of the file; ConfigError where there is none."""
    subject = f"prompts file {str(path)!r}"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise ConfigError(f"{subject} cannot be read ({problem.strerror}); {_REMEDY}.") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{subject} is not UTF-8 (byte {problem.start}); save it as a text in UTF-8.") from problem
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(f"{subject} holds no prompt; {_REMEDY}.")
    if path.suffix != ".jsonl":
        return [Prompt(CATEGORY, line.strip()) for _, line in numbered]
    return [_row(line, f"line {number} of {subject}") for number, line in numbered]


def _row(line: str, subject: str) -> Prompt:
    try:
        row = json.loads(line)
        chat = "prompt" not in row
        text = row["turns"][0] if chat else row["prompt"]
    except (ValueError, LookupError, TypeError) as problem:
        raise ConfigError(f"{subject} is no JSON object with 'prompt' or 'turns'; {_REMEDY}.") from problem
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{subject} has {text!r:.40} for a prompt; give a text that is not empty.")
    return Prompt(CATEGORY, text, chat)
