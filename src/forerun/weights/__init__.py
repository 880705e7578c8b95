"""Loading, converting and saving weights."""
