"""The proxies that trioproxy is measured beside: `python -m bench.peers --list`.

One file each, with how it is installed and started: one process with one worker, retries and breakers off, streams
unbuffered, bodies of 64 MiB allowed, no access log, nothing switched on that is not needed to forward. `peer` says what
a peer is, `install` how one gets here, `running` starts, awaits and stops one, `registry` has them all.

Nothing is imported here, because `naive` and `bare` are programs too, and are measured.
"""
