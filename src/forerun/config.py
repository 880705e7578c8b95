"""One frozen Config, and the only parser of keywords, flags, files and method spellings.

A method is spelled `name` or `name:option=value,option=value`. Every default stands once: here, or in the method's
own Options. What is not known is refused with the nearest name that is.
A config file is TOML whose keys are the fields of Config; what is said beside it, by keyword or flag, goes first.
Does not: read configuration from file names or the environment.
"""

import math
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError, RequestError, unknown
from forerun.registry import Registry
from forerun.types import Constraint, Sampling


@dataclass(frozen=True, slots=True)
class Choice:
    """A method and its options, chosen from one family's table."""

    family: str
    name: str
    member: Any
    options: Any

    @property
    def spelling(self) -> str:
        """The text that `choose` turns back into this choice; options at their defaults are left out."""
        given = [
            f"{f.name}={_write(v)}" for f in fields(self.options) if (v := getattr(self.options, f.name)) != f.default
        ]
        return f"{self.name}:{','.join(given)}" if given else self.name


def choose(registry: Registry, spelled: str, extra: Mapping[str, Any] | None = None) -> Choice:
    """The member that `spelled` names, with its options; `extra` are further options, already typed."""
    name, _, rest = spelled.partition(":")
    member = registry[name.strip()]
    subject, hints = f"{registry.family} {name.strip()!r}", typing.get_type_hints(member.Options)
    values: dict[str, Any] = {}
    for part in filter(None, _split(rest)):
        key, equals, text = part.partition("=")
        if not equals:
            raise ConfigError(f"{subject} got {part!r}; write options as name=value, with commas between.")
        if key.strip() not in hints:
            raise ConfigError(unknown(subject, "option", key.strip(), hints))
        values[key.strip()] = _read(text.strip(), hints[key.strip()], f"{subject}: option {key.strip()!r}")
    for key, value in (extra or {}).items():
        if key not in hints:
            every = {*hints, *(f.name for f in fields(Config))}
            raise ConfigError(unknown(f"an engine with {subject}", "option", key, every))
        values[key] = value
    return Choice(registry.family, name.strip(), member, member.Options(**values))


def _split(text: str) -> list[str]:
    """Split at commas outside brackets, so that an option may itself hold a spelled method."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _read(text: str, hint: Any, subject: str) -> Any:  # noqa: ANN401 - whatever the option's type is
    """Text -> the option's type; ConfigError names the type that was expected."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in inner:
        real = next(t for t in inner if t is not type(None))
        return None if text == "none" else _read(text, real, subject)
    if origin is tuple:
        items = filter(None, _split(text.removeprefix("[").removesuffix("]")))
        return tuple(_read(item.strip(), inner[0], subject) for item in items)
    readers: dict[Any, Callable[[str], Any]] = {bool: _read_bool, int: int, float: float, str: _unwrap}
    try:
        return readers[hint](text)
    except ValueError:
        raise ConfigError(f"{subject} is {text!r}; give a value of type {hint.__name__}.") from None


