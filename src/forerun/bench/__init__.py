"""Measurements: speed-up, overhead of the loop, memory, and other engines; every number comes with its command."""
