"""What a request may hold: OpenAI's fields, and every field of Sampling under its own name.

A field that nobody knows is refused with the nearest one; one that is known and cannot be done is refused with what
to do instead. Ranges are those of Sampling, which checks them itself.
Does not: hold a default of Sampling.
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, create_model

from forerun.errors import RequestError, unknown
from forerun.models.tokenizer import Message
from forerun.server.refusal import Refusal, invalid
from forerun.server.strict import check
from forerun.types import Constraint, Sampling

Stop = Annotated[str, Field(max_length=256)]
Texts = Annotated[list[str], Field(fail_fast=True)]  # a sentence about one entry is enough: many take long to write
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}  # of which the model knows the largest
Tokens = Annotated[list[int], Field(fail_fast=True), WithJsonSchema(_IDS)]
_MOST = {"bad_words": 1000, "stop_token_ids": 1000, "allowed_tokens": 2**18}  # entries
_CHAT_ONLY = "tools are called in chats; use /v1/chat/completions"
_OLDER = "functions are older than tools; use tools and tool_choice"
_CANNOT = {  # field of OpenAI's interface that is not here -> what to do instead
    "tools": _CHAT_ONLY,
    "tool_choice": _CHAT_ONLY,
    "functions": _OLDER,
    "function_call": _OLDER,
    "suffix": "text before a suffix cannot be filled in; leave suffix out",
    "audio": "the model writes text only; leave audio out",
    "modalities": "the model writes text only; leave modalities out",
    "web_search_options": "nothing is searched on the web; leave web_search_options out",
    "reasoning_effort": "how long the model thinks cannot be set; leave reasoning_effort out",
    "verbosity": "how much the model writes is set by max_tokens; leave verbosity out",
    "chat_template": "the chat template is the model's own; leave chat_template out",
}
_HARMLESS: tuple[Any, ...] = (None, "", "auto", "none", "default", [], {}, ["text"])  # what asks for none of these
_WITHOUT_EFFECT = {  # notes of the caller, and wishes that change no text
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    "refusal",
}


def _closed(schema: dict[str, Any]) -> None:
    """The description of a body: other fields are refused, as Body does itself to say which is nearest."""
    schema["additionalProperties"] = False
    schema["properties"] |= {name: {} for name in sorted(_WITHOUT_EFFECT - schema["properties"].keys())}


class Body(BaseModel):
    """A JSON object whose fields are all known."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, json_schema_extra=_closed)
    called: ClassVar[str] = "the request"

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401 - pydantic's
        for name, value in (self.model_extra or {}).items():
            if name in _CANNOT:
                if value not in _HARMLESS:
                    raise invalid(f"{name} is given, and {_CANNOT[name]}.", name)
            elif name not in _WITHOUT_EFFECT:
                known = {f.alias or own for own, f in type(self).model_fields.items()}
                raise invalid(unknown(self.called, "field", name, known), name[:64])


class StreamOptions(Body):
    called: ClassVar[str] = "stream_options"
    include_usage: bool = False
    continuous_usage_stats: bool = False  # with that: in every part
    include_steps: bool = False


class Part(Body):
    called: ClassVar[str] = "a part of a message"
    type: str
    text: str | None = None


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, str):
        return content
    for part in content or ():
        if part.type != "text" or part.text is None:
            raise invalid(f"there is a part of type {part.type[:32]!r}; send parts of text only.")
    return "".join(part.text or "" for part in content or ())


class Function(Body):
    """A function that the model may call."""

    called: ClassVar[str] = "a function"
    name: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # arguments keep to the schema wherever the text is held to calls

    def said(self) -> dict[str, Any]:
        """As a chat template reads it."""
        values = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {name: value for name, value in values.items() if value is not None}


class Tool(Body):
    called: ClassVar[str] = "a tool"
    type: Literal["function"]
    function: Function


class Named(Body):
    called: ClassVar[str] = "a function"
    name: str


class Choice(Body):
    """One function that must be called."""

    called: ClassVar[str] = "tool_choice"
    type: Literal["function"]
    function: Named


class CalledFunction(Body):
    called: ClassVar[str] = "a called function"
    name: str
    arguments: str


