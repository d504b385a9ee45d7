"""``python -m trioproxy``."""

from .cli import main

main()
