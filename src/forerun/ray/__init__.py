"""More than one machine: replicas of the server on Ray Serve, and batches on Ray Data.

`forerun serve MODEL --replicas 4`, or `--replicas 1-4` to follow the load; `forerun.ray.batch(IN, OUT, ...)`.
Does not: start or secure a Ray cluster beyond this machine; `ray start` does, and its ports trust whoever reaches them.
"""

from forerun.ray.batch import batch

__all__ = ["batch"]
