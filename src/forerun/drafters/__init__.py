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
    },
)
