"""Trees: the shape and growth of a draft."""

from forerun.registry import Registry

TREES = Registry(
    "tree",
    __name__,
    {
        "chain": "chain:ChainTree",
        "level": "level:LevelTree",
    },
)