def _read_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _unwrap(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _write(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, tuple):
        return f"[{','.join(_write(item) for item in value)}]"
    if isinstance(value, str):
        return f"({value})" if set(value) & set(",()[]{}") else value
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def option(default: Any, text: str, least: float = -math.inf) -> Any:  # noqa: ANN401 - a dataclass field
    """A Config field with its help text and least value."""
    return field(default=default, metadata={"help": text, "least": least})


def check_fields(values: Any) -> None:  # noqa: ANN401 - a dataclass whose fields are `option`s
    """Raise ConfigError unless every field has the type of its default, and its least value."""
    for f in fields(values):
        value, least, kind = getattr(values, f.name), f.metadata["least"], type(f.default)
        whole = kind is float and isinstance(value, int)
        if isinstance(value, bool) is not (kind is bool) or not (whole or isinstance(value, kind)):
            raise ConfigError(f"{f.name} is {value!r}; give a value of type {kind.__name__}.")
        if isinstance(value, (int, float)) and not value >= least:
            raise ConfigError(f"{f.name} is {value}; give at least {least:g}.")


@dataclass(frozen=True)
class Config:
    """Everything that shapes an engine. The command line's flags are these fields."""

    model: str = option("reference", "folder of the target, or 'reference' for the bundled one")
    drafter: str = option("auto", "who guesses; auto: the model's own companion, else ngram")
    verifier: str = option("match", "how drafts are judged")
    planner: str = option("auto", "how many nodes are drafted, and for whom")
    decoder: str = option("draft_verify", "what one step of a request is")
    scheduler: str = option("fcfs", "which requests run in a step")
    cache: str = option("contiguous", "how keys and values are kept")
    dtype: str = option(
        "auto",
        "auto (rounds nothing on a CPU), fp32, bf16, fp16, int8, w8a8 (activations in 8 bits too), int4, or fastest: "
        "w8a8 where it runs",
    )
    kv_dtype: str = option(
        "auto", "keys and values: auto, fp32, bf16 or int8; auto is bf16 beside rounded weights on a CPU, else dtype"
    )
    device: str = option("auto", "auto, cpu or cuda")
    passes: str = option(
        "auto", "auto, ragged, padded (fixed shapes; graphs on a GPU), or invariant: padded, each row's bits its own"
    )
    attention: str = option("sdpa", "sdpa or flex: what padded passes attend with")
    threads: int = option(0, "threads of one pass; 0: one per core, or one in all for a model below 16 MiB", 0)
    tensor_parallel: int = option(1, "processes that share the target's layers, each with a part of every one", 1)
    max_requests: int = option(8, "requests that run at the same time", 1)
    max_step_tokens: int = option(512, "tokens that one pass may hold, drafts included", 1)
    context_length: int = option(0, "longest prompt and output together; 0: what the model was trained for", 0)
    profiles: str = option("auto", "where measured costs are kept: auto (the user's cache folder), off, or a folder")
    draft_store: str = option("", "folder in which drafters keep what they learn; empty: it goes with the engine")
    draft_timeout: float = option(10.0, "seconds after which a drafter that does not answer is given up", 0)

    def __post_init__(self) -> None:
        check_fields(self)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(unknown("Config", f"value of {name}", getattr(self, name), allowed))

    @classmethod
    def parse(cls, **keywords: Any) -> "tuple[Config, dict[str, Any]]":  # noqa: ANN401
        """A Config, and the keywords that it does not know: these are options of the drafter. `config` names a file."""
        known, path = {f.name for f in fields(cls)}, keywords.pop("config", None)
        if path is not None:
            keywords = {**read_file(path), **keywords}
        rest = {key: value for key, value in keywords.items() if key not in known}
        return cls(**{key: value for key, value in keywords.items() if key in known}), rest


def read_file(path: str | Path) -> dict[str, Any]:
    """The keywords that a config file holds; ConfigError where it cannot be read, or has others than Config's."""
    subject, known = f"config file {str(path)!r}", {f.name for f in fields(Config)}
    try:
        values = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"{subject} cannot be read ({problem.strerror}); name one that is there.") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{subject} is not UTF-8; save it as a text in UTF-8.") from problem
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f'{subject} is not TOML ({problem}); write lines such as drafter = "ngram".') from problem
    for name in values:
        if name not in known:
            raise ConfigError(unknown(subject, "key", name, known))
    return values


DTYPES = ("auto", "fp32", "float32", "bf16", "bfloat16", "fp16", "float16", "int8", "w8a8", "int4", "fastest")
KV_DTYPES = ("auto", "fp32", "bf16", "int8")

