"""What a planner is: how many nodes each request may draft in this step. Zero is always allowed."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from forerun.member import Member
from forerun.types import Context, Setup


class Planner(Member):
    """Shares the step's verification budget among requests."""

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes per request; at most `room` in total. The engine cuts further where a text is about to end."""
