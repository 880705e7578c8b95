"""Granite 3: Llama's shape with multipliers on embedding, attention, residuals and logits."""

from dataclasses import replace

from forerun.models.families import llama
from forerun.models.recipe import Recipe, Settings


def adapt(s: Settings) -> Recipe:
    recipe = llama.adapt(s)
    config = replace(
        recipe.config,
        embed_scale=s.number("embedding_multiplier", 1.0),
        attention_scale=s.number("attention_multiplier", 1.0),
        residual_scale=s.number("residual_multiplier", 1.0),
        logit_scale=1 / s.positive("logits_scaling", 1.0),
    )
    return replace(recipe, config=config)
