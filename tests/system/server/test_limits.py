"""What a server does under load, faults, and clients that are slow, gone or hostile. Bounded, on loopback only."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

LONG = {"prompt": "ab", "max_tokens": 15_000, "seed": 1}  # minutes, at the pace of a slow model
SHORT = {"prompt": "ab", "max_tokens": 3, "seed": 1}


@contextmanager
def running(url, eventually, llm, count=1, **body):
    """So many requests that are being answered; they are left at the end."""
    with ThreadPoolExecutor(count) as pool, httpx.Client(base_url=url, timeout=120) as web:
        leave = threading.Event()

        def ask():
            with web.stream("POST", "/v1/completions", json={**LONG, **body, "stream": True}) as found:
                leave.wait(120)
                return found.status_code

        asked = [pool.submit(ask) for _ in range(count)]
        try:
            eventually(lambda: len(llm.engine.requests) >= count)
            yield asked
        finally:
            leave.set()


def post(url, body, **keywords):
    return httpx.post(f"{url}/v1/completions", json=body, timeout=120, **keywords)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_place(slow, serving, eventually, stream):
    """R12, B17: in a stream and in a whole answer, while it runs and while it waits."""
    llm = slow(max_requests=1)
    room = llm.engine.cache.free()
    with serving(llm) as url:
        host, port = url.removeprefix("http://").split(":")
        raw = json.dumps({**LONG, "stream": stream, "n": 2}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + raw)
            eventually(lambda: any(r.written for r in list(llm.engine.requests.values())))
            assert len(llm.engine.requests) == 2
        eventually(lambda: not llm.engine.requests)
        assert llm.engine.cache.free() == room
        assert post(url, SHORT).status_code == 200


def test_a_reader_that_reads_nothing_is_given_up(slow, serving, eventually):
    """R18, B18: what it does not take is held by the transport up to its mark, and then nobody waits for it."""
    llm = slow(0.004, max_requests=8)  # a minute and more, if nobody gives up
    with serving(llm, write_timeout=0.5) as url:
        host, port = url.removeprefix("http://").split(":")
        raw = json.dumps({**LONG, "stream": True, "n": 8, "logprobs": 5}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + raw)
            eventually(lambda: llm.engine.requests)
            eventually(lambda: not llm.engine.requests)
        assert llm.engine.stats.failed_requests == 0
        assert post(url, SHORT).status_code == 200


def test_who_finds_no_room_is_told_when_to_ask_again(slow, serving, eventually):
    """R17."""
    llm = slow(max_requests=1)
    with serving(llm, max_queue=1) as url, running(url, eventually, llm, 2):
        began = time.monotonic()
        found = post(url, SHORT)
        assert found.status_code == 429
        assert int(found.headers["retry-after"]) >= 1
        assert found.json()["error"]["type"] == "rate_limit_error"
        assert time.monotonic() - began < 10
        assert post(url, {**SHORT, "n": 3}).status_code == 400  # there will never be room for these
    with serving(slow(), max_queue=1) as url:
        assert post(url, SHORT).status_code == 200


def test_who_waits_too_long_is_told(slow, serving, eventually):
    llm = slow(max_requests=1)
    with serving(llm, queue_timeout=0.3) as url, running(url, eventually, llm):
        found = post(url, SHORT)
        assert (found.status_code, found.json()["error"]["type"]) == (503, "server_error")
        assert "waited too long" in found.json()["error"]["message"]
        assert int(found.headers["retry-after"]) >= 1


def test_a_request_has_a_time(slow, serving, eventually):
    llm = slow()
    with serving(llm, request_timeout=0.5) as url:
        found = post(url, LONG)
        assert (found.status_code, found.json()["error"]["type"]) == (408, "timeout_error")
        lines = post(url, {**LONG, "stream": True}).text.strip().split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        assert lines[-1] == "data: [DONE]"
        eventually(lambda: not llm.engine.requests)


def test_a_key_has_its_share(slow, serving, eventually):
    """S18: one key at its limit keeps nobody else out."""
    llm = slow()
    keys = [{"authorization": f"Bearer key-{i}"} for i in range(2)]
    with serving(llm, api_key=("key-0", "key-1"), max_per_key=2) as url, httpx.Client(timeout=120) as web:

        def ask(key, body):
            return web.post(f"{url}/v1/completions", json=body, headers=keys[key])

        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(ask, 0, {**LONG, "max_tokens": 60}) for _ in range(2)]
            eventually(lambda: len(llm.engine.requests) == 2)
            assert ask(0, SHORT).status_code == 429
            assert ask(1, SHORT).status_code == 200
            assert [w.result().status_code for w in waiting] == [200, 200]
        assert ask(0, SHORT).status_code == 200


def test_a_broken_engine_ends_everything_and_health_says_so(slow, serving, eventually):
    """R20, R21: no request hangs, streaming or not, running or new."""
    llm = slow(0.05)
    with serving(llm) as url, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(post, url, LONG)
        stream = pool.submit(post, url, {**LONG, "stream": True})
        eventually(lambda: sum(r.written > 2 for r in list(llm.engine.requests.values())) == 2)

        def broken():
            raise MemoryError

        llm.engine.step = broken
        assert whole.result().status_code == 500
        assert whole.result().json()["error"]["type"] == "server_error"
        lines = stream.result().text.strip().split("\n\n")
        assert "the engine broke" in json.loads(lines[-3].removeprefix("data: "))["error"]["message"]
        assert lines[-1] == "data: [DONE]"
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.get(f"{url}/ready").status_code == 503
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert post(url, SHORT).status_code == 503


def test_health_sees_an_engine_that_hangs(slow, serving, eventually):
    """R21: the heart is the engine's, not the event loop's."""
    llm, go = slow(0), threading.Event()
    step = llm.engine.step

    def hang():
        go.wait(120)
        return step()

    with serving(llm, stall_timeout=1.0) as url, ThreadPoolExecutor(1) as pool:
        eventually(lambda: httpx.get(f"{url}/health").status_code == 200)
        llm.engine.step = hang
        found = pool.submit(post, url, SHORT)
        try:
            eventually(lambda: httpx.get(f"{url}/health").status_code == 503)
        finally:
            go.set()
        assert found.result().status_code == 200
        eventually(lambda: httpx.get(f"{url}/health").status_code == 200)


def test_an_error_of_one_request_is_its_own(slow, serving):
    """R25: one raises, its neighbour and the server go on."""
    llm = slow(0)
    with serving(llm) as url:
        found = post(url, {**SHORT, "allowed_tokens": [1], "bad_words": [[1]]})
        assert found.status_code == 400
        assert "no token to draw" in found.json()["error"]["message"]
        assert post(url, SHORT).status_code == 200
        run = llm.engine.runner.run

        def failing(work):
            llm.engine.runner.run = run
            raise ArithmeticError

        llm.engine.runner.run = failing
        assert post(url, SHORT).status_code == 500
        assert post(url, SHORT).status_code == 200


def test_a_template_that_takes_long_keeps_nobody_waiting(talking):
    """S3: it gets its second, and others are answered meanwhile."""
    forever = "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3
    with talking(forever) as url, ThreadPoolExecutor(1) as pool:
        body = {"messages": [{"role": "user", "content": "a"}]}
        for path in ("/v1/chat/completions", "/tokenize"):
            asked = pool.submit(httpx.post, f"{url}{path}", json=body, timeout=120)
            others = 0
            while not asked.done():
                assert post(url, {"prompt": "a", "max_tokens": 1}).status_code == 200
                others += 1
            assert asked.result().status_code == 400
            assert "more than 1 s" in asked.result().json()["error"]["message"]
            assert others > 2


def test_a_bug_in_a_route_is_one_answer(slow, serving, caplog):
    """R25, S14: an error object with the request's id; the log has the place and not what was asked."""
    llm = slow(0)

    def failing(text, **_):
        raise ZeroDivisionError(text)

    with serving(llm) as url:
        encode, llm.tokenizer.encode = llm.tokenizer.encode, failing
        found = post(url, {**SHORT, "prompt": "abcdab"}, headers={"x-request-id": "mine-2"})
        assert (found.status_code, found.json()["error"]["type"]) == (500, "server_error")
        assert found.headers["x-request-id"] == "mine-2"
        llm.tokenizer.encode = encode
        assert post(url, SHORT).status_code == 200
    assert "mine-2 failed with ZeroDivisionError" in caplog.text
    assert "abcdab" not in caplog.text


