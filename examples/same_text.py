"""With the verifier `match`, even a sampled text is the very text of plain decoding with the same seed."""

import sys

from forerun import LLM, Sampling

fast = LLM(sys.argv[1] if len(sys.argv) > 1 else "reference", verifier="match")
sampling = Sampling(temperature=1.0, top_p=0.95, seed=11, max_tokens=60)
ours = fast.generate("Once upon a time", sampling)[0]
plain = fast.plain().generate("Once upon a time", sampling)[0]
print(ours.text)
print(f"steps: {ours.stats.steps} instead of {plain.stats.steps}")
if ours.tokens != plain.tokens:
    sys.exit("the texts differ, which must not happen")
