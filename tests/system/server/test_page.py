"""The page at /, in a browser: what it shows is what the server said, and a keyboard is enough."""

import json
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from forerun import Sampling
from forerun.server.playground import PAGE

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path")
SETTLED = 60_000  # milliseconds; a machine that was busy for a while is no reason to fail
SPEC = spec_from_file_location("page", Path(__file__).parents[3] / "scripts" / "page.py")
script = module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def problems():
    """What the browser complained about; a test that wants some takes them out."""
    return []


@pytest.fixture
def tab(browser, problems):
    """`tab(url)` opens the page; complaints of the browser fail the test."""
    contexts = []

    def make(url, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options}))
        page = contexts[-1].new_page()
        page.set_default_timeout(SETTLED)
        page.on("console", lambda said: problems.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.goto(url)
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def opened(tab, reference):
    """The page of the bundled model."""
    return tab(reference[0])


def ask(page, text, **fields):
    """Send a text and wait for the whole answer."""
    for name, value in fields.items():
        page.fill(f"#{name.replace('_', '-')}", str(value))
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    expect(page.locator("#send")).to_be_visible(timeout=SETTLED)


def asked_steps(web, prompt, **fields):
    """The steps of a completion, as a client hears them."""
    body = {"prompt": prompt, "stream": True, "stream_options": {"include_steps": True}, **fields}
    lines = web.post("/v1/completions", json=body).text.split("\n\n")
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    return [choice["step"] for part in parts for choice in part["choices"]]


def complete(page, text, **fields):
    page.check("[value=completion]", force=True)
    ask(page, text, **fields)


PAINT = """() => new Promise(done => {
  const find = (list) => {
    const [content] = list.getEntriesByName("first-contentful-paint");
    if (content) done(Math.max(content.startTime, performance.getEntriesByType("navigation")[0].loadEventEnd));
  };
  new PerformanceObserver(find).observe({ type: "paint", buffered: true });
})"""


def test_the_page_is_there_at_once(tab, reference):
    page = tab(reference[0])
    times = [page.evaluate(PAINT)]
    for _ in range(2):  # the quickest counts: this machine may be busy
        page.reload()
        times.append(page.evaluate(PAINT))
    assert 0 < min(times) < 1000
    expect(page.locator("#model")).to_have_text("reference")
    expect(page.locator("#prompt")).to_be_focused()


def test_tokens_are_coloured_by_who_guessed_them(opened, web):
    complete(opened, "Once upon a time", temperature=0, max_tokens=60)
    steps = asked_steps(web, "Once upon a time", temperature=0, max_tokens=60)
    said = [[text, source] for step in steps for _, text, source in step["tokens"]]
    sources = {"source-target": "target", "source-0": "draft-model"}
    found = opened.eval_on_selector_all(".token", "all => all.map(t => [t.textContent, t.classList[1]])")
    assert [[text, sources[name]] for text, name in found] == said
    assert {source for _, source in said} == {"target", "draft-model"}
    ground = "t => getComputedStyle(t).backgroundColor"
    colours = {opened.eval_on_selector(f".token.{name}", ground) for name in sources}
    assert len(colours) == 2
    assert opened.locator("#legend li").all_inner_texts() == ["the model itself", "draft-model"]
    assert opened.locator("#tokens").inner_text() == "60"
    assert float(opened.locator("#per-step").inner_text()) == pytest.approx(60 / len(steps), abs=0.006)


def test_a_short_text_has_its_estimate_too(opened):
    """It is over before the gauges were looked at for the first time."""
    complete(opened, "The cat", temperature=0, max_tokens=2)
    expect(opened.locator("#plain")).not_to_have_text("–")


def test_a_completion_is_the_librarys(opened, library):
    complete(opened, "The cat", temperature=0.9, seed=4, max_tokens=90)
    expected = library.generate("The cat", Sampling(temperature=0.9, seed=4, max_tokens=90))[0]
    assert expected.finish_reason == "length"
    assert opened.locator(".answer").text_content() == "The cat" + expected.text
    assert opened.locator("#rate").inner_text().isdecimal()
    expect(opened.locator("#plain")).not_to_have_text("–")
    gauge = opened.locator("[data-gauge=num_requests_running]")
    expect(gauge).to_have_text("0")


def test_a_chat_remembers(opened):
    bodies = []
    opened.on("request", lambda sent: bodies.append(sent.post_data_json) if sent.method == "POST" else None)
    ask(opened, "Tell me about a dog.", max_tokens=8, seed=1)
    first = opened.locator(".answer").text_content()
    ask(opened, "And a cat?")
    assert [turn["role"] for turn in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[1]["messages"][1]["content"].strip() == first.strip().removesuffix("<|end|>")
    assert opened.locator(".said").all_inner_texts() == ["Tell me about a dog.", "And a cat?"]
    opened.click("#clear")
    ask(opened, "Hello")
    assert len(bodies[2]["messages"]) == 1


def test_a_step_is_looked_at_by_keyboard(opened, web):
    complete(opened, "Once upon a time", temperature=0, max_tokens=40)
    steps = asked_steps(web, "Once upon a time", temperature=0, max_tokens=40)
    opened.focus("#log")
    for key, number in [("ArrowLeft", len(steps)), ("ArrowLeft", len(steps) - 1), ("Home", 1), ("ArrowRight", 2)]:
        opened.keyboard.press(key)
        step = steps[number - 1]
        expect(opened.locator(".step.selected")).to_have_text("".join(text for _, text, _ in step["tokens"]))
        expect(opened.locator("#step")).to_contain_text(f"{number} of {len(steps)}")
        expect(opened.locator("#status")).to_contain_text(f"Step {number}: ")
        assert opened.locator("#tree .node.accepted").count() == len(step["path"])
        assert opened.locator("#tree .node.refused").count() == len(step["draft"]) - len(step["path"])
        assert opened.locator("#tree .node.own").count() == len(step["tokens"]) - len(step["path"])
    assert any(step["path"] for step in steps), "nothing was accepted; the test shows nothing"
    opened.keyboard.press("Escape")
    expect(opened.locator(".step.selected")).to_have_count(0)
    opened.locator(".step").nth(3).click()
    expect(opened.locator("#step")).to_contain_text(f"4 of {len(steps)}")


def test_escape_stops(tab, slow, serving, eventually):
    llm = slow()
    with serving(llm) as url:
        page = tab(url)
        page.check("[value=completion]", force=True)
        page.fill("#max-tokens", "15000")
        page.fill("#prompt", "ab")
        page.press("#prompt", "Enter")
        expect(page.locator(".token").nth(3)).to_be_visible(timeout=SETTLED)
        assert llm.engine.requests
        page.keyboard.press("Escape")
        expect(page.locator("#status")).to_contain_text("Stopped. ", timeout=SETTLED)
        eventually(lambda: not llm.engine.requests)
        expect(page.locator("#send")).to_be_visible()
        expect(page.locator("#error")).to_be_hidden()
        written = int(page.locator("#status").inner_text().split()[1])
        assert page.locator(".token").count() == written > 3


def test_an_error_is_shown_as_the_server_says_it(opened, web, problems):
    text = "ab " * 3000
    complete(opened, text)
    said = web.post("/v1/completions", json={"prompt": text}).json()["error"]["message"]
    expect(opened.locator("#error")).to_have_text(said)
    assert ["400" in problem for problem in problems] == [True]
    problems.clear()
    opened.check("[value=chat]", force=True)
    ask(opened, text)
    expect(opened.locator("#error")).to_be_visible()
    expect(opened.locator("#prompt")).to_have_value(text)  # to be mended
    problems.clear()
    ask(opened, "The cat", max_tokens=3)  # what was refused is no part of the conversation
    expect(opened.locator("#error")).to_be_hidden()
    assert opened.locator(".said").all_inner_texts() == ["The cat"]
    assert opened.locator(".answer").count() == 1


def test_a_key_is_asked_for_and_stays_in_the_tab(tab, slow, serving, problems):
    with serving(slow(0), api_key=("a-key",)) as url:
        page = tab(url)
        expect(page.locator("#error")).to_contain_text("the API key is missing or unknown")
        assert all("401" in problem for problem in problems)
        problems.clear()
        page.fill("#key", "a-key")
        page.press("#key", "Enter")
        expect(page.locator("#model")).not_to_be_empty()
        expect(page.locator("#error")).to_be_hidden()
        complete(page, "ab", max_tokens=5)
        expect(page.locator(".token")).to_have_count(5)
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]


CONTRAST = """all => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = channels(colour).map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
  };
  return all.filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.checkVisibility())
    .map(e => {
      const [own, box] = [getComputedStyle(e), e.previousElementSibling];
      const drawn = e.namespaceURI.endsWith("svg");
      const pair = drawn ? [own.fill, getComputedStyle(box).fill] : [own.color, ground(e)];
      const [low, high] = pair.map(luminance).sort((x, y) => x - y);
      return [(high + 0.05) / (low + 0.05), e.className.baseVal ?? e.className, e.textContent.slice(0, 20)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(tab, reference, scheme):
    page = tab(reference[0], color_scheme=scheme)
    complete(page, "Once upon a time", temperature=0, max_tokens=20)
    page.evaluate("import('/page/sources.js').then(m => { for (let i = 0; i < 5; i++) m.classOf(`other ${i}`); })")
    page.evaluate("""() => { for (let i = 0; i < 6; i++) {
        const token = document.querySelector(".token").cloneNode(true);
        token.className = `token source-${i}`;
        document.querySelector(".answer").append(token);
    } document.querySelector("#error").hidden = false; document.querySelector("#error").textContent = "wrong"; }""")
    expect(page.locator("#legend li")).to_have_count(7)
    found = page.eval_on_selector_all("body *", CONTRAST)
    assert len(found) > 60
    assert [each for each in found if each[0] < 4.5] == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == (scheme == "dark")


def test_text_is_never_markup(opened):
    text = "<img src=x onerror=alert(1)><b>Once</b>"
    complete(opened, text, max_tokens=3)
    assert opened.locator(".given").text_content() == text
    assert opened.locator("#log img, #log b").count() == 0


def test_nothing_from_elsewhere_is_run(opened, web, problems):
    opened.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">')")
    opened.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
    }""")
    assert opened.evaluate("window.ran") is None
    assert len(problems) > 1, "a violation is not seen, so no test here sees one"
    assert all("Content Security Policy" in problem for problem in problems)
    problems.clear()
    for place in PAGE:
        found = web.get(place)
        assert found.status_code == 200
        assert "default-src 'self'" in found.headers["content-security-policy"]
        assert b"http://" not in found.content.replace(b"http://www.w3.org/", b"")
        assert b"https://" not in found.content
    assert web.get("/page/no-file.js").status_code == 404


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_nothing_sticks_out_sideways(tab, reference, size):
    page = tab(reference[0], viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    complete(page, "Once upon a time", max_tokens=40, seed=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.eval_on_selector(".fill", "e => getComputedStyle(e).transitionDuration") == "0s"


def test_sixteen_streams_leave_the_page_awake(opened):
    opened.evaluate(script.STREAMS, [16, 60])
    found = opened.evaluate("window.written")
    assert found["tokens"] == 16 * 60
    gaps = sorted(found["gaps"])
    assert len(gaps) > 10
    assert gaps[int(0.9 * len(gaps))] < 100, "milliseconds between frames"
