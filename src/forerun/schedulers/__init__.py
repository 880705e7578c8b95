"""Schedulers: which requests, how many tokens."""

from forerun.registry import Registry

SCHEDULERS = Registry(
    "scheduler",
    __name__,
    {
        "fcfs": "fcfs:FcfsScheduler",
    },
)
