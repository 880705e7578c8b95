"""R19, R20: a server that is killed leaves nobody waiting and no process, and the next finds what it had learned."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from forerun import LLM, Sampling

LEARN = {"prompt": "abcabb", "max_tokens": 12, "temperature": 0}
PATCHED = (
    "import forerun.engine.engine as e, forerun.stores.shelf as s, time; s.EVERY, step = 0.0, e.Engine.step\n"
    "import forerun.engine.costs; forerun.engine.costs.ALONE = 0.0\n"  # other tests run beside this one
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


def children(process):
    """Processes that this one started."""
    found = "".join(file.read_text() for file in Path(f"/proc/{process.pid}/task").glob("*/children"))
    return [int(number) for number in found.split()]


def gone(number):
    """Whether a process is no more; one that nobody has fetched yet is none."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc")
def test_a_server_that_stands_still_goes_on_and_one_that_is_killed_leaves_no_process(tmp_path, eventually):
    flags = ["serve", "reference-drafter", "--port", "0", "--threads", "1", "--profiles", "off", "--drafter", "none"]
    command = [sys.executable, "-c", "from forerun.cli import main; main()", *flags]
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            url = next(line for line in process.stderr if "serving" in line).strip().rpartition(" ")[2]
            chat = f"{url}/v1/chat/completions"
            whole = httpx.post(chat, json=body, timeout=120).json()["choices"][0]["message"]["content"]
            (renderer,) = children(process)
            asked = pool.submit(httpx.post, chat, json=body, timeout=120)
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(2)
            os.kill(process.pid, signal.SIGCONT)
            assert asked.result().json()["choices"][0]["message"]["content"] == whole
            assert httpx.get(f"{url}/health").status_code == 200
        finally:
            process.kill()
    eventually(lambda: gone(renderer), 10)
