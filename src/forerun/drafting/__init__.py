"""What several drafters share: memories, chains put together, and when to rest."""
