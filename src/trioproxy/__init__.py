"""A reverse proxy core for LLM inference on Trio."""
