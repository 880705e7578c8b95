"""What shapes a server. The flags of `forerun serve` are these fields, beside those of Config.

Does not: shape the engine; that is Config's.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from forerun.config import check_fields, option
from forerun.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Everything about a server but its engine; what is out of range is refused with a sentence."""

    host: str = option("127.0.0.1", "address to listen at")
    port: int = option(8000, "port to listen at; 0: any free one", 0)
    served_model_name: str = option("", "what clients call the model; empty: its folder's name")
    api_key: tuple[str, ...] = option((), "a key that clients must send; may be repeated; others can see it in ps")
    api_key_file: str = option("", "file of such keys, one per line")
    insecure: bool = option(default=False, text="listen beyond this machine without a key")
    open_metrics: bool = option(default=False, text="/metrics needs no key")
    allow_host: tuple[str, ...] = option((), "a further Host that requests may name; may be repeated")
    allow_origin: tuple[str, ...] = option((), "a web origin whose pages may call this server; may be repeated")
    max_queue: int = option(256, "requests that may wait while others run", 0)
    max_per_key: int = option(0, "requests that one key may have running and waiting; 0: as many as there is room", 0)
    requests_per_minute: int = option(0, "requests that one key may send in a minute; 0: as many as it likes", 0)
    tokens_per_minute: int = option(0, "tokens that one key may have read and written in a minute; 0: any", 0)
    max_body: int = option(4 * 2**20, "bytes of a request's body", 1)
    max_n: int = option(8, "choices that one request may ask for", 1)
    read_timeout: float = option(30.0, "seconds in which a body must arrive, and headers, which get 10 at most", 0)
    queue_timeout: float = option(30.0, "seconds that a request may wait to run", 0)
    request_timeout: float = option(600.0, "seconds that a request may take", 0)
    write_timeout: float = option(30.0, "seconds after which a reader that reads nothing is given up", 0)
    drain_timeout: float = option(30.0, "seconds that running requests get at the end", 0)
    stall_timeout: float = option(5.0, "seconds that one step may take before /health fails", 0)
    replicas: str = option(
        "", "copies of the model, run by Ray: how many, or a range such as 1-4 that follows the load; empty: no Ray"
    )
    metrics_prefix: str = option("forerun", "first part of the metrics' names; vllm, for routers that know only those")

    def __post_init__(self) -> None:
        check_fields(self)
        fewest, most = self.span
        if not 1 <= fewest <= most:
            raise ConfigError(f"replicas is {self.replicas!r}; give a number of at least 1, or a range such as 1-4.")
        if not self.metrics_prefix.isidentifier():
            raise ConfigError(f"metrics_prefix is {self.metrics_prefix!r}; give letters, digits and underscores.")
        if not self.loopback and not self.insecure and not self.keys():
            place = f"host {self.host!r} can be reached from other machines, and there is no API key"
            raise ConfigError(f"{place}; give --api-key-file, or --insecure to serve everybody.")

    @property
    def span(self) -> tuple[int, int]:
        """Fewest and most replicas; (0, 0) where the text is neither a number nor a range."""
        fewest, dash, most = (self.replicas or "1").partition("-")
        if not fewest.isdecimal() or not (most.isdecimal() if dash else not most):
            return 0, 0
        return int(fewest), int(most or fewest)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def keys(self) -> tuple[str, ...]:
        """Every API key; ConfigError where the file cannot be read or holds none."""
        if not self.api_key_file:
            return tuple(key for key in self.api_key if key)
        try:
            lines = Path(self.api_key_file).expanduser().read_text(encoding="utf-8").split()
        except (OSError, UnicodeError) as problem:
            subject = f"api_key_file {self.api_key_file!r} cannot be read ({type(problem).__name__})"
            raise ConfigError(f"{subject}; name a text file with one key per line.") from problem
        if not lines:
            raise ConfigError(f"api_key_file {self.api_key_file!r} has no key; write one per line.")
        return (*self.api_key, *lines)
