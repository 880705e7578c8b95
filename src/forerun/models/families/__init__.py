"""Families of dense decoders: each file maps one family's config.json and weight names to `models/transformer.py`."""

from forerun.registry import Registry

FAMILIES = Registry(
    "adapter",
    __name__,
    {
        "llama": "llama:adapt",
        "mistral": "mistral:adapt",
        "qwen2": "qwen2:adapt",
        "qwen3": "qwen3:adapt",
        "gemma2": "gemma2:adapt",
        "gemma3": "gemma3:adapt",
        "gemma3_text": "gemma3:adapt",
        "phi3": "phi3:adapt",
        "olmo2": "olmo2:adapt",
        "gpt2": "gpt2:adapt",
        "gpt_neox": "gpt_neox:adapt",
        "smollm3": "smollm3:adapt",
        "stablelm": "stablelm:adapt",
        "granite": "granite:adapt",
    },
)
