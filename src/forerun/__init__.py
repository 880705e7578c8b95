"""forerun: text from language models, faster than one token per step, and provably the model's own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.config import Config
    from forerun.errors import ForerunError
    from forerun.llm import LLM, Result
    from forerun.types import Sampling

__all__ = ["LLM", "Config", "ForerunError", "Result", "Sampling"]
__version__ = "0.1.0"

_HOMES = {"LLM": "llm", "Result": "llm", "Config": "config", "ForerunError": "errors", "Sampling": "types"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - imported on first use, so that `forerun --help` need not load PyTorch
    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    return getattr(import_module(f"forerun.{_HOMES[name]}"), name)
