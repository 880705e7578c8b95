"""Forged requests, other tenants, addresses and paths in what is asked: nobody passes, nothing is fetched or told."""

import itertools
import json
import random
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from forerun import LLM, Sampling
from forerun.models.toy import ToyModel
from forerun.server.playground import PAGE
from forerun.server.settings import Settings

FREE = {"/health", "/ready", *PAGE}
BODY = {"prompt": "abab", "max_tokens": 3, "seed": 1}


def toy(**keywords):
    return LLM(ToyModel(6, context_length=600), threads=1, profiles="off", **{"cache": "paged", **keywords})


def raw(url, data, *, most=65536):
    """What the server answers to these bytes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        found = b""
        while part := client.recv(most):
            found += part
        return found


def listening():
    """Addresses at which this process listens, as (hexadecimal address, port)."""
    links = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    own = {link.split("[")[1].rstrip("]") for link in links if link.startswith("socket:")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {tuple(row[1].split(":")) for row in rows if row[3] == "0A" and row[9] in own}


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="there is no /proc")
def test_nothing_listens_but_the_server(serving):
    """S4."""
    before = listening()
    with serving(toy()) as url:
        assert listening() - before == {("0100007F", f"{int(url.rpartition(':')[2]):04X}")}
    assert listening() <= before
    assert Settings().host == "127.0.0.1"


PATHS = [
    *("/v1/models", "/v1/completions", "/metrics", "/openapi.json", "/tokenize", "/nope", "/v1/models/x"),
    *("//v1/models", "/v1//models", "/v1/../v1/models", "/./v1/models", "/health/../v1/models", "/ready/../metrics"),
    *("/v1/models/", "/V1/MODELS", "/v1/models%20", "/v1/models%00", "/v1/%6dodels", "/%2fv1/models", "/v1%2fmodels"),
    *("/health;/v1/models", "/v1/models;/health", "/v1/models?/health", "/v1/models#/health", "/v1\\models"),
    *("/page/../v1/models", "/page/%2e%2e/v1/models", "http://localhost/v1/models", "http://localhost/metrics"),
    *("http://evil.example/v1/models", "localhost:80", "*", "/health%0d%0aX:/../v1/models", "/docs", "/redoc"),
]
KEYS = [
    "",
    "Authorization: Bearer wrong",
    "Authorization: Bearer",
    "Authorization: Bearer  ",
    "Authorization: right",
    "Authorization: Basic right",
    "Authorization: Bearer righ",
    "Authorization: Bearer rightt",
    "Authorization: Bearer RIGHT",
    "Authorization: Bearer ri\xe9ght",
    "Authorization: Bearer wrong\r\nAuthorization: Bearer right",
    "X-Api-Key: right",
    "Proxy-Authorization: Bearer right",
    "Cookie: authorization=Bearer right",
    "X-Original-URL: /health",
    "X-Forwarded-Prefix: /health",
    "X-HTTP-Method-Override: GET",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
]
METHODS = ["GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "TRACE", "get", "CONNECT"]


def test_five_hundred_forged_requests_pass_nowhere(serving):
    """S5: other spellings of paths, keys, methods and versions; the answer is a refusal, and never an error of ours."""
    rng = random.Random(0)  # noqa: S311 - a plan, not a secret
    every = [*itertools.product(PATHS, KEYS[:1], METHODS[:3]), *itertools.product(PATHS[:1], KEYS, METHODS)]
    every += [(rng.choice(PATHS), rng.choice(KEYS), rng.choice(METHODS)) for _ in range(500 - len(every))]
    content = json.dumps(BODY)
    statuses = set()
    with serving(toy(), api_key=("other", "right")) as url:
        for path, key, method in every:
            version, host = rng.choice(["1.0", "1.1"]), rng.choice(["localhost", "127.0.0.1", "localhost:99"])
            head = [f"{method} {path} HTTP/{version}", f"Host: {host}", "Connection: close", *([key] if key else [])]
            head += [f"Content-Length: {len(content)}", "Content-Type: application/json"] if method == "POST" else []
            asked = "\r\n".join(head) + "\r\n\r\n" + (content if method == "POST" else "")
            answer = raw(url, asked.encode("latin-1"))
            status = int(answer.split()[1])
            statuses.add(status)
            assert status in {400, 401, 403, 405, 404}, (asked, answer[:200])
            assert b"choices" not in answer, asked
        good = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer right"})
        assert good.status_code == 200
    assert 401 in statuses
    assert len(every) == 500


HOSTS = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evil@localhost"),
    *(
        "localhost@evil.example",
        "127.0.0.2",
        "127.1",
        "2130706433",
        "0x7f000001",
        "8.8.8.8",
        "[::2]",
        "[::ffff:7f00:1]",
    ),
    *(
        "localhost.",
        "local host",
        "localhost/",
        "localhost#",
        "*",
        "",
        " ",
        "xn--localhost-9za",
        "LOCALHOST.EVIL",
        "::1",
    ),
]
ORIGINS = [
    "http://evil.example",
    "null",
    "http://localhost.evil.example",
    "https://a.example",
    "http://a.example:80",
    "*",
    "",
]


def test_thirty_hosts_and_origins(serving):
    """S19: a page of another name, or of another origin, is not answered so that it could read it."""
    assert len(HOSTS) + len(ORIGINS) == 30
    with serving(toy(), allow_origin=("http://a.example",)) as url, httpx.Client(base_url=url) as web:
        for host in HOSTS:
            answer = raw(url, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert answer.split()[1] in {b"403", b"400"}, host
        for origin in ORIGINS:
            for method in ("GET", "OPTIONS"):
                asked = {"origin": origin, "access-control-request-method": "POST"}
                found = web.request(method, "/v1/models", headers=asked).headers
                assert "access-control-allow-origin" not in found, origin
                assert "access-control-allow-credentials" not in found
        assert raw(url, b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n").split()[1] in {b"400", b"403"}


TENANTS, ASKED = 64, 10_000


def test_sixty_four_tenants_hear_of_nobody_else(serving, eventually):
    """S10, S11: all ask for what others asked, some leave; texts are the library's, and nothing foreign is found.

    Rows that are given back are overwritten with what is no number, so that a text that reads them is another one.
    """
    llm = toy(cache="paged:block_size=4,blocks=60,poison=true", max_requests=6, scheduler="fastswitch:turn=8")
    library = toy(max_requests=128)
    rng = random.Random(0)  # noqa: S311 - a plan, not a secret
    prompts = ["".join(rng.choices("abcdef", k=13)) for _ in range(160)]
    keys = [f"key-{i}" for i in range(TENANTS)]
    plan = [(rng.choice(keys), rng.choice(prompts), i) for i in range(ASKED)]
    often = Counter((key, prompt[:4]) for key, prompt, _ in plan)  # by the first block
    found_again = []
    samplings = [Sampling(seed=i, max_tokens=12, temperature=i % 2) for i in range(ASKED)]
    texts = [done.text for done in library.generate([prompt for _, prompt, _ in plan], samplings)]
    with serving(llm, api_key=tuple(keys)) as url, httpx.Client(base_url=url, timeout=120) as web:

        def ask(key, prompt, i):
            headers = {"authorization": f"Bearer {key}"}
            body = {"prompt": prompt, "seed": i, "max_tokens": 12, "temperature": i % 2}
            if i % 5 == 0:
                with web.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=headers) as found:
                    next(found.iter_lines())
                    return
            found = web.post("/v1/completions", json=body, headers=headers)
            assert found.status_code == 200
            assert found.json()["choices"][0]["text"] == texts[i]
            cached = found.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert not cached or often[key, prompt[:4]] > 1
            found_again.append(cached)

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda one: ask(*one), plan))
        eventually(lambda: not llm.engine.requests)
    llm.engine.cache.check()
    assert llm.engine.stats.failed_requests == 0
    assert llm.engine.stats.preemptions
    assert any(found_again)
    assert 1 in often.values()


HOSTNAME = "/etc/hostname"
TARGETS = [
    f"file://{HOSTNAME}",
    HOSTNAME,
    f"../../../../..{HOSTNAME}",
    "http://127.0.0.1:9/x",
    "https://evil.example/x",
    "ftp://evil.example/x",
]


def reaching(target):
    """Requests that would have a careless server fetch something, as (path, body)."""
    chat, text = "/v1/chat/completions", "/v1/completions"
    said = {"messages": [{"role": "user", "content": target}], "max_tokens": 2}
    part = {"type": "image_url", "image_url": {"url": target}}
    yield chat, said
    yield chat, {**said, "messages": [{"role": "user", "content": [part]}]}
    yield chat, {**said, "chat_template": target}
    yield chat, {**said, "model": target}
    yield text, {**BODY, "prompt": target}
    yield text, {**BODY, "guided_json": {"$ref": target}}
    yield text, {**BODY, "guided_json": {"$schema": target, "properties": {"a": {"$ref": f"{target}#/a"}}}}
    yield text, {**BODY, "guided_json": target}
    yield text, {**BODY, "guided_grammar": f'%import "{target}"\nstart: "a"'}
    yield f"/v1/models/{target}", None
    yield f"/page/{target}", None


WATCHED = []  # what the process did while somebody watched: (event, arguments)
WATCHING = False


def watch(event, arguments):
    if WATCHING and (event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"} or event == "open"):
        WATCHED.append((event, arguments))


def test_nothing_that_is_named_is_fetched(reference, monkeypatch):
    """S12, S15: sixty-six requests name files and addresses; nothing is opened or connected to, and nothing is told."""
    url, _ = reference
    host, port = url.removeprefix("http://").split(":")
    sys.addaudithook(watch)  # for good; it does nothing unless it is asked to
    asked = [(path, body) for target in TARGETS for path, body in reaching(target)]
    assert len(asked) == 66
    secret = Path(HOSTNAME).read_text().strip() if Path(HOSTNAME).is_file() else None
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as web:
        web.get("/health")
        monkeypatch.setattr(sys.modules[__name__], "WATCHING", True)
        try:
            Path(__file__).open().close()  # which the hook must see
            answers = [web.post(path, json=body) if body else web.get(path) for path, body in asked]
        finally:
            monkeypatch.setattr(sys.modules[__name__], "WATCHING", False)
    assert {answer.status_code for answer in answers} <= {200, 400, 404}
    assert not [answer.text for answer in answers if secret and secret in answer.text]
    places = [arguments for event, arguments in WATCHED if event != "open"]
    assert [place for place in places if (host, int(port)) not in place and place[0] != host] == []
    opened = {str(arguments[0]) for event, arguments in WATCHED if event == "open"}
    assert __file__ in opened
    assert not {name for name in opened if "hostname" in name or "evil" in name}


def test_strings_of_special_tokens_in_what_users_say_are_text(reference, library):
    """S13: every one of them, in every place that a user fills, alone and amid text."""
    url, _ = reference
    specials = {str(t.content): i for i, t in library.tokenizer._added.items()}
    assert specials
    with httpx.Client(base_url=url, timeout=120) as web:

        def ids(**body):
            found = web.post("/tokenize", json=body)
            assert found.status_code == 200
            return [token for token in found.json()["tokens"] if token in specials.values()]

        for special in specials:
            for text in (special, f"a {special} b", special * 3, f"{special[:-1]}{special}{special[1:]}"):
                assert ids(prompt=text, add_special_tokens=False) == []
                for role in ("system", "user", "assistant"):
                    turns = [{"role": role, "content": text}, {"role": "user", "content": text}]
                    plain = [{**turn, "content": "a"} for turn in turns]
                    assert ids(messages=turns) == ids(messages=plain)
                parts = [{"type": "text", "text": special[:3]}, {"type": "text", "text": special[3:]}]
                assert ids(messages=[{"role": "user", "content": parts}]) == ids(messages=plain[1:])


CANARY = "dacabadafe"


@pytest.mark.parametrize("where", ["encode", "prepare", "decode", "run", "push", "step"])
def test_what_breaks_does_not_tell_what_was_asked(where, serving, caplog):
    """S14: an error quotes the request; the log, the answer and the metrics do not."""
    llm = toy()
    guides = llm.engine.members.guides
    owners = {"encode": llm.tokenizer, "prepare": guides, "run": llm.engine.runner, "push": None}
    owner = owners.get(where, llm.engine)

    def failing(*_, **__):
        raise ValueError(f"{CANARY} at /home/somebody and 0x7f00")

    caplog.set_level("INFO")
    with serving(llm, api_key=("k-secret",)) as url, httpx.Client(base_url=url, timeout=60) as web:
        headers = {"authorization": "Bearer k-secret", "x-note": CANARY}
        body = {"prompt": CANARY, "max_tokens": 4, "stop": [CANARY], "user": CANARY}
        if where == "prepare":
            body["guided_regex"] = f"{CANARY}.*"
        if owner is None:
            llm.engine.decode = failing  # of one request's text, amid a step
        else:
            setattr(owner, where, failing)
        answers = [web.post("/v1/completions", json={**body, "stream": s}, headers=headers) for s in (False, True)]
        told = "".join(answer.text for answer in answers) + web.get("/metrics", headers=headers).text
    assert {answer.status_code for answer in answers} <= {500, 503}
    for place in (told, caplog.text):
        assert CANARY not in place
        assert "k-secret" not in place
    assert "0x7f00" not in told
    assert "/home" not in told
    assert "ValueError" in caplog.text
