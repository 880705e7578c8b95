"""Verifiers: judge the tree."""

from forerun.registry import Registry

VERIFIERS = Registry(
    "verifier",
    __name__,
    {
        "match": "match:MatchVerifier",
        "rejection": "rejection:RejectionVerifier",
        "spectr": "spectr:SpecTrVerifier",
        "canonical-multidraft": "canonical_multidraft:CanonicalVerifier",
        "optimal-multidraft": "optimal_multidraft:OptimalVerifier",
        "block": "block:BlockVerifier",
        "traversal": "traversal:TraversalVerifier",
        "lenient": "lenient:LenientVerifier",
        "relaxed": "relaxed:RelaxedVerifier",
        "typical": "typical:TypicalVerifier",
        "bild": "bild:BildVerifier",
        "reward-guided": "reward_guided:RewardGuidedVerifier",
        "judge": "judge:JudgeVerifier",
    },
)
