"""S16: what a user installs with forerun may be used by anybody, and runs nothing when Python starts."""

import re
from importlib import metadata

from packaging.requirements import Requirement

FREE = re.compile(r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software|MPL|HPND|Zlib|matplotlib|Kiwi)\b", re.IGNORECASE)
BOUND = re.compile(r"\b(A?GPL|Affero|SSPL|BUSL|Commons Clause|Non-?Commercial|Proprietary)\b", re.IGNORECASE)
OTHERS = {"distutils-precedence.pth"}  # of setuptools, which every virtual environment may have


def needed(name="forerun", found=None):
    """Every distribution that forerun needs to run, by name; what is for another platform is not here."""
    found = {} if found is None else found
    for line in metadata.requires(name) or ():
        wanted = Requirement(line)
        if wanted.name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found[wanted.name] = metadata.distribution(wanted.name)
            needed(wanted.name, found)
    return found


def licence(found):
    """What it says of itself."""
    said = found.metadata
    kinds = [line for line in said.get_all("Classifier", []) if line.startswith("License")]
    return " ".join([said.get("License-Expression", ""), said.get("License", "")[:200], *kinds])


def test_licences_are_free():
    found = needed()
    assert {"torch", "llguidance", "fastapi", "starlette"} <= found.keys()
    told = {name: licence(each) for name, each in found.items()}
    assert {name: text for name, text in told.items() if not FREE.search(text) or BOUND.search(text)} == {}


def test_nothing_runs_when_python_starts():
    files = {file.name for found in needed().values() for file in found.files or () if file.suffix == ".pth"}
    assert files <= OTHERS


def test_another_licence_is_seen():
    assert BOUND.search("GNU AGPL v3")
    assert BOUND.search("License :: OSI Approved :: GPL")
    assert not FREE.search("All rights reserved")
