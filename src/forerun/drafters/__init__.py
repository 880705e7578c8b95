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
        # what was written before
        "rasd": "rasd:RasdDrafter",
        "rest": "rest:RestDrafter",
        "sam-decoding": "sam_decoding:SamDecodingDrafter",
        "suffix-decoding": "suffix_decoding:SuffixDecodingDrafter",
    },
)
