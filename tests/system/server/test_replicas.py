"""Two replicas of the bundled model on this machine, by Ray: same texts, sessions that stay, and one that is killed."""

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import httpx
import pytest

from forerun import Sampling
from forerun.errors import ConfigError
from forerun.server.run import beside
from forerun.server.settings import Settings

ray = pytest.importorskip("ray", reason="ray is not installed; pip install 'forerun[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:::ray"),  # of its own deprecations
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of sockets that it leaves to its end
]
CONFIG = {"model": "reference", "drafter": "ngram", "planner": "fixed", "profiles": "off", "cache": "paged"}
PROMPTS = ["Once upon a time", "The dog", "One day, Lily", "There was a", "Tom said", "In the garden", "She", "A bird"]


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine alone, with more processors than it may have: all must find room."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    few = {"prestart_worker_first_driver": False}  # processes
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(num_cpus=3, object_store_memory=10**8, _system_config=few, **quiet)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def kills(cluster):
    """The script that kills many."""
    spec = spec_from_file_location("kills", Path(__file__).parents[3] / "scripts" / "kills.py")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def url(cluster):
    from forerun.ray.serve import deployed

    settings = Settings(port=0, replicas="2")
    with deployed(CONFIG, settings) as app, beside(app, settings) as found:
        yield found


@pytest.fixture(scope="module")
def web(url):
    with httpx.Client(base_url=url, timeout=120) as made:
        yield made


def body(prompt, **fields):
    return {"prompt": prompt, "max_tokens": 40, "temperature": 0, **fields}


def written(web):
    """Tokens that each replica wrote."""
    found = re.findall(r'generation_tokens_total\{replica="(\w+)"\} (\S+)', web.get("/metrics").text)
    return [float(count) for _, count in sorted(found)]


def test_texts_are_the_library_s_and_both_write(web, library):
    sampling = Sampling(temperature=0, max_tokens=40)
    texts = [result.text for result in library.generate(PROMPTS, sampling)]
    with ThreadPoolExecutor(8) as many:
        found = list(many.map(lambda prompt: web.post("/v1/completions", json=body(prompt)), PROMPTS * 3))
    assert [answer.json()["choices"][0]["text"] for answer in found] == texts * 3
    assert all(written(web))
    assert len(written(web)) == 2


def test_a_stream_passes_through(web, library):
    text = library.generate(["Once upon a time"], Sampling(temperature=0, max_tokens=40))[0].text
    with web.stream("POST", "/v1/completions", json=body("Once upon a time", stream=True)) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == text


@pytest.mark.parametrize("said", [{"user": "me"}, {"prompt_cache_key": "us"}, {}], ids=["user", "key", "prefix"])
def test_a_session_stays(web, said):
    """With a session, or with a start that is long enough to be worth it, one replica alone writes."""
    before, start = written(web), "" if said else "The little dog ran to the big tree and sat down. " * 8
    for prompt in PROMPTS:
        assert web.post("/v1/completions", json=body(start + prompt, **said)).status_code == 200
    grown = [after - now for now, after in zip(before, written(web), strict=True)]
    assert sorted(map(bool, grown)) == [False, True], grown


def told(web, number):
    """How a stream ended: its last event before [DONE], or the error where it was lost before its first byte."""
    asked = body(f"Story {number}: once", stream=True, max_tokens=400, ignore_eos=True)
    with web.stream("POST", "/v1/completions", json=asked) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    if answer.status_code == 503:
        return json.loads(lines[0])
    assert lines[-1] == "[DONE]"
    return json.loads(lines[-2])


def test_one_replica_is_killed(web, kills):
    """Who it wrote for is told; whoever else asks, then or at once after it, is answered."""
    first = kills.running()
    assert len(first) == 2
    with ThreadPoolExecutor(16) as many:
        streams = [many.submit(told, web, number) for number in range(12)]
        time.sleep(0.5)
        os.kill(first[0], signal.SIGKILL)
        new = list(many.map(lambda prompt: web.post("/v1/completions", json=body(prompt)).status_code, PROMPTS))
        ends = [stream.result() for stream in streams]
    lost = [end["error"]["message"] for end in ends if "error" in end]
    assert new == [200] * len(PROMPTS)
    assert 0 < len(lost) < len(ends)
    assert all("replica" in message for message in lost)
    assert all(end["choices"][0]["finish_reason"] == "length" for end in ends if "error" not in end)


def test_a_batch_of_several_engines(cluster, library, tmp_path):
    """Its answers are the library's; what is there already is not done again, and a torn line is."""
    from forerun.ray import batch

    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = [*map(str, range(len(PROMPTS))), "0"]
    request = {"method": "POST", "url": "/v1/completions"}
    rows = [{**request, "custom_id": name, "body": body(PROMPTS[int(name)])} for name in names]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows) + "not JSON\n")
    config = {"model": "reference", "drafter": "none", "profiles": "off"}
    assert batch(source, out, replicas=1, **config).items() >= {"completed": 8, "failed": 2, "skipped": 0}.items()
    texts = [result.text for result in library.generate(PROMPTS, Sampling(temperature=0, max_tokens=40))]
    found = {row["custom_id"]: row["response"] for row in map(json.loads, out.read_text().splitlines())}
    assert [found[str(i)]["body"]["choices"][0]["text"] for i in range(8)] == texts
    assert batch(source, out, replicas=1, **config).items() >= {"completed": 0, "skipped": 10}.items()


def test_a_batch_that_no_engine_can_be_made_for(cluster, tmp_path):
    """It says what the engine said, and nothing was written."""
    from forerun.ray import batch

    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        json.dumps({"method": "POST", "url": "/v1/completions", "custom_id": "a", "body": body("Once")}) + "\n"
    )
    with pytest.raises(ConfigError, match=r"^forerun has no drafter 'nobody'\."):
        batch(source, out, drafter="nobody", profiles="off")
    assert not out.read_text()


def test_who_asks_for_more_than_there_is_hears_of_it(cluster, caplog):
    from forerun.ray.cluster import tell_if_none_fits

    tell_if_none_fits({"threads": 3})
    assert not caplog.messages
    tell_if_none_fits({"threads": 4, "device": "cuda"})
    assert ["4 CPUs and 1 GPUs, which no machine" in message for message in caplog.messages] == [True]