PADDED = ("padded", "invariant")
CHOICES = {  # field of Config -> its values
    "dtype": DTYPES,
    "kv_dtype": KV_DTYPES,
    "device": ("auto", "cpu", "cuda"),
    "passes": ("auto", "ragged", *PADDED),
    "attention": ("sdpa", "flex"),
}

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "epsilon_cutoff": (0.0, 1.0),
    "eta_cutoff": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "no_repeat_ngram": (0, 2**20),
    "min_tokens": (0, 2**31 - 1),
    "max_tokens": (1, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
    "seed": (-(2**63), 2**64 - 1),
}
_POSITIVE = ("top_p", "typical_p")  # zero would forbid every token
_SEVERAL = ("bad_words", "allowed_tokens", "stop", "stop_token_ids")  # of which one alone may be given, or a list


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever somebody gave
    """Numbers and arrays of numpy and of PyTorch as Python's own; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _settled(value: Any) -> Any:  # noqa: ANN401
    value = plain(value)
    return tuple(map(_settled, value)) if isinstance(value, (list, tuple)) else value


def settle(sampling: Sampling) -> None:
    """Make plain numbers and tuples of what was given for the fields, which may be a list, an array or one text."""
    for name, given in [*vars(sampling).items()]:
        value = plain(given)
        if name in _SEVERAL and value not in (None, ()):
            value = (value,) if isinstance(value, (str, int)) else value
            if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
                raise RequestError(f"{name} is {given!r:.60}; give a list.")
            value = tuple(map(_settled, value))
        elif name == "logit_bias" and isinstance(value, Mapping):
            value = {plain(token): plain(bias) for token, bias in value.items()}
        if value is not given:
            object.__setattr__(sampling, name, value)


def check_sampling(sampling: Sampling) -> None:
    """Raise RequestError for the first field that is out of range, with the range."""
    for f in fields(Sampling):
        value = getattr(sampling, f.name)
        if f.name not in _RANGES or value is None:
            continue
        low, high = _RANGES[f.name]
        whole = f.default is not MISSING and isinstance(low, int)
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high or (f.name in _POSITIVE and value == 0):
            kind = "a whole number" if whole else "a number"
            raise RequestError(f"{f.name} is {value!r}; give {kind} from {low} to {high}.")
    if any(not isinstance(s, str) or not s for s in sampling.stop):
        raise RequestError("a stop string is empty or not text; give texts of at least one character.")
    if any(not isinstance(word, tuple) or not word for word in sampling.bad_words):
        raise RequestError("a bad word has no tokens; give at least one token id per word, as a list of lists.")
    wish = sampling.constraint
    if wish is not None and not (isinstance(wish, Constraint) and {type(wish.name), type(wish.text)} == {str}):
        raise RequestError(f"constraint is {wish!r:.60}; give a Constraint of a name and a text.")
    if not isinstance(sampling.logit_bias, Mapping):
        raise RequestError(f"logit_bias is {sampling.logit_bias!r:.60}; give a dictionary from token ids to numbers.")
    biases = sampling.logit_bias.values()
    if any(isinstance(b, bool) or not isinstance(b, (int, float)) or math.isnan(b) or b == math.inf for b in biases):
        raise RequestError("a logit bias is not a number below infinity; use -inf to forbid a token.")


def check_tokens(
    sampling: Sampling, prompt: typing.Sequence[int], vocab: int, prediction: typing.Sequence[int] = ()
) -> None:
    """Raise RequestError unless every token id that a request names exists."""
    words = [token for word in sampling.bad_words for token in word]
    named = {"the prompt": prompt, "the prediction": prediction}
    named |= {"bad_words": words, "logit_bias": list(sampling.logit_bias)}
    named |= {"allowed_tokens": sampling.allowed_tokens or (), "stop_token_ids": sampling.stop_token_ids}
    for where, tokens in named.items():
        bad = [t for t in tokens if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocab]
        if bad:
            raise RequestError(
                f"token id {bad[0]!r} in {where} does not exist; use whole numbers from 0 to {vocab - 1}."
            )
