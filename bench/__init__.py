"""Benches that put trioproxy beside other proxies: `python -m bench.cost`, `python -m bench.memory`.

Lives here: the probe (load client and model server in one process), the peers, what is measured and how it is told.
Does not live here: anything that the package imports; and the probe speaks to a proxy through sockets alone, so that
every proxy is measured by the same means.
"""