def test_every_route_but_health_wants_a_key(slow, serving):
    """S5: the routes are those that the app has."""
    right = {"authorization": "Bearer right"}
    with serving(slow(0), api_key=("other", "right")) as url, httpx.Client(base_url=url) as web:
        described = web.get("/openapi.json", headers=right).json()["paths"]
        assert {"/v1/completions", "/v1/models/{name}", "/metrics", "/tokenize", "/health"} <= described.keys()
        wrong = ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}, {"authorization": "Basic right"})
        odd = (
            {"authorization": "Bearer"},
            {"authorization": "Bearer ri\xe9ght".encode("latin-1")},
            {"api-key": "right"},
        )
        odd_paths = ["/v1/models", "/openapi.json", "/nope", "//health", "/health/", "/v1/../health", "/health%2f"]
        for path in [*described, *odd_paths, "http://localhost/health"]:
            open_ = path in {"/health", "/ready"}
            for headers in (*wrong, *odd) if path in odd_paths else wrong[:2]:
                for method in described.get(path, ["get", "post", "options"]):
                    found = web.request(method, "/", headers=headers, extensions={"target": path.encode()})
                    assert (found.status_code == 200) if open_ else (found.status_code == 401), (method, path, headers)
        assert web.get("/v1/models", headers=right).status_code == 200
        assert web.get("/metrics", headers=right).status_code == 200
    with serving(slow(0), api_key=("right",), open_metrics=True) as url:
        assert httpx.get(f"{url}/metrics").status_code == 200


