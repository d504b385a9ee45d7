"""`python -m bench.compare`: all peers beside trioproxy, in one run.

`__main__` is the command line and the order of the run, `measure` starts the measurements, `tables` and `plots` show
what they found.
"""
