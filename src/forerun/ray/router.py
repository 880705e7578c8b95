"""Ray Serve's question for a replica, answered by affinity, and else by the power of two choices.

Does not: keep a request waiting for the replica that it knows while that is much busier than another.
"""

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from forerun.ray.affinity import Memory, much_busier


class AffinityRouter(RequestRouter):
    """Goes by the `keys` of a request's first argument."""

    def initialize_state(self, **kwargs: Any) -> None:  # noqa: ANN401 - Ray's
        """`slack`: requests that a known replica may have more than the least busy one."""
        self.slack, self.memory = int(kwargs["slack"]), Memory()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that knows the request, then two of all."""
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        known = self.memory.place(_keys(pending_request), by_id)
        if known is None or much_busier(known, self._queues(candidate_replicas), self.slack):
            return [two]
        return [[by_id[known]], two]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:  # noqa: ANN401 - Ray's
        """Remember where it went."""
        self.memory.remember(_keys(pending_request), replica_id.unique_id)

    def _queues(self, replicas: list[RunningReplica]) -> dict[str, int]:
        cache = self.replica_queue_len_cache
        return {r.replica_id.unique_id: cache.get(r.replica_id) or 0 for r in replicas}


def _keys(pending: PendingRequest | None) -> tuple[str, ...]:
    return tuple(pending.args[0].keys) if pending is not None and pending.args else ()
