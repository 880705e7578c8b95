"""Train the small reference models that forerun ships: tokenizer, target, and a drafter distilled from it.

Does not: fine-tune models of others; train on more than one device.
"""
