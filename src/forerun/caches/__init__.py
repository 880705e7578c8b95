"""Caches: remember, branch, roll back."""

from forerun.registry import Registry

CACHES = Registry(
    "cache",
    __name__,
    {
        "contiguous": "contiguous:ContiguousCache",
        "paged": "paged:PagedCache",
    },
)
