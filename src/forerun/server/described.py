"""What bodies and answers look like, for /openapi.json.

Does not: check an answer; a test asks every route by this description and compares.
"""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

Json = dict[str, Any]
_PLACE = "#/components/schemas/{model}"
_PARTS: Json = {}  # what bodies refer to
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_NUMBER: Json = {"type": "number"}
_WORD: Json = {"type": ["string", "null"]}


def _object(**properties: Json) -> Json:
    """One that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(entry: Json) -> Json:
    return {"type": "array", "items": entry}


_STATS = _object(mean_acceptance_length=_NUMBER, num_draft_tokens=_COUNT, num_accepted_draft_tokens=_COUNT)
_USAGE = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_FACTS: Json = {
    "index": _COUNT,
    "finish_reason": _TEXT,
    "seed": {"type": "integer"},
    "speculative_decoding_stats": _STATS,
}
_HEAD: Json = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": _USAGE}
_MESSAGE = _object(role={"const": "assistant"}, content=_WORD)
COMPLETED = _object(**_HEAD, object={"const": "text_completion"}, choices=_list(_object(**_FACTS, text=_TEXT)))
CHATTED = _object(**_HEAD, object={"const": "chat.completion"}, choices=_list(_object(**_FACTS, message=_MESSAGE)))
MODEL = _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, max_model_len=_COUNT)
MODELS = _object(object={"const": "list"}, data=_list(MODEL))
TOKENS = _object(count=_COUNT, max_model_len=_COUNT, tokens=_list(_COUNT))
PROMPT = _object(prompt=_TEXT)
STATUS = _object(status=_TEXT)
VERSION = _object(version=_TEXT)
USED = _object(requests=_COUNT, prompt_tokens=_COUNT, completion_tokens=_COUNT, kv_token_seconds=_NUMBER)
TO_MODEL: Json = {"model": {"operationId": "model", "parameters": {"name": "$response.body#/data/0/id"}}}
TO_TEXT: Json = {"text": {"operationId": "detokenize", "requestBody": {"tokens": "$response.body#/tokens"}}}
TO_TOKENS: Json = {"tokens": {"operationId": "tokenize", "requestBody": {"prompt": "$response.body#/prompt"}}}
_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, param=_WORD, code=_WORD))


def answers(
    schema: Json, *, stream: bool = False, failing: bool = False, links: Json | None = None
) -> dict[int | str, Json]:
    """Of one route: 200 and errors; `stream`: or events; `failing`: 503 has the shape of 200; `links`: to others."""
    right = {"application/json": {"schema": schema}} | ({"text/event-stream": {}} if stream else {})
    found: dict[int | str, Json] = {
        200: {"description": "What was asked for.", "content": right, "links": links or {}},
        "default": {"description": "Why it is not.", "content": {"application/json": {"schema": _ERROR}}},
    }
    return found | ({503: {"description": "It is not.", "content": right}} if failing else {})


def body(kind: type[BaseModel]) -> Json:
    """What a route reads."""
    schema = kind.model_json_schema(ref_template=_PLACE)
    _PARTS.update(schema.pop("$defs", {}))
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


class DescribedApp(FastAPI):
    """Puts what bodies refer to where their references point."""

    def openapi(self) -> Json:
        document = super().openapi()
        document.setdefault("components", {}).setdefault("schemas", {}).update(_PARTS)
        return document
