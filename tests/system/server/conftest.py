"""Live servers on free loopback ports, and the library beside them."""

import shutil
import time

import httpx
import openai
import pytest

from forerun import LLM
from forerun.models.load import folder_of
from forerun.models.tokenizer import Tokenizer
from forerun.models.toy import ToyModel
from forerun.server.run import in_background
from forerun.server.settings import Settings


@pytest.fixture(scope="session")
def library():
    """The same model without a server."""
    return LLM("reference", threads=1, profiles="off")


@pytest.fixture(scope="session")
def reference():
    """Where the bundled model is served; (address, LLM)."""
    llm = LLM("reference", drafter="draft-model", planner="fixed", threads=1, profiles="off", cache="paged")
    with in_background(llm, Settings(port=0)) as url:
        yield url, llm


@pytest.fixture(scope="session")
def client(reference):
    with openai.OpenAI(base_url=f"{reference[0]}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def web(reference):
    """The same without a client library."""
    with httpx.Client(base_url=reference[0], timeout=120) as made:
        yield made


@pytest.fixture
def slow():
    """A toy model whose every step takes a while, so that requests can be met while they run."""

    def make(seconds=0.02, **keywords):
        llm = LLM(ToyModel(6, context_length=20_000), threads=1, profiles="off", **{"max_requests": 2, **keywords})
        step = llm.engine.step

        def slowed():
            time.sleep(seconds)
            return step()

        llm.engine.step = slowed
        return llm

    return make


@pytest.fixture(scope="session")
def serving():
    """`with serving(llm, field=value) as url`."""
    return lambda llm, **fields: in_background(llm, Settings(port=0, **fields))


@pytest.fixture
def eventually():
    """Wait until something holds; a machine that was busy for a while is no reason to fail."""

    def wait(holds, seconds=30.0):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it did not come true in time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def talking(library, serving, tmp_path):
    """`with talking(template) as url`: the bundled model behind another template."""

    def make(template):
        folder = shutil.copytree(folder_of("reference"), tmp_path / "reference")
        (folder / "chat_template.jinja").write_text(template)
        llm = LLM(library.model, Tokenizer.from_folder(folder), threads=1, profiles="off")
        return serving(llm, served_model_name="reference")

    return make
