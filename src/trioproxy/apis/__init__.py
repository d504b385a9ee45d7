"""What a body says: the few fields of a request that decide something, the usage that a response reports, and which of
its events carry tokens.

Everything here is sans-I/O, is fed bytes as they pass by, raises nothing for what it is fed and keeps none of it.
"""