def test_what_one_key_leaves_behind_another_does_not_find(slow, serving):
    """S11: the same prompt again is found in the cache by its own key only."""
    with serving(slow(0, cache="paged:block_size=4"), api_key=("one", "two")) as url:

        def cached(key):
            headers = {"authorization": f"Bearer {key}"}
            body = {"prompt": "abcabcabcabcabcabc", "max_tokens": 2}
            return post(url, body, headers=headers).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [cached("one"), cached("two")] == [0, 0]
        assert cached("one") > 0
        assert cached("two") > 0


def test_a_salt_keeps_prompts_of_one_key_apart(slow, serving):
    """S11: found with the same salt alone, also where there are no keys; what is used is the key's all the same."""
    for key in ("one", ""):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with serving(slow(0, cache="paged:block_size=4"), api_key=(key,) if key else ()) as url:

            def cached(salt, url=url, headers=headers):
                body = {"prompt": "abcabcabcabcabcabc", "max_tokens": 2, "cache_salt": salt}
                return post(url, body, headers=headers).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert [cached(salt) for salt in (None, "a", "b")] == [0, 0, 0]
            assert min(cached(salt) for salt in (None, "a", "b")) > 0
            assert httpx.get(f"{url}/usage", headers=headers).json()["completion_tokens"] == 12
            for wrong in ("", 1, "a" * 257):
                answer = post(url, {"prompt": "a", "cache_salt": wrong}, headers=headers)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_a_body_has_a_size(slow, serving):
    """S7."""
    with serving(slow(0), max_body=2000) as url, httpx.Client(base_url=url) as web:
        kind, packed = {"content-type": "application/json"}, {"content-encoding": "gzip"}
        fits, too_much = (json.dumps({"prompt": "a" * n, "max_tokens": 1}).encode() for n in (1900, 2000))
        assert web.post("/v1/completions", content=fits, headers=kind).status_code == 200
        assert web.post("/v1/completions", content=too_much, headers=kind).status_code == 413

        def chunks():
            for _ in range(100):
                yield b"[" * 1000

        assert web.post("/v1/completions", content=chunks(), headers=kind).status_code == 413
        assert web.post("/v1/completions", content=b"[" * 1999, headers=kind).status_code == 400
        assert web.post("/v1/completions", content=fits, headers={"content-type": "text/plain"}).status_code == 415
        assert web.post("/v1/completions", content=fits).status_code == 415
        assert web.post("/v1/completions", content=fits, headers={**kind, **packed}).status_code == 415
        for strange in (b"", b"[]", b"nul", b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "\\ud800"}', b"\xff"):
            assert web.post("/v1/completions", content=strange, headers=kind).status_code == 400


