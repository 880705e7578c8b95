"""Drafters: guess a token tree."""

from forerun.registry import Registry

DRAFTERS = Registry(
    "drafter",
    __name__,
    {
        "none": "none:NoDrafter",
        "ngram": "ngram:NgramDrafter",
        "draft-model": "draft_model:DraftModelDrafter",
        "several": "several:SeveralDrafter",
        "other-vocab": "other_vocab:OtherVocabDrafter",
        # parallel decoding by the target itself
        "jacobi": "jacobi:JacobiDrafter",
        "lookahead": "lookahead:LookaheadDrafter",
        "tr-jacobi-msn": "tr_jacobi_msn:TrJacobiDrafter",
        "fastcot": "fastcot:FastCotDrafter",
        "parallel-branches": "parallel_branches:ParallelBranchesDrafter",
        # copies and memories of what was written
        "aggressive": "aggressive:AggressiveDrafter",
        "copyspec": "copyspec:CopySpecDrafter",
        "prediction": "prediction:PredictionDrafter",
        "token-recycling": "token_recycling:TokenRecyclingDrafter",
        "aded": "aded:AdedDrafter",
        "hierarchy-drafting": "hierarchy_drafting:HierarchyDrafter",
        "ouroboros": "ouroboros:OuroborosDrafter",
        # what was written before
        "rasd": "rasd:RasdDrafter",
        "rest": "rest:RestDrafter",
        "sam-decoding": "sam_decoding:SamDecodingDrafter",
        "suffix-decoding": "suffix_decoding:SuffixDecodingDrafter",
        "staged": "staged:StagedDrafter",
        "cascade-drafting": "cascade_drafting:CascadeDraftingDrafter",
        # by the target's hidden states
        "dresd": "dresd:DresdDrafter",
        # who of them
        "bandit": "bandit:BanditDrafter",
        # what a constraint leaves no choice about
        "grammar": "grammar:GrammarDrafter",
    },
)
