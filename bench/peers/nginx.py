"""nginx, without buffering of responses; a request's body is read whole first, to disk above 16 KiB, as by default.

It runs without a master, so that the one process is the worker, and ends whatever signal it gets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.install import Debian
from bench.peers.peer import BODY_SIZE, PATIENCE, Address, Peer


def config(listen: Address, upstream: Address, directory: Path) -> str:
    """nginx.conf; everything that it writes goes to `directory`."""
    return f"""\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr error;
events {{
    worker_connections 16384;
}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size {BODY_SIZE};
    keepalive_timeout {PATIENCE}s;
    keepalive_requests 1000000000;
    upstream model {{
        server {upstream} max_fails=0;
        keepalive 4096;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen} backlog=4096;
        location / {{
            proxy_pass http://model;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_next_upstream off;
            proxy_connect_timeout 5s;
            proxy_send_timeout {PATIENCE}s;
            proxy_read_timeout {PATIENCE}s;
        }}
    }}
}}
"""


def _arguments(listen: Address, upstream: Address, directory: Path) -> list[str]:
    path = directory / "nginx.conf"
    path.write_text(config(listen, upstream, directory))
    return ["-e", "stderr", "-p", str(directory), "-c", str(path)]


NGINX: Final = Peer("nginx", Debian("nginx", "nginx"), _arguments)
