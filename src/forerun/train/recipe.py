"""Recipes: every choice of a training run as frozen values, read from TOML; what is not known is refused.

Does not: look at the data or the model folder a recipe names.
"""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from forerun.errors import TrainError, unknown

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped model; input and output embeddings are tied."""

    hidden_size: int = 320
    num_layers: int = 7
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    ffn_size: int = 896
    context: int = 1024


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate; a run ends at `steps` or after `minutes`, whichever is first (0: no limit)."""

    steps: int = 10_000
    minutes: float = 0.0
    warmup_steps: int = 100
    learning_rate: float = 2e-3
    final_fraction: float = 0.02
    # [progress, sequence length]: from this share of the run on, sequences of this length.
    lengths: tuple[tuple[float, int], ...] = ((0.0, 256),)


@dataclass(frozen=True)
class Optimise:
    """The optimiser and the batch it sees."""

    muon: bool = False  # Muon instead of AdamW for the matrices inside the layers
    tokens_per_step: int = 4096
    tokens_per_pass: int = 1024
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    bf16: bool = True


@dataclass(frozen=True)
class Distil:
    """Learn from a teacher's whole distribution; losses.distillation says how `share` and `overlap` weigh."""

    teacher: str = ""
    share: float = 0.9
    overlap: float = 0.0
    # File with texts of the teacher's own (forerun train written), and the share of the sequences that comes from it.
    written: str = ""
    written_share: float = 0.5


@dataclass(frozen=True)
class Report:
    """How often the run saves, measures and speaks."""

    save_minutes: float = 3.0
    validate_minutes: float = 5.0
    validation_windows: int = 8
    log_steps: int = 20
    prompts: tuple[str, ...] = ("Once upon a time",)


@dataclass(frozen=True)
class Recipe:
    """One training run."""

    name: str = "lm"
    seed: int = 0
    device: str = "auto"
    threads: int = 2
    vocab_size: int = 4096
    # Folder whose tokenizer.json is used instead of a new one ("": train one).
    tokenizer: str = ""
    # Model folder whose weights the run begins with ("": random ones); its tokenizer is then the one to name above.
    init: str = ""
    # Where the drafter lies, seen from the exported folder ("": none).
    companion: str = ""
    model: Shape = field(default_factory=Shape)
    schedule: Schedule = field(default_factory=Schedule)
    optimise: Optimise = field(default_factory=Optimise)
    distil: Distil = field(default_factory=Distil)
    report: Report = field(default_factory=Report)
    # Share of the sequences that comes from each source.
    mixture: dict[str, float] = field(default_factory=lambda: {"stories": 1.0})


def load(recipe: Path | str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A recipe from a file or by the name of a bundled one; overrides are dotted keys ("schedule.steps")."""
    path = find(recipe)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        message = f"recipe {str(path)!r} is not valid TOML ({error}); correct that line."
        raise TrainError(message) from error
    for key, value in (overrides or {}).items():
        set_key(table, key, value)
    result: Recipe = build(Recipe, table, f"recipe {path.name!r}")
    return result


def find(recipe: Path | str) -> Path:
    bundled = RECIPES / f"{recipe}.toml"
    path = bundled if bundled.is_file() else Path(recipe)
    if not path.is_file():
        raise TrainError(unknown("forerun train lm", "recipe", str(recipe), (p.stem for p in RECIPES.glob("*.toml"))))
    return path


def set_key(table: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            message = f"override {key!r} goes through {parent!r}, which is a single value; use {parent}=VALUE."
            raise TrainError(message)
    table[last] = value


def build(kind: type[Any], table: dict[str, Any], subject: str) -> Any:  # noqa: ANN401 (an instance of kind)
    """A frozen dataclass from a TOML table: unknown keys and wrong types are refused."""
    hints = get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise TrainError(unknown(subject, "key", key, hints))
    return kind(**{key: convert(hints[key], value, f"{subject}, key {key!r}") for key, value in table.items()})


def convert(kind: Any, value: Any, subject: str) -> Any:  # noqa: ANN401 (any annotation, any TOML value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return build(kind, value, subject)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if getattr(kind, "__origin__", None) is tuple and isinstance(value, list):
        return tuple(tuple(v) if isinstance(v, list) else v for v in value)
    plain = getattr(kind, "__origin__", kind)
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        message = f"{subject} must be {plain.__name__}, got {value!r}; correct the recipe or the override."
        raise TrainError(message)
    return value
