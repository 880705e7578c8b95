"""The network face: one process that serves a model in the shapes of OpenAI's interface."""