def test_a_body_has_a_time(slow, serving):
    """R18: half a body holds nothing for long."""
    with serving(slow(0), read_timeout=0.3) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
            client.sendall(head + b"Content-Type: application/json\r\n\r\n{")
            assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_who_goes_in_the_midst_of_his_body_is_no_failure(slow, serving, caplog, eventually):
    """R12, S14: the log says that he left."""
    caplog.set_level("INFO", "forerun.server")
    with serving(slow(0)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
            client.sendall(head + b"Content-Type: application/json\r\n\r\n{")
        eventually(lambda: " POST /v1/completions left " in caplog.text)
    assert "failed" not in caplog.text


@pytest.mark.parametrize("told", ["nothing", "a line", "a refusal first"])
def test_headers_have_a_time(slow, serving, told):
    """R18: a client who begins a request and never ends it is hung up on, even where bytes of it keep coming."""
    began = {"nothing": b"", "a line": b"GET /health HTTP/1.1\r\n", "a refusal first": b"POST / HTTP/1.1\r\n"}[told]
    ends = b"Host: localhost\r\nContent-Length: 99999\r\n\r\n" if told == "a refusal first" else b""
    llm = slow(0)
    with serving(llm, read_timeout=0.3) as url:
        host, port = url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(20)]
        ended = set()
        for client in clients:
            client.sendall(began + ends)
        asked = time.monotonic()
        while len(ended) < len(clients) and time.monotonic() - asked < 60:
            for client in set(clients) - ended:
                try:
                    client.sendall(b"x: y\r\n" if began else b"")
                    client.settimeout(0.01)
                    if not client.recv(1000):
                        ended.add(client)
                except TimeoutError:
                    pass
                except OSError:
                    ended.add(client)
            assert post(url, SHORT).status_code == 200
        assert len(ended) == len(clients)
        assert time.monotonic() - asked >= 0.9
        for client in clients:
            client.close()


def test_a_page_under_another_name_cannot_call(slow, serving):
    """S19."""
    with serving(slow(0), allow_host=("box.lan",)) as url, httpx.Client(base_url=url) as web:
        for host in ("localhost", "127.0.0.1:99", "[::1]:8000", "BOX.lan"):
            assert web.get("/health", headers={"host": host}).status_code == 200
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil", "[::2]", "", "evil@localhost"):
            assert web.get("/health", headers={"host": host}).status_code == 403
        assert "access-control-allow-origin" not in web.get("/health", headers={"origin": "http://a.example"}).headers
    with serving(slow(0), allow_origin=("http://a.example",), api_key=("k",)) as url, httpx.Client(base_url=url) as web:
        asked = {"origin": "http://a.example", "access-control-request-method": "POST"}
        found = web.options("/v1/completions", headers=asked)
        assert found.headers["access-control-allow-origin"] == "http://a.example"
        other = web.options("/v1/completions", headers={**asked, "origin": "http://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_nothing_that_is_said_is_logged(slow, serving, caplog):
    """S14: one line per request; ids, sizes and times only."""
    caplog.set_level("DEBUG")
    said = "abcabcadadad"
    with serving(slow(0), api_key=("k-secret",)) as url, httpx.Client(base_url=url) as web:
        headers = {"authorization": "Bearer k-secret", "x-request-id": "mine-1", "x-note": said}
        body = {"prompt": said, "max_tokens": 3, "stop": [said], "metadata": {"a": said}}
        assert web.post("/v1/completions", json=body, headers=headers).status_code == 200
        assert web.post("/v1/completions", json={**body, said: 1}, headers=headers).status_code == 400
        web.post(f"/{said}?q={said}", json=body, headers=headers)
        web.get("/%0d%0aforged", headers=headers)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("forerun", "uvicorn", "asyncio", "fastapi"))]
    assert not [line for line in ours if said in line or "k-secret" in line or "forged" in line]
    lines = [line for line in ours if line.startswith("mine-1 ")]
    assert sorted(line.split()[1:4] for line in lines) == [  # a line comes after its answer, maybe after the next one
        ["GET", "-", "404"],
        ["POST", "-", "404"],
        ["POST", "/v1/completions", "200"],
        ["POST", "/v1/completions", "400"],
    ]


def test_the_end_waits_for_those_inside(slow, serving, eventually):
    """R19, in small: in the block's end the server drains."""
    llm = slow()
    with ThreadPoolExecutor(2) as pool:
        with serving(llm, drain_timeout=60.0) as url:
            whole = pool.submit(post, url, {**SHORT, "max_tokens": 30})
            stream = pool.submit(post, url, {**SHORT, "max_tokens": 30, "stream": True})
            eventually(lambda: len(llm.engine.requests) == 2)
        assert whole.result().json()["choices"][0]["finish_reason"] == "length"
        assert stream.result().text.endswith("data: [DONE]\n\n")
    assert not llm.engine.requests


