"""Models: weights behind one flat forward over a pass and a cache."""
