import torch

from forerun import LLM
from forerun.bench import machine


def test_the_threads_of_compiled_passes_are_said_though_torch_has_one(monkeypatch):
    monkeypatch.setattr("forerun.build.cores", lambda: 2)  # one core runs two threads as well
    llm = LLM("reference", drafter="none", threads=2, profiles="off")
    assert torch.get_num_threads() == (1 if llm.model.follows else 2)
    assert machine.facts(llm.model.info)["threads"] >= 2  # a wider model of another test may be there
