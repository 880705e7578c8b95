"""S15, S20: what a process that generates and serves connects to and writes: nothing but its own caches."""

import json
import subprocess
import sys

WATCHED = """
import json, os, sys
said = []
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def hook(event, arguments):
    if event == "open" and arguments[2] & WRITES and not isinstance(arguments[0], int):  # a number is open already
        said.append((event, str(arguments[0])))
    elif event.startswith("os.") and event[3:] in {"mkdir", "rename", "remove", "rmdir", "chmod", "link", "symlink"}:
        said.append((event, str(arguments[0])))
    elif event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}:
        said.append((event, repr(arguments[1:] if event == "socket.connect" else arguments)))
sys.addaudithook(hook)

from forerun import LLM, Sampling
from forerun.server.run import in_background
from forerun.server.settings import Settings

folder = sys.argv[1]
llm = LLM("reference-drafter", drafter="suffix-decoding", planner="auto", threads=1, draft_store=folder + "/store")
sampling = Sampling(max_tokens=8, seed=1)
llm.generate("Once upon a time", sampling)
with in_background(llm, Settings(port=0)) as url:
    import http.client
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for path, body in (("completions", {"prompt": "Once"}), ("chat/completions", chat)):
        client = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        asked = json.dumps({**body, "max_tokens": 4})
        client.request("POST", "/v1/" + path, asked, {"Content-Type": "application/json"})
        assert client.getresponse().status == 200
        client.close()
del llm
print(json.dumps([url, said]))
"""


def test_nothing_is_written_but_caches_and_nobody_is_connected_to(tmp_path, monkeypatch):
    for name in ("cache", "home", "work", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=tmp_path / "work", capture_output=True, text=True, check=True, timeout=300)
    url, said = json.loads(done.stdout.splitlines()[-1])
    host, port = url.removeprefix("http://").split(":")
    reached = {what for event, what in said if event.startswith("socket.")}
    assert {what for what in reached if f"'{host}', {port}" not in what} == set()
    assert any(f"'{host}', {port}" in what for what in reached), "the hook saw nothing"
    written = {what for event, what in said if not event.startswith("socket.")}
    cache = str(tmp_path / "cache")
    assert {what for what in written if not what.startswith((cache, "/dev/", "/proc/"))} == set()
    assert any(what.startswith(cache) for what in written), "the hook saw nothing"
    kept = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"cache"}
