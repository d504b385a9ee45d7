"""The commands that operate a proxy: ``serve``, ``check`` and ``config``."""
