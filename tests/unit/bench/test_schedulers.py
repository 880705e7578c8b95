"""Schedulers play arrivals by a table of costs: figures come again, add up, and show what each is for."""

import gzip
import json

import pytest

from forerun.bench import schedulers, traces
from forerun.bench.planners import COSTS
from forerun.bench.report import as_json
from forerun.errors import ConfigError
from forerun.schedulers import SCHEDULERS
from forerun.schedulers.splitfuse import knee
from forerun.types import Costs


@pytest.fixture(autouse=True)
def short_line(monkeypatch):
    monkeypatch.setattr(schedulers, "LINE", 30)


def report_of(**changes):
    return schedulers.run(schedulers.Order(**{"requests": 30, "loads": (0.9,), **changes}))


def test_every_scheduler_serves_everybody_and_the_figures_come_again():
    first, again = report_of(), report_of()
    assert first["cases"] == again["cases"]
    assert {case["scheduler"] for case in first["cases"]} == set(SCHEDULERS)
    assert not first["notes"]
    assert all(case["ttft_ms"]["p50"] > 0 for case in first["cases"])
    assert json.loads(as_json(first))["benchmark"] == "schedulers"
    schedulers.show(first)
    assert schedulers.plot(first).startswith(b"\x89PNG")


def test_a_request_alone_takes_what_the_table_says():
    arrival = traces.Arrival(1.0, (1,) * 40, 3)
    served, engine = schedulers.serve("fcfs", [arrival])
    assert served[0].first == pytest.approx(COSTS.of(40))
    assert served[0].each == pytest.approx(COSTS.of(1))
    assert served[0].tokens == 3
    found = schedulers.figures([served[0]], engine)
    assert found["tokens_per_second"] == pytest.approx(3 / (1.0 + COSTS.of(40) + 2 * COSTS.of(1)))
    assert found["goodput"] > 0


def test_chunks_that_a_target_allows_keep_gaps_short():
    cases = {
        case["scheduler"]: case for case in report_of(only=True, settings=("flover", "sarathi"), requests=60)["cases"]
    }
    target = 1e3 * 4 * COSTS.of(1)
    assert cases["sarathi"]["itl_ms"]["p99"] <= target * 1.01
    assert cases["flover"]["itl_ms"]["p99"] > 3 * target


def test_copies_take_their_time():
    clock = schedulers.Clock()
    engine = schedulers.opened("fastswitch", clock)
    engine.members.scheduler.moved(1000, 0.0)
    assert clock.now == pytest.approx(1000 * schedulers.COPY)
    assert engine.members.scheduler.inner._copies == [pytest.approx(schedulers.COPY)]


def test_traces_are_read_and_what_is_shared_stays_so(tmp_path):
    azure, mooncake = (tmp_path / traces.FILES[name] for name in ("azure-code", "mooncake"))
    azure.parent.mkdir()
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05,80,8\n"
    )
    mooncake.parent.mkdir()
    rows = [{"timestamp": 1000 * i, "input_length": 1100, "output_length": 16, "hash_ids": [0, i, 9]} for i in range(2)]
    with gzip.open(mooncake, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    found = traces.read("azure-code", tmp_path, 10)
    assert [(len(a.prompt), a.output) for a in found] == [(601, 1), (10, 1)]
    assert found[1].at - found[0].at == pytest.approx(1.02, abs=0.01)
    first, second = traces.read("mooncake", tmp_path, 10)
    assert len(first.prompt) == 137
    assert first.prompt[:64] == second.prompt[:64]
    assert first.prompt[64:128] != second.prompt[64:128]
    paced = traces.paced([first, second], lambda _: 2.0, 0.5)
    assert [a.at for a in paced] == [0.0, 8.0]


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="trace 'azure-code' is not there; give --data"):
        traces.read("azure-code", tmp_path, 1)
    with pytest.raises(ConfigError, match="scheduler"):
        report_of(settings=("sarati",))


def test_the_knee_is_where_a_pass_is_used_well():
    assert knee(Costs((1, 2), (0.9, 1.0))) == 32  # 0.8 + 0.1 n: 32 is the first power of two with 80 % of 10 per second
    assert knee(Costs((1, 2), (1.0, 2.0))) == 1  # nothing is gained by more
    assert knee(Costs((1, 2), (1.0, 1.0))) == 1 << 16  # more costs nothing


def test_evictions_are_told_where_something_is_shared(tmp_path):
    path = tmp_path / traces.FILES["mooncake"]
    path.parent.mkdir()
    row = {"timestamp": 0, "input_length": 1024, "output_length": 16, "hash_ids": [0, 1]}
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps({**row, "timestamp": i}) + "\n" for i in range(4))
    told = report_of(trace="mooncake", data=tmp_path, requests=4)["notes"][0]
    assert all(f"{evict} 65.6%" in told for evict in schedulers.EVICTIONS)  # three of four, but for a last block each


def test_what_is_found_is_what_a_pool_can_hold():
    prompts = [(i % 3,) * 64 for i in range(9)]
    whole = 6 * 48 / (9 * 64)  # the last block is read anew
    for evict in schedulers.EVICTIONS:
        assert schedulers.found(evict, 4096, prompts) == pytest.approx(whole)
    assert schedulers.found("lru", 128, prompts) == 0.0  # whoever comes next has just gone
