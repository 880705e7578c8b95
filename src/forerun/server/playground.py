"""The page at `/`: a chat and a completion whose tokens show who guessed them. Its files stand in `page/`.

They are read once and hold no secret, so they need no key. The page may load from here only, and runs nothing that is
not one of these files.
Does not: know the engine; the page asks the other routes, like any client.
"""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: path.read_bytes() for path in (Path(__file__).parent / "page").iterdir()}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PAGE = ("/", *(f"/page/{name}" for name in _FILES))  # where they are found


def served(name: str) -> Response:
    """One of the files."""
    if name not in _FILES:
        raise HTTPException(404)
    return Response(_FILES[name], media_type=_KINDS[Path(name).suffix], headers=_HEADERS)
