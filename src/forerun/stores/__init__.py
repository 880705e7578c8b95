"""What outlives a request: files of texts and of hidden states, and what drafters keep of earlier outputs."""
