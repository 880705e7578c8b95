"""The only loop: requests in, events out; imports contracts, never a method."""
