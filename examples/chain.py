"""A template, a model and a parser in a row, as chains are built; any framework that takes a base URL fits.

LangChain's model is `ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="reference")`; the rest stays.
"""

import json

import openai

from forerun import LLM
from forerun.server.run import in_background
from forerun.server.settings import Settings

ANIMAL = {
    "type": "object",
    "properties": {"name": {"enum": ["dog", "cat", "bird"]}, "colour": {"enum": ["red", "blue"]}},
    "required": ["name", "colour"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "animal", "schema": ANIMAL}}

with in_background(LLM("reference"), Settings(port=0)) as url:  # or: forerun serve, elsewhere
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")

    def model(prompt: str) -> str:
        extra = {"response_format": FORM}
        found = client.completions.create(model="reference", prompt=prompt, max_tokens=60, seed=1, extra_body=extra)
        return found.choices[0].text

    value = {"size": "little"}
    for step in ("Once upon a time there was a {size} animal. It was ".format_map, model, json.loads):
        value = step(value)
print(value["name"], value["colour"])
