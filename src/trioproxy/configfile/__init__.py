"""The configuration file: TOML in, a checked configuration or every mistake out.

Re-exports what the command line needs.
"""

from .changes import Changes, changes
from .load import Loaded, load
from .mistakes import ConfigError
from .mistakes import Path as KeyPath
from .model import FileConfig
from .overrides import Override, Overrides
from .places import Place, parse_address, show_address
from .render import render
from .scalars import Measured
from .schema import Kind, table_kind
from .watch import watch_files

__all__ = [
    "Changes",
    "ConfigError",
    "FileConfig",
    "KeyPath",
    "Kind",
    "Loaded",
    "Measured",
    "Override",
    "Overrides",
    "Place",
    "changes",
    "load",
    "parse_address",
    "render",
    "show_address",
    "table_kind",
    "watch_files",
]
