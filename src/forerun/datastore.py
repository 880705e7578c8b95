"""`forerun datastore build`: text files -> one datastore for the drafters that retrieve from a corpus.

Does not: fetch texts; split files into documents: each file is one, and nothing is continued across two.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun import tokenfile
from forerun.corpus import KIND
from forerun.errors import ConfigError
from forerun.kernels.suffixes import END, build
from forerun.models.spelling import Speller
from forerun.models.tokenizer import Tokenizer


def make(files: Sequence[Path], model: str, out: Path) -> dict[str, Any]:
    """Write the datastore; how large it became."""
    tokenizer = Tokenizer.from_folder(model)
    documents = [tokenizer.encode(_text(file), bos=False) for file in files]
    if not any(documents):
        raise ConfigError("the files hold no text, so there is nothing to retrieve; name at least one that does.")
    tokens = np.array([token for document in documents if document for token in (*document, END)], np.int32)
    facts = {"tokenizer": tokenfile.mark_of(Speller(tokenizer)), "model": model}
    tokenfile.write(out, KIND, facts, [tokens, build(tokens)], "name another file with --out")
    return {"documents": len(documents), "tokens": sum(map(len, documents)), "bytes": out.stat().st_size}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"cannot read {str(file)!r} ({problem.strerror}); name files that exist.") from problem
    except UnicodeDecodeError as problem:
        message = f"{str(file)!r} is not UTF-8 (at byte {problem.start})"
        raise ConfigError(f"{message}; convert it, as with iconv -t UTF-8.") from problem
