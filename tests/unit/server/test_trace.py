"""Spans say numbers and names of a request, and no text; nothing is made or sent where nobody asked for it."""

import http.server
import threading

import httpx
import pytest

from forerun import LLM
from forerun.models.toy import ToyModel
from forerun.server import trace
from forerun.server.run import in_background
from forerun.server.settings import Settings

WORDS = ("once ", "upon ", "a ", "banana ", "secretly ")
BODY = {"prompt": "secretly once ", "max_tokens": 6, "temperature": 0}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    for name in trace.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve():
    llm = LLM(ToyModel(words=WORDS), drafter="ngram", planner="fixed", threads=1, profiles="off")
    return lambda **fields: in_background(llm, Settings(port=0, served_model_name="toy", **fields))


@pytest.fixture
def spans(monkeypatch):
    """What a collector would get, once the server has ended."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(trace, "collected", lambda: provider)
    return exporter.get_finished_spans


@pytest.fixture
def collector():
    """(address, requests as (path, bytes)) of a stub."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_a_span_says_what_became_of_a_request(serve, spans):
    with serve() as url:
        answer = httpx.post(f"{url}/v1/completions", json={**BODY, "n": 2}, headers={"traceparent": PARENT}).json()
        httpx.get(f"{url}/v1/models")
    (span,) = spans()
    about = dict(span.attributes)
    assert span.name == "text_completion toy"
    assert span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
    assert (
        about.items()
        >= {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "gen_ai.provider.name": "forerun",
            "gen_ai.request.model": "toy",
            "gen_ai.response.id": answer["id"],
            "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
            "gen_ai.usage.output_tokens": 12,
            "gen_ai.request.choice.count": 2,
            "gen_ai.response.finish_reasons": ("length", "length"),
        }.items()
    )
    stats = [choice["speculative_decoding_stats"] for choice in answer["choices"]]
    assert about["forerun.drafted_tokens"] == sum(one["num_draft_tokens"] for one in stats)
    assert about["forerun.accepted_tokens"] == sum(one["num_accepted_draft_tokens"] for one in stats)
    waits = [about[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e")]
    assert 0 <= waits[0] <= waits[1] <= waits[2] < 60


def test_no_text_is_in_a_span(serve, spans):
    """Prompts and outputs are made of five words; none is anywhere in what would be sent."""
    with serve(api_key=("hidden-key",)) as url:
        key = {"authorization": "Bearer hidden-key"}
        with httpx.Client(base_url=url, headers=key) as web:
            assert web.post("/v1/completions", json={**BODY, "stream": True}).status_code == 200
            assert web.post("/v1/completions", json={**BODY, "secretly": 1}).status_code == 400
            assert web.post("/secretly").status_code == 404
        assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 401
    found = spans()
    assert sorted(span.attributes["http.response.status_code"] for span in found) == [200, 400, 401, 404]
    said = "".join(span.to_json() for span in found)
    assert not [word for word in (*WORDS, "secretly", "hidden") if len(word) > 3 and word.strip() in said]


def test_a_collector_gets_them(serve, collector, monkeypatch):
    """By the standard exporter, at the end of the server at the latest; the name of the service is ours."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    with serve() as address:
        assert httpx.post(f"{address}/v1/completions", json=BODY).status_code == 200
    assert {path for path, _ in got} == {"/v1/traces"}
    sent = [ExportTraceServiceRequest.FromString(data).resource_spans[0] for _, data in got]
    assert [span.name for one in sent for span in one.scope_spans[0].spans] == ["text_completion toy"]
    names = {a.key: a.value.string_value for a in sent[0].resource.attributes}
    assert names["service.name"] == "forerun"


def test_a_collector_that_is_not_there_stops_nobody(serve, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with serve() as url:
        assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 200


def test_nothing_is_made_unless_asked_for(monkeypatch, caplog):
    assert trace.tracing() == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(trace, "find_spec", lambda _: None)
    assert trace.tracing() == []
    assert "pip install 'forerun[telemetry]'" in caplog.text
