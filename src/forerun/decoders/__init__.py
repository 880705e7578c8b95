"""Decoders: what one step of one request is."""

from forerun.registry import Registry

DECODERS = Registry(
    "decoder",
    __name__,
    {
        "autoregressive": "autoregressive:AutoregressiveDecoder",
        "draft_verify": "draft_verify:DraftVerifyDecoder",
        "speculative-contrastive": "speculative_contrastive:SpeculativeContrastiveDecoder",
        "speculative-ensemble": "speculative_ensemble:SpeculativeEnsembleDecoder",
        "fs-gen": "fs_gen:FsGenDecoder",
        "entropy-adaptive": "entropy_adaptive:EntropyAdaptiveDecoder",
        "lookahead-reasoning": "lookahead_reasoning:LookaheadReasoningDecoder",
        "generative-fusion": "generative_fusion:GenerativeFusionDecoder",
        "exact-extract": "exact_extract:ExactExtractDecoder",
        "asap-gad": "asap_gad:AsapDecoder",
        "dynamic-beam-allocation": "dynamic_beam_allocation:DynamicBeamAllocationDecoder",
    },
)
