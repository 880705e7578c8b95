"""Say what a user installs with forerun: every package, its licence, what it needs, and a digest of its files.

The digest is over the lines that a wheel's RECORD has of its own files, each with its SHA-256, so it is the same
wherever the same wheel was installed; what the installer adds is left out.
--hashes asks pip for the same versions once more and prints them with the hashes of the wheels that this machine takes.
Does not: list what is for development only; know the hashes of another platform's wheels, or of another build of torch.
"""

import json
import re
import subprocess
import sys
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement

BUILD = ("scikit-build-core", "nanobind", "cmake", "ninja")  # what makes forerun's own wheel
_INSTALLERS = {"INSTALLER", "REQUESTED", "direct_url.json"}
Found = dict[str, metadata.Distribution]


def normal(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct(name: str) -> Iterator[str]:
    """What a package needs to run here, by the names that it has in the index."""
    for line in metadata.requires(name) or ():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield normal(wanted.name)


def needed(name: str = "forerun", found: Found | None = None) -> Found:
    """Every distribution that a package needs to run, by name; what is for another platform is not here."""
    found = {} if found is None else found
    for each in direct(name):
        if each not in found:
            found[each] = metadata.distribution(each)
            needed(each, found)
    return found


def own_files(found: metadata.Distribution) -> list[metadata.PackagePath]:
    """What came in its wheel: not what the installer made of it, nor what Python compiled."""
    files = [file for file in found.files or () if file.hash is not None and file.parts[0] != ".."]
    return [file for file in files if not (file.parent.suffix == ".dist-info" and file.name in _INSTALLERS)]


def digest(found: metadata.Distribution) -> str:
    """SHA-256 over the names, hashes and sizes of its files, in order."""
    lines = sorted(f"{f.as_posix()},{f.hash.mode}={f.hash.value},{f.size}\n" for f in own_files(found) if f.hash)
    return sha256("".join(lines).encode()).hexdigest()


def changed(found: metadata.Distribution) -> list[str]:
    """Its files that are gone, or are not what the wheel said."""
    return [file.as_posix() for file in own_files(found) if not _same(file)]


def _same(file: metadata.PackagePath) -> bool:
    place = file.locate()
    if file.hash is None or not place.is_file():
        return False
    return urlsafe_b64encode(sha256(place.read_bytes()).digest()).decode().rstrip("=") == file.hash.value


def licence(found: metadata.Distribution) -> str:
    """What it says of itself; '' if nothing."""
    said = found.metadata
    kinds = [line for line in said.get_all("Classifier", []) if line.startswith("License")]
    return " ".join([said.get("License-Expression", ""), said.get("License", "")[:200], *kinds]).strip()


def _purl(name: str, found: metadata.Distribution) -> str:
    return f"pkg:pypi/{normal(name)}@{quote(found.version)}"


def bill(packages: Found) -> dict[str, object]:
    """CycloneDX 1.6."""
    refs = {name: _purl(name, found) for name, found in packages.items()}
    top = metadata.distribution("forerun")
    root = {"type": "application", "name": "forerun", "version": top.version, "bom-ref": _purl("forerun", top)}
    parts = [
        {
            "type": "library",
            "bom-ref": refs[name],
            "name": name,
            "version": found.version,
            "purl": refs[name],
            "licenses": [{"license": {"name": licence(found)}}],
            "properties": [{"name": "forerun:files:sha256", "value": digest(found)}],
        }
        for name, found in sorted(packages.items())
    ]
    edges = [{"ref": refs[name], "dependsOn": sorted({refs[n] for n in direct(name)})} for name in sorted(packages)]
    edges.insert(0, {"ref": root["bom-ref"], "dependsOn": sorted({refs[n] for n in direct("forerun")})})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": parts,
        "dependencies": edges,
    }


def locked(versions: dict[str, str], *words: str) -> list[str]:
    """Requirements of these very versions, each with the hash of its wheel here; `words` are for pip as well."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        asked = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", str(report)]
        names = [f"{name}=={version}" for name, version in sorted(versions.items())]
        subprocess.run([sys.executable, "-m", "pip", "install", "-qq", *asked, *words, *names], check=True)  # noqa: S603
        found = json.loads(report.read_text())["install"]
    hashes = {normal(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"] for each in found}
    return [f"{line} --hash=sha256:{hashes[line.partition('==')[0]]['sha256']}" for line in names]


def main(words: list[str]) -> int:
    """Print the bill; with --check, which installed files are not their wheels', and fail if there are any.

    With --hashes, what `pip install --require-hashes` takes, build tools included.
    """
    packages = needed()
    if words[:1] == ["--hashes"]:
        for name in BUILD:
            packages[name] = metadata.distribution(name)
            needed(name, packages)
        print(*locked({name: found.version for name, found in packages.items()}, *words[1:]), sep="\n")
        return 0
    if words == ["--check"]:
        wrong = [f"{name}: {file}" for name, found in packages.items() for file in changed(found)]
        count = sum(len(own_files(found)) for found in packages.values())
        print(*wrong, f"{count} files of {len(packages)} packages, {len(wrong)} changed", sep="\n")
        return bool(wrong)
    print(json.dumps(bill(packages), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
