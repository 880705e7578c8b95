"""Studies: what methods could reach, computed apart from any speed."""
