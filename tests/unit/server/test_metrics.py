"""Metrics: they add up to what was written, and never fall."""

from forerun import LLM
from forerun.engine.stats import RequestStats
from forerun.models.toy import ToyModel
from forerun.server.loop import Ask, Ticket
from forerun.server.metrics import Metrics
from forerun.types import Sampling


def values(metrics):
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_counters_follow_the_books_and_never_fall():
    """B20, S17: while requests run, once they ended, and when one is aborted."""
    llm = LLM(ToyModel(4), threads=1, profiles="off", drafter="ngram:min_match=1", planner="fixed", max_requests=2)
    engine, room = llm.engine, llm.engine.cache.free()
    metrics, owners, before, written, ended = Metrics("vllm", room), {}, {}, 0, RequestStats()
    for i in range(4):
        ticket = Ticket([Ask([0, 1, 0, 1, i], Sampling(seed=i, max_tokens=20))])
        owners[engine.add(ticket.asks[0].prompt, ticket.asks[0].sampling)] = ticket
    aborted = list(owners)[1]
    while engine.busy:
        for event in engine.step():
            written += len(event.emissions)
            metrics.observe(owners[event.request], 0, event)
            ended.add(event.stats or RequestStats())
        if engine.requests.get(aborted) and engine.requests[aborted].written > 5:
            engine.abort(aborted)
        metrics.take(engine)
        now = values(metrics)
        assert now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"] == len(engine.requests)
        assert 0 <= now["vllm:kv_cache_usage_perc"] <= 1
        rising = {k: v for k, v in now.items() if k.split("{")[0].endswith(("_total", "_count", "_bucket"))}
        assert all(v >= before.get(k, 0) for k, v in rising.items())
        before = rising
    assert now["vllm:generation_tokens_total"] == written
    assert now["vllm:prompt_tokens_total"] == 20
    assert now['vllm:request_success_total{finished_reason="length"}'] == 3
    assert now['vllm:request_success_total{finished_reason="abort"}'] == 1
    assert now["vllm:time_to_first_token_seconds_count"] == 4
    assert now["vllm:inter_token_latency_seconds_count"] == written - first_events(now, written)
    assert now["vllm:kv_cache_usage_perc"] == 0
    at = [v for k, v in now.items() if "per_pos_total{" in k]
    assert sum(at) == now["vllm:spec_decode_num_accepted_tokens_total"] == ended.accepted > 0
    assert now["vllm:spec_decode_num_draft_tokens_total"] == ended.drafted


def first_events(now, written):
    """Tokens that came with a request's first event, which no interval precedes."""
    rest = written - now["vllm:inter_token_latency_seconds_count"]
    assert 4 <= rest < written
    return rest
