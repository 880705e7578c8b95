"""Use the official OpenAI client with a model of one's own: serve it, stream a text, read what speculation brought."""

import sys

from openai import OpenAI

from forerun import LLM
from forerun.server.run import in_background
from forerun.server.settings import Settings

model = LLM(sys.argv[1] if len(sys.argv) > 1 else "reference")
with (  # beside this program; `forerun serve` does the same in one of its own
    in_background(model, Settings(port=0)) as url,
    OpenAI(base_url=f"{url}/v1", api_key="none needed here") as client,
):
    name = client.models.list().data[0].id
    for part in client.completions.create(
        model=name, prompt="Once upon a time", temperature=0.8, seed=7, max_tokens=40, stream=True
    ):
        print(part.choices[0].text, end="", flush=True)
    end = part.choices[0]
    print(f"\n[{end.finish_reason}, {end.speculative_decoding_stats}]\n")

    answer = client.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": "What is a dog?"}],
        temperature=0,
        max_tokens=30,
        extra_body={"repetition_penalty": 1.1},  # every field of Sampling is understood
    )
    print(answer.choices[0].message.content)
