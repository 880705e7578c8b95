"""The process in which a chat template runs: one JSON line in, one out, until its input ends.

It is a program of its own that imports nothing of forerun, so that it starts quickly and holds nothing worth taking.
The kernel ends it where a rendering takes too much processor time, whatever it is doing then.
Does not: reach the messages' source, files, or anything that Jinja's sandbox keeps from a template.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 1.0  # of processor time, for one rendering
MEMORY = 256 * 2**20  # bytes of addresses
MOST = 16 * 2**20  # characters of what is rendered
_SAID = 1000  # characters of what a template may say to refuse
_REFUSALS = (TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RecursionError)


class _Generation(Extension):
    """The {% generation %} block of training templates, which says nothing when generating."""

    tags = {"generation"}  # noqa: RUF012 - the base class has a set

    def parse(self, parser: Any) -> Any:  # noqa: ANN401
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The sandbox that chat templates are written for: transformers' settings and functions."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **options: Any) -> str:  # noqa: ANN401
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005 - as templates expect
    return environment


def _rendered(template: Template, values: dict[str, Any]) -> str:
    pieces, size = [], 0
    for piece in template.generate(**values):
        pieces.append(piece)
        size += len(piece)
        if size > MOST:
            raise ValueError(f"it writes more than {MOST} characters")
    return "".join(pieces)


@lru_cache(maxsize=1)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


def _answer(line: bytes) -> str:
    """What is rendered, or why nothing is, as JSON."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        asked = json.loads(line)
        return json.dumps({"text": _rendered(_compiled(asked["template"]), asked["values"])})
    except MemoryError:
        return json.dumps({"problem": "it needs too much memory"})
    except _REFUSALS as problem:
        return json.dumps({"problem": str(problem)[:_SAID]})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Every line is a template and the values of one rendering."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends it
    with suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        sys.stdout.write(_answer(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
