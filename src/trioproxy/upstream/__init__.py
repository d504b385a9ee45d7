"""Towards the model servers: endpoints, and the connections to them."""
