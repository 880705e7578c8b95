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
        "staged": "staged:StagedDrafter",
        "cascade-drafting": "cascade_drafting:CascadeDraftingDrafter",
    },
)