def test_the_end_waits_no_longer_than_it_may(slow, serving, eventually):
    llm = slow()
    with ThreadPoolExecutor(2) as pool:
        with serving(llm, drain_timeout=0.3) as url:
            whole = pool.submit(post, url, LONG)
            stream = pool.submit(post, url, {**LONG, "stream": True})
            eventually(lambda: sum(r.written > 0 for r in list(llm.engine.requests.values())) == 2)
        assert whole.result().json()["choices"][0]["finish_reason"] == "abort"
        lines = stream.result().text.strip().split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    assert not llm.engine.requests


def test_a_signal_drains_and_a_second_one_ends(tmp_path):
    """R19: not ready at once, 503 with Retry-After for the new, the running finish, exit code 0."""
    slowed = "import forerun.engine.engine as e, time; s = e.Engine.step\n"
    slowed += "def slow(engine):\n    time.sleep(0.05); return s(engine)\n"
    slowed += "e.Engine.step = slow\nfrom forerun.cli import main; main()"
    flags = ["serve", "toy:0:5", "--port", "0", "--threads", "1", "--profiles", "off", "--drain-timeout", "60"]
    for again in (False, True):
        command = [sys.executable, "-c", slowed, *flags]
        with (
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process,
            ThreadPoolExecutor(1) as pool,
        ):
            said = process.stderr.readline()
            url = said.strip().rpartition(" ")[2]
            running = pool.submit(post, url, {"prompt": "ab", "max_tokens": 60 if again else 30, "seed": 1})
            while "_running 1.0" not in httpx.get(f"{url}/metrics").text:
                assert process.poll() is None
            assert httpx.get(f"{url}/ready").status_code == 200
            process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/ready").status_code == 200:
                assert process.poll() is None
            found = post(url, {"prompt": "ab", "max_tokens": 3})
            assert (found.status_code, found.headers["retry-after"]) == (503, "60")
            if again:
                process.send_signal(signal.SIGTERM)
                with suppress(httpx.TransportError):  # it was cut off, or told so
                    assert running.result().status_code == 500
            else:
                assert running.result().json()["choices"][0]["finish_reason"] == "length"
            process.stderr.read()
            assert process.wait(60) == 0


def test_a_key_has_so_many_requests_and_tokens_a_minute(slow, serving):
    """S17: every answer says what is left, a refusal when to come back, and `/usage` what was used."""
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    limits = {"requests_per_minute": 4, "tokens_per_minute": 12, "api_key": ("one", "two")}
    with serving(slow(0), **limits) as url, httpx.Client(base_url=url, timeout=60) as web:

        def ask(headers=one, **body):
            return web.post("/v1/completions", json={**SHORT, **body}, headers=headers)

        first = ask()
        assert first.status_code == 200
        assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-limit-tokens"]) == ("4", "12")
        assert first.headers["x-ratelimit-remaining-requests"] == "3"
        wrong = ask(max_tokens=-1)
        assert (wrong.status_code, wrong.headers["x-ratelimit-remaining-requests"]) == (400, "2")
        assert ask(prompt="abcd", max_tokens=9).status_code == 200  # 5 are used; 4 are read, and 9 written on credit
        refused = ask()
        assert (refused.status_code, refused.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 30 < int(refused.headers["retry-after"]) <= 41  # 2 of 12 a minute are missing, and 6 overdrawn
        again = ask()
        assert (again.status_code, again.headers["x-ratelimit-remaining-requests"]) == (429, "0")
        assert 0 < float(again.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert ask(two).status_code == 200
        used = web.get("/usage", headers=one).json()
        assert (used["requests"], used["prompt_tokens"], used["completion_tokens"]) == (2, 6, 12)
        assert used["kv_token_seconds"] > 0
        assert web.get("/usage", headers=two).json()["completion_tokens"] == 3
        assert web.get("/usage").status_code == 401
        assert "x-ratelimit-limit-requests" not in web.get("/health").headers
    with serving(slow(0)) as url:
        assert "x-ratelimit-limit-requests" not in post(url, SHORT).headers
