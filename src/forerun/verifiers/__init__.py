"""Verifiers: judge the tree."""

from forerun.registry import Registry

VERIFIERS = Registry(
    "verifier",
    __name__,
    {
        "match": "match:MatchVerifier",
        "rejection": "rejection:RejectionVerifier",
    },
)
