"""Stream one text; every event carries the text that became certain, and who guessed its tokens."""

import sys

from forerun import LLM, Sampling

llm = LLM(sys.argv[1] if len(sys.argv) > 1 else "reference")
sources: dict[str, int] = {}
for event in llm.stream("Once upon a time", Sampling(temperature=0.8, seed=7, max_tokens=60)):
    print(event.text, end="", flush=True)
    for emission in event.emissions:
        sources[emission.source] = sources.get(emission.source, 0) + 1
print(f"\n{sources}")
