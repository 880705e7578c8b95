"""The list of everything registered, made from the tables; there is no second list."""

import json
from dataclasses import MISSING, fields
from inspect import getdoc, getmodule
from typing import Any

from forerun.build import FAMILIES


def listing() -> list[dict[str, Any]]:
    """One object per member and key: name, family, key, summary, facts, options, evidence."""
    return [
        row
        for registry in FAMILIES.values()
        for name in registry
        for row in _rows(registry.family, name, registry[name])
    ]


def _rows(family: str, name: str, member: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a member of any family
    facts = member.facts
    row = {
        "name": name,
        "family": family,
        "summary": summary(member),
        "facts": {
            "exact": facts.exact,
            "law": facts.law,
            "draws": facts.draws,
            "needs": sorted(facts.needs),
            "paper": facts.paper,
        },
        "options": {f.name: None if f.default is MISSING else f.default for f in fields(member.Options)},
        "evidence": facts.evidence,
    }
    return [{"key": key, **row} for key in facts.keys or (None,)]


def summary(member: Any) -> str:  # noqa: ANN401
    """First sentence of the member's file."""
    return (getdoc(getmodule(member)) or "").split("\n\n")[0].replace("\n", " ")


def as_json() -> str:
    """The listing as JSON, stable from run to run."""
    return json.dumps(listing(), indent=2)


def as_markdown() -> str:
    """The listing as the table of docs/methods.md."""
    lines = ["| family | name | key | exact | what it does | options | evidence |", "|---|---|---|---|---|---|---|"]
    for row in listing():
        options = ", ".join(f"`{k}={v}`" for k, v in row["options"].items()) or "–"
        exact = "yes" if row["facts"]["exact"] else "**no**"
        cells = (row["family"], f"`{row['name']}`", row["key"] or "–", exact, row["summary"], options)
        lines.append(f"| {' | '.join((*cells, row['evidence'] or '–'))} |")
    return "\n".join(lines) + "\n"