class ToolCall(Body):
    """A call that the model made earlier."""

    called: ClassVar[str] = "a tool call"
    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def message(self) -> dict[str, Any]:
        """As a chat template reads it: arguments are an object."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise invalid("a tool call has arguments that are no JSON object; send them as the model wrote them.")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id or "", "type": self.type, "function": function}


class Turn(Body):
    """One message of a conversation."""

    called: ClassVar[str] = "a message"
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def message(self) -> Message:
        """As a chat template reads it."""
        calls = [call.message() for call in self.tool_calls or ()]
        rest = {"name": self.name, "tool_calls": calls or None, "tool_call_id": self.tool_call_id}
        given = {name: value for name, value in rest.items() if value is not None}
        return {"role": self.role, "content": _text(self.content), **given}


class Prediction(Body):
    """What the caller expects the output to be."""

    called: ClassVar[str] = "prediction"
    type: Literal["content"]
    content: str | list[Part]


class JsonSchema(Body):
    called: ClassVar[str] = "json_schema"
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(Body):
    called: ClassVar[str] = "response_format"
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    called: ClassVar[str] = "structured_outputs"
    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None


class Wish(Body):
    """types.Constraint."""

    called: ClassVar[str] = "constraint"
    name: str
    text: str = ""


class _Generation(Body):
    """What both endpoints understand; `model` is any name that the server goes by."""

    model: str | None = None
    n: int = Field(1, ge=1)
    prompt_logprobs: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    constraint: Wish | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None

    @property
    def drawn(self) -> int:
        """Texts of each prompt that are written; `n` of them are told."""
        return self.n

    @property
    def scored(self) -> int | None:
        """Sampling.prompt_logprobs."""
        return self.prompt_logprobs

    def report(self) -> int | None:
        """Sampling.logprobs."""
        raise NotImplementedError

    def sampling(self) -> Sampling:
        """As the engine wants it; Refusal for what it refuses, with the field's name."""
        held = constraint(self)
        if self.stream and self.scored is not None:
            raise invalid("logprobs of a prompt are told with the whole text; leave stream or them out.", "stream")
        values = {f.name: getattr(self, f.name) for f in fields(Sampling) if f.name in type(self).model_fields}
        values["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        values["logprobs"], values["prompt_logprobs"] = self.report(), self.scored
        values["constraint"] = Constraint(*held) if held is not None else None
        try:
            return Sampling(**{name: value for name, value in values.items() if value is not None})
        except RequestError as problem:
            raise named(problem) from problem

    def expected(self) -> str:
        """The prediction's text."""
        return _text(self.prediction.content) if self.prediction is not None else ""


class CompletionFields(_Generation):
    """`/v1/completions`."""

    prompt: str | Texts | Tokens | Annotated[list[Tokens], Field(fail_fast=True)]
    echo: bool = False
    best_of: int | None = None
    logprobs: int | None = None

    def prompts(self) -> Sequence[str | list[int]]:
        """Each one on its own."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [t for t in self.prompt if isinstance(t, int)]
        return [tokens] if tokens or not self.prompt else [p for p in self.prompt if not isinstance(p, int)]

    @property
    def drawn(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def scored(self) -> int | None:
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs

    def report(self) -> int | None:
        if self.drawn < self.n:
            raise invalid(f"best_of is {self.best_of} and n is {self.n}; ask for no more than there are.", "best_of")
        if self.drawn > self.n and self.stream:
            raise invalid(
                "which texts are the best is known when all have ended; leave stream or best_of out.", "best_of"
            )
        return 0 if self.drawn > self.n and self.logprobs is None else self.logprobs


class ChatFields(_Generation):
    """`/v1/chat/completions`."""

    messages: list[Turn] = Field(min_length=1, fail_fast=True)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    tools: list[Tool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None

    def functions(self) -> list[dict[str, Any]]:
        """What may be called; Refusal where a choice or a name fits none of them."""
        given = [tool.function.said() for tool in self.tools or ()]
        names = [function["name"] for function in given]
        if len(set(names)) < len(names):
            raise invalid("tools has two functions of one name; give each a name of its own.", "tools")
        if self.tool_choice == "required" and not given:
            raise invalid("tool_choice is required and there are no tools; give tools.", "tool_choice")
        if isinstance(self.tool_choice, Choice) and self.tool_choice.function.name not in names:
            raise invalid(unknown("tools", "function", self.tool_choice.function.name, names), "tool_choice")
        return given if self.tool_choice != "none" else []

    def report(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs is given without logprobs; set logprobs to true.", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def sampling(self) -> Sampling:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return super().sampling()

    max_tokens: int | None = None


class TokenizeBody(Body):
    """A text or a conversation to be read."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """Tokens to be spelled."""

    model: str | None = None
    tokens: Tokens


def _with_sampling(base: type[_Generation], called: str) -> Any:  # noqa: ANN401 - a type that is made here
    """The same, with every field of Sampling that it does not say in its own way."""
    hints, names = get_type_hints(Sampling), [f.name for f in fields(Sampling) if f.name not in base.model_fields]
    lists = {name: Annotated[hints[name], Field(max_length=most, fail_fast=True)] for name, most in _MOST.items()}
    lists["logit_bias"] = Annotated[dict[int, float], Field(max_length=300)]
    rest: dict[str, Any] = {name: ({**hints, **lists}[name] | None, None) for name in names}
    return create_model(called, __base__=base, **rest)


COMPLETION: type[CompletionFields] = _with_sampling(CompletionFields, "CompletionBody")
CHAT: type[ChatFields] = _with_sampling(ChatFields, "ChatBody")
_NAMES = {*COMPLETION.model_fields, *CHAT.model_fields}
B = TypeVar("B", bound=Body)


def read(kind: type[B], raw: bytes) -> B:
    """The body of a request; Refusal, with the field's name, for what is not one."""
    try:
        check(raw)
        return kind.model_validate_json(raw)
    except ValidationError as problem:
        raise _wrong(problem) from None
    except ValueError as problem:
        raise invalid(f"the body is not JSON that can be read ({problem}); send an object.") from None


def _wrong(problem: ValidationError) -> Refusal:
    found = problem.errors(include_url=False, include_context=False, include_input=False)
    if not found[0]["loc"]:
        return invalid(f"the body is not JSON that can be read ({found[0]['msg']}); send an object.")
    place = str(found[0]["loc"][0])
    said = dict.fromkeys(error["msg"] for error in found if error["loc"][0] == place)
    return invalid(f"{place} cannot be read ({'; '.join(said)}); correct or leave it out.", place)


def named(problem: RequestError) -> Refusal:
    """The same error as an answer; its sentence begins with the field, where it is one field's."""
    if isinstance(problem, Refusal):
        return problem
    first = str(problem).split(" ", 1)[0]
    return invalid(str(problem), first if first in _NAMES else None)


def constraint(body: _Generation) -> tuple[str, str] | None:
    """What the output is held to, as (name, text); None where it is free. Refusal where two things are asked for."""
    form, outputs = body.response_format, body.structured_outputs or StructuredOutputs()
    asked: list[tuple[str, Any]] = [
        ("json_object", "" if form is not None and form.type == "json_object" else None),
        ("json_object", "" if outputs.json_object else None),
        *(("json_schema", value) for value in (outputs.json_, body.guided_json)),
        *(("regex", value) for value in (outputs.regex, body.guided_regex)),
        *(("choice", value) for value in (outputs.choice, body.guided_choice)),
        *(("lark", value) for value in (outputs.grammar, body.guided_grammar)),
    ]
    if form is not None and form.type == "json_schema":
        if form.json_schema is None:
            raise invalid("response_format has the type json_schema and no json_schema; give it.", "response_format")
        asked.append(("json_schema", form.json_schema.schema_))
    if body.constraint is not None:
        if ":" in body.constraint.name:
            raise invalid(
                "constraint has a name with options, which are the server's; name it without options.", "constraint"
            )
        asked.append((body.constraint.name, body.constraint.text))
    given = [(name, v if isinstance(v, str) else json.dumps(v)) for name, v in asked if v is not None]
    if len(given) > 1:
        raise invalid(f"the output is held to {' and '.join(name for name, _ in given)}; give one of them.")
    return given[0] if given else None
