"""Decoders: what one step of one request is."""

from forerun.registry import Registry

DECODERS = Registry(
    "decoder",
    __name__,
    {
        "autoregressive": "autoregressive:AutoregressiveDecoder",
        "draft_verify": "draft_verify:DraftVerifyDecoder",
    },
)
