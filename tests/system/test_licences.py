"""S16: what a user installs with forerun may be used by anybody, runs nothing when Python starts, and can be told."""

import hashlib
import re
import subprocess
import sys
from base64 import urlsafe_b64encode
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
FREE = re.compile(r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software|MPL|HPND|Zlib|matplotlib|Kiwi)\b", re.IGNORECASE)
BOUND = re.compile(r"\b(A?GPL|Affero|SSPL|BUSL|Commons Clause|Non-?Commercial|Proprietary)\b", re.IGNORECASE)
OTHERS = {"distutils-precedence.pth"}  # of setuptools, which every virtual environment may have
SPEC = spec_from_file_location("sbom", ROOT / "scripts" / "sbom.py")
sbom = module_from_spec(SPEC)
SPEC.loader.exec_module(sbom)


def test_licences_are_free():
    found = sbom.needed()
    assert {"torch", "llguidance", "fastapi", "starlette"} <= found.keys()
    told = {name: sbom.licence(each) for name, each in found.items()}
    assert {name: text for name, text in told.items() if not FREE.search(text) or BOUND.search(text)} == {}


def test_nothing_runs_when_python_starts():
    files = {file.name for found in sbom.needed().values() for file in found.files or () if file.suffix == ".pth"}
    assert files <= OTHERS


def test_another_licence_is_seen():
    assert BOUND.search("GNU AGPL v3")
    assert BOUND.search("License :: OSI Approved :: GPL")
    assert not FREE.search("All rights reserved")


def test_the_bill_is_what_is_pinned():
    packages = sbom.needed()
    told = sbom.bill(packages)
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pinned = {sbom.normal(name): version for name, version in pinned.items()}
    bare = {part["name"]: part["version"].partition("+")[0] for part in told["components"]}  # of any build
    assert bare.keys() == packages.keys()
    own = {"nvidia", "triton", "cuda", "setuptools"}  # pinned by torch for a GPU; and part of virtual environments
    assert {name: v for name, v in bare.items() if pinned.get(name) != v and name.split("-")[0] not in own} == {}
    refs = [told["metadata"]["component"]["bom-ref"], *(part["bom-ref"] for part in told["components"])]
    assert [edge["ref"] for edge in told["dependencies"]] == refs
    assert {ref for edge in told["dependencies"] for ref in edge["dependsOn"]} == set(refs[1:])
    assert all(re.fullmatch("[0-9a-f]{64}", part["properties"][0]["value"]) for part in told["components"])


@pytest.fixture
def package(tmp_path):
    """A package of one file, as installed: its distribution, and a function that installs another text of it."""
    kept = tmp_path / "a-1.dist-info"
    kept.mkdir()
    (kept / "METADATA").write_text("Metadata-Version: 2.1\nName: a\nVersion: 1\n")

    def install(text, installer="pip"):
        (tmp_path / "a.py").write_text(text)
        value = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        own = f"a.py,sha256={value},{len(text)}\na-1.dist-info/RECORD,,\n"
        (kept / "RECORD").write_text(f"{own}a-1.dist-info/INSTALLER,sha256={installer},3\n../../bin/a,sha256=b,1\n")
        return metadata.Distribution.at(kept)

    return install


def test_a_digest_is_the_wheels_alone(package):
    first = sbom.digest(package("one"))
    assert sbom.digest(package("one", installer="other")) == first
    assert sbom.digest(package("two")) != first


def test_a_changed_file_is_seen(package, tmp_path):
    found = package("one")
    assert sbom.changed(found) == []
    (tmp_path / "a.py").write_text("0ne")
    assert sbom.changed(found) == ["a.py"]
    (tmp_path / "a.py").unlink()
    assert sbom.changed(found) == ["a.py"]


@pytest.fixture
def wheels(tmp_path):
    """A folder in which pip finds one package, and a function that writes its wheel with another text."""

    def write(text):
        kept = {"a.py": text, "a-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: a\nVersion: 1\n"}
        kept["a-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        kept["a-1.dist-info/RECORD"] = "".join(f"{name},,\n" for name in [*kept, "a-1.dist-info/RECORD"])
        with ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
            for name, content in kept.items():
                wheel.writestr(name, content)

    return tmp_path, write


def test_another_wheel_than_the_one_that_was_hashed_is_not_installed(wheels):
    folder, write = wheels
    write("one = 1")
    alone = "--no-index", "--find-links", str(folder)
    (line,) = sbom.locked({"a": "1"}, *alone)
    digest = hashlib.sha256((folder / "a-1-py3-none-any.whl").read_bytes()).hexdigest()
    assert line == f"a==1 --hash=sha256:{digest}"
    (folder / "locked.txt").write_text(line)
    pip = sys.executable, "-m", "pip", "install", "--require-hashes", "-r", folder / "locked.txt", *alone

    def install(target):
        return subprocess.run([*pip, "--target", folder / target], capture_output=True, text=True, check=False)

    assert install("first").returncode == 0
    assert (folder / "first" / "a.py").read_text() == "one = 1"
    write("one = 2")
    refused = install("second")
    assert refused.returncode
    assert "DO NOT MATCH THE HASHES" in refused.stderr
