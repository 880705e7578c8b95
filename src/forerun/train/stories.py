"""TinyStories: split the files, restore capital letters, and ask for each story in a chat.

Does not: recognise a name that the cased stories never use.
"""

import re
from collections import Counter

SEPARATOR = "<|endoftext|>"
WORD = re.compile(r"[A-Za-z]+")
SENTENCE_START = re.compile(r"""(^|\n|[.!?]\s+|\."\s+|(?:^|(?<=\s))")([a-z])""")
HERO = re.compile(r"there (?:was|lived) (an? [a-z ]{3,40}?)(?: named| called| who| that|[.,])")
STOPWORDS = frozenset(
    (
        *("there", "their", "could", "would", "wanted", "because", "together"),
        *("about", "where", "every", "other", "another", "little", "started"),
    )
)
SHORTEST = 100  # characters; less is a broken border, not a story
NAME_COUNT = 3


def split(text: str) -> list[str]:
    """Stories of one file, without the separator lines."""
    return [story.strip() for story in text.split(SEPARATOR) if len(story.strip()) > SHORTEST]


def names(cased: list[str]) -> frozenset[str]:
    """Lower-case forms of the words that are nearly always capital inside a sentence."""
    upper: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for story in cased:
        for match in re.finditer(r"(?<=[a-z,] )[A-Za-z]+", story):
            word = match.group()
            (upper if word[0].isupper() else lower)[word.lower()] += 1
    return frozenset(word for word, count in upper.items() if count >= NAME_COUNT and count > 4 * lower[word])


def restore_case(story: str, known: frozenset[str]) -> str:
    """Capital letters at sentence starts, for "I" and for names."""
    story = SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).upper(), story)
    return WORD.sub(lambda m: m.group().capitalize() if m.group() in known else m.group(), story)


def request(story: str, seed: int) -> str:
    """What a user could have asked to get this story; which form is decided by `seed`."""
    first = re.split(r"(?<=[.!?])\s", story, maxsplit=1)[0]
    hero = HERO.search(story)
    topic = hero.group(1) if hero else " and ".join(rare_words(story, 2))
    forms = (
        f"Tell me a story about {topic}.",
        f"Write a short story that begins with: {first}",
        f"Can you tell me a short story about {topic}?",
        f"Write a story with these words: {', '.join(rare_words(story, 3))}.",
        "Tell me a story.",
        f"Write a short story about {topic}.",
    )
    return forms[seed % len(forms)]


def rare_words(story: str, count: int) -> list[str]:
    """The longest common words of a story, in order of appearance: a cheap stand-in for its subject."""
    words = {w.removesuffix("s"): None for w in re.findall(r"\b[a-z]{4,9}\b", story) if w not in STOPWORDS}
    longest = sorted(words, key=len, reverse=True)[:count]
    return [word for word in words if word in longest] or ["friends"]
