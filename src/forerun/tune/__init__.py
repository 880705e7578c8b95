"""`forerun tune`: which drafter, tree and budget are fastest on this machine for one's own prompts."""
