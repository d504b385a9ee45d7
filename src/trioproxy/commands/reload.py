"""A proxy and the configuration that it serves by, which can be read again.

Lives here: what becomes of a file that has changed, and what is said of it. Does not live here: reading it
(configfile), and how requests in flight are left alone (server).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from ..configfile import Changes, ConfigError, Loaded, Overrides, changes, load, watch_files
from ..server import Proxy
from .foreground import say

_logger: Final = logging.getLogger("trioproxy")


@final
class Serving:
    """One proxy, the file that it was made from, and the flags that win over that.

    :param file: None where flags say everything: only certificates can be read again then.
    """

    def __init__(self, file: Path | None, overrides: Overrides, loaded: Loaded) -> None:
        self.loaded = loaded
        """What the proxy serves by."""
        config = loaded.config
        self.proxy: Final = Proxy(config.topology, settings=config.settings, upstream_tls=loaded.tls.upstream)
        self._file = file
        self._overrides = overrides

    async def watch(self) -> None:
        """Read the file again when it changes, or a file that it names, until cancelled."""
        if self._file is not None:
            await watch_files(lambda: self.loaded.files, self.reload)

    def reload(self) -> None:
        """Read everything again, for requests and connections from now on; what is wrong leaves all as it was."""
        try:
            new = load(self._file, self._overrides)
        except ConfigError as error:
            _logger.warning("kept the configuration as it was, since the new one is wrong:\n%s", error)
            return
        said = changes(self.loaded, new)
        self.loaded = self._apply(new)
        self._tell(said)

    def _apply(self, new: Loaded) -> Loaded:
        """Serve by it as far as that is possible; returns what is served by then."""
        config, old = self.loaded.config, self.loaded.tls
        # With the same context, connections to upstreams can be used on.
        same = old.upstream_said == new.tls.upstream_said
        upstream = old.upstream if same else new.tls.upstream
        self.proxy.reconfigure(new.config.topology, settings=new.config.settings, upstream_tls=upstream)
        served = replace(new.config, listen=config.listen)
        if old.server is not None and new.tls.server is not None:
            old.server.use(new.tls.server)
        elif old.server is not new.tls.server:
            served = replace(served, tls=config.tls)
        return replace(new, config=served, tls=new.tls._replace(server=old.server, upstream=upstream))

    def _tell(self, said: Changes) -> None:
        if said.applied:
            say(f"read the configuration again: {', '.join(said.applied)} changed, for requests from now on")
        elif not said.after_restart:
            say("read the configuration again: nothing has changed")
        if said.after_restart:
            _logger.warning("%s changed: that takes a restart", ", ".join(said.after_restart))
