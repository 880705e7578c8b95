"""The engines that are measured beside forerun, and how each calls weights of about so many bits.

One file per engine; each works in an environment that may not have forerun.
Does not: open, convert or install anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DTYPES = ("int8", "int4", "bf16")


@dataclass(frozen=True)
class Peer:
    """An engine, and how it calls weights of about so many bits."""

    name: str
    file: str  # in this folder
    packages: str  # what pip installs for it
    variants: Mapping[str, tuple[str, ...]]  # dtype -> its own names; the first word names the converted files
    converts: bool = True

    def remedy(self, module: str, python: str) -> str:
        """What to do about a module that an interpreter lacks."""
        return f"no module {module!r} for {python}; {python} -m pip install {self.packages}"


@dataclass(frozen=True)
class Entrant:
    """One engine with one kind of weights."""

    peer: Peer
    dtype: str
    variant: str

    @property
    def name(self) -> str:
        return f"{self.peer.name} {self.variant}"

    @property
    def kind(self) -> str:
        """Which converted files it reads."""
        return self.variant.split()[0]

    @property
    def leads(self) -> bool:
        """Whether this is the variant that stands for its engine at these bits."""
        return self.variant == self.peer.variants[self.dtype][0]


OWN = Peer(
    "forerun",
    "own.py",
    "forerun",
    {"int8": ("int8", "w8a8"), "int4": ("int4",), "bf16": ("auto", "bf16")},
    converts=False,
)
PEERS = (
    Peer(
        "llama.cpp",
        "llamacpp.py",
        "llama-cpp-python gguf numpy",
        {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_K_M"), "bf16": ("BF16",)},
    ),
    Peer(
        "openvino",
        "openvino.py",
        "openvino openvino-genai optimum-intel nncf",
        {"int8": ("int8 SDPA", "int8 PA"), "int4": ("int4 SDPA", "int4 PA")},
    ),
    Peer(
        "onnxruntime-genai",
        "ort.py",
        "onnxruntime-genai onnx onnx-ir torch transformers",
        {"int8": ("int8",), "int4": ("int4",)},
    ),
    Peer("transformers", "hf.py", "transformers torch", {"bf16": ("bf16",)}, converts=False),
)


def entrants(peers: Sequence[Peer], dtypes: Sequence[str]) -> list[Entrant]:
    """Every variant of the engines, by dtype."""
    return [
        Entrant(peer, dtype, variant) for dtype in dtypes for peer in peers for variant in peer.variants.get(dtype, ())
    ]
