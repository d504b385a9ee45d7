"""Scenarios: whole exchanges, over real sockets or in memory, and what is left after them."""
