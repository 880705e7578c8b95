"""What the target said before: its likeliest tokens after a token, of every node that it read in one request.

Does not: tell texts apart that end in the same token; look at anything but the likeliest token of a row.
"""

from dataclasses import dataclass, field, replace

from forerun.types import Context, Outcome


@dataclass(eq=False, slots=True)
class Recall:
    """A memory for trees that begin with `count` such tokens; nothing is kept where that is 0."""

    count: int
    said: dict[int, dict[int, None]] = field(default_factory=dict)  # after a token; the newest last

    def learn(self, context: Context, outcome: Outcome) -> None:
        """The rows of a judged draft, rejected nodes too."""
        if self.count and outcome.draft is not None:
            read = (context.tokens[-1], *outcome.draft.tokens)
            for token, best in zip(read, outcome.output.best, strict=True):
                said = self.said.setdefault(token, {})
                said.pop(best, None)
                said[best] = None

    def reminded(self, context: Context) -> Context:
        """The request, with what was said after its last token before."""
        if not self.count:
            return context
        return replace(context, first=tuple(self.said.get(context.tokens[-1], ()))[: -1 - self.count : -1])
