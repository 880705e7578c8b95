"""R20: a server that is killed leaves nobody waiting, and the next one finds what it had learned and measured."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from forerun import LLM, Sampling

LEARN = {"prompt": "abcabb", "max_tokens": 12, "temperature": 0}
PATCHED = (
    "import forerun.engine.engine as e, forerun.stores.shelf as s, time; s.EVERY, step = 0.0, e.Engine.step\n"
    "def slow(engine):\n    time.sleep(0.01); return step(engine)\n"
    "e.Engine.step = slow\nfrom forerun.cli import main; main()"
)


@contextmanager
def server(folder, port=0):
    """(process, address) of a slow toy model that learns what it writes and saves it at once."""
    kept = ["--drafter", "suffix-decoding", "--draft-store", str(folder / "store"), "--profiles", str(folder / "costs")]
    flags = ["serve", "toy:3", "--port", str(port), "--threads", "1", "--planner", "auto", *kept]
    command = [sys.executable, "-c", PATCHED, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            said = next(line for line in process.stderr if "serving" in line)
            yield process, said.strip().rpartition(" ")[2]
        finally:
            process.kill()


def learned(url):
    """The text of one request."""
    return httpx.post(f"{url}/v1/completions", json=LEARN, timeout=120).json()["choices"][0]["text"]


def alone(**keywords):
    """The same text by the library, and the steps that it took."""
    llm = LLM("toy:3", drafter="suffix-decoding", planner="fixed", profiles="off", threads=1, **keywords)
    found = llm.generate("abcabb", Sampling(temperature=0, max_tokens=12))[0]
    return found.text, found.stats.steps


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".json"}


def test_a_killed_server_breaks_its_connections_and_the_next_one_serves_at_once(tmp_path, eventually):
    text, steps = alone()
    store, port, measured = tmp_path / "store" / "draft-store.tokens", 0, []
    for _ in range(2):
        with server(tmp_path, port) as (process, url), ThreadPoolExecutor(2) as pool:
            port = int(url.rpartition(":")[2])
            assert httpx.get(f"{url}/ready").status_code == 200
            assert learned(url) == text
            measured.append(files(tmp_path / "costs"))
            eventually(store.exists)
            long = {"prompt": "ab", "max_tokens": 5000, "seed": 1}
            whole = pool.submit(httpx.post, f"{url}/v1/completions", json=long, timeout=120)
            with httpx.stream("POST", f"{url}/v1/completions", json={**long, "stream": True}, timeout=120) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("data: {")
                process.send_signal(signal.SIGKILL)
                with pytest.raises(httpx.TransportError):
                    assert "[DONE]" not in list(lines)
            with pytest.raises(httpx.TransportError):
                whole.result()
            assert process.wait(60) == -signal.SIGKILL
    assert measured[0]
    assert measured == [measured[0]] * 2
    again, fewer = alone(draft_store=str(store.parent))
    assert again == text
    assert fewer < steps
