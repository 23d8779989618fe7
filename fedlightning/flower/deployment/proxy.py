"""The proxy before the link, which lets nodes through and nobody who gives orders.

Behind the link's port there are three interfaces: Fleet, by which nodes fetch and deliver messages, Control, by which
runs are submitted and keys registered, and Runtime, of the link's own processes. Flower asks for no login on Control.
"""

from __future__ import annotations

from pathlib import Path

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.address import Address

FLEET = (
    "activate-node",
    "confirm-message-received",
    "deactivate-node",
    "get-fab",
    "get-run",
    "pull-messages",
    "pull-object",
    "push-messages",
    "push-object",
    "register-node",
    "send-node-heartbeat",
    "unregister-node",
)
"""What nodes call under ``/v1/fleet/``; a test holds it against Flower's own client."""

_TEXT = """\
# nginx before the link of the federation {name}: nodes come in, and nobody else.
# As root: cp {file} /etc/nginx/conf.d/, then nginx -t && systemctl reload nginx
server {{
    listen {port} ssl;
    listen [::]:{port} ssl;
    server_name {host};

    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;

    client_max_body_size 64m;  # arrays arrive in pieces of about 5 MB
    proxy_read_timeout 120s;

    # The whole path is matched, and passed on as it was matched.
    location ~ "^/v1/fleet/({calls})$" {{
        limit_except POST {{ deny all; }}
        proxy_pass https://{link}/v1/fleet/$1;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_ssl_trusted_certificate {authority};
        proxy_ssl_name localhost;
        proxy_ssl_verify on;
        proxy_ssl_protocols TLSv1.2 TLSv1.3;
    }}

    location / {{
        return 403;
    }}
}}
"""


def nginx_config(name: str, address: Address, link: Address, certificate: Path, key: Path, authority: Path) -> str:
    """Return a configuration of nginx with one server, to be included among its others.

    Args:
        name: Name of the federation.
        address: Where nodes come in.
        link: Where the link listens.
        certificate: File of the link's certificate, which is the proxy's, too.
        key: File of its private key.
        authority: File of the certificate that signed it.
    """
    host = f"[{address.host}]" if ":" in address.host else address.host
    return _TEXT.format(
        name=name,
        file=nginx_file(name),
        port=address.port,
        host=host,
        link=link,
        calls="|".join(FLEET),
        certificate=_quoted(certificate),
        key=_quoted(key),
        authority=_quoted(authority),
    )


def nginx_file(name: str) -> str:
    """Return the name of the file with the configuration."""
    return f"fedlightning-{name}.conf"


def _quoted(path: Path) -> str:
    """Return a path as nginx reads it, which has no way to write some signs."""
    if sign := next((sign for sign in str(path) if sign in '"$\\' or not sign.isprintable()), None):
        raise InvalidValueError(f"{path}: nginx cannot read a path with {sign!r} in it. Choose another folder.")
    return f'"{path}"'
