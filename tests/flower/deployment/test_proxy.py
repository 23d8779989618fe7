"""The proxy lets through what Flower's nodes call, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import http.client
import inspect
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from flwr.supernode.fleet_http_client import FleetHttpClient

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.address import Address
from fedlightning.flower.deployment.files import write_new
from fedlightning.flower.deployment.proxy import FLEET, nginx_config
from tests.support.deployment import federation_in

ADDRESS, LINK = Address("fed.example.org", 8443), Address("127.0.0.1", 8444)


def test_these_are_the_calls_of_flower_s_nodes():
    assert sorted(re.findall(r'path="/v1/fleet/([^"]*)"', inspect.getsource(FleetHttpClient))) == sorted(FLEET)


def test_the_config_names_address_link_and_certificates():
    text = nginx_config("digits", ADDRESS, LINK, Path("/s/server.crt"), Path("/s/my key"), Path("/s/ca.crt"))
    for line in (
        "listen 8443 ssl;",
        "server_name fed.example.org;",
        'ssl_certificate "/s/server.crt";',
        'ssl_certificate_key "/s/my key";',
        "proxy_pass https://127.0.0.1:8444/v1/fleet/$1;",
        "proxy_ssl_verify on;",
        'proxy_ssl_trusted_certificate "/s/ca.crt";',
    ):
        assert f" {line}\n" in text


@pytest.mark.parametrize("sign", ['"', "$", "\\", "\n"])
def test_paths_that_nginx_cannot_read_are_refused(sign):
    with pytest.raises(InvalidValueError, match="nginx cannot read a path with"):
        nginx_config("digits", ADDRESS, LINK, Path(f"/s{sign}/server.crt"), Path("/k"), Path("/c"))


class Link(BaseHTTPRequestHandler):
    """Answers everything, as a link that trusts everybody would."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.path)))
        self.end_headers()
        self.wfile.write(self.path.encode())

    do_GET = do_POST

    def log_message(self, *arguments):
        pass


@contextmanager
def behind_nginx(server, port):
    """A link with the federation's certificate, and nginx with the federation's config before it."""
    listen = server.federation.listen
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    link = HTTPServer((listen.host, listen.port), Link)
    link.socket = context.wrap_socket(link.socket, server_side=True)
    threading.Thread(target=link.serve_forever, daemon=True).start()
    folder = server.path / "nginx"
    folder.mkdir()
    places = "".join(
        f"{each}_temp_path {folder}/{each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = (
        f"{'user root; ' if os.geteuid() == 0 else ''}daemon off;\n"
        f"pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\n"
        f"http {{ access_log off; {places} include {server.proxy}/*.conf; }}\n"
    )
    write_new(folder / "nginx.conf", config)
    command = [shutil.which("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", f"{folder}/error.log"]
    tried = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert "test is successful" in tried.stderr, tried.stderr
    nginx = subprocess.Popen(command)
    try:
        wait_for(port)
        yield
    finally:
        nginx.terminate()
        nginx.wait()
        link.shutdown()
        link.server_close()


def wait_for(port):
    end = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_lets_nodes_through_and_nobody_who_gives_orders(tmp_path):
    port = free_port()
    server = federation_in(tmp_path / "f", f"192.0.2.7:{port}", f"127.0.0.1:{free_port()}")
    trusted = ssl.create_default_context(cafile=str(server.authority))

    def call(path, method="POST", body=b"x"):
        wire = http.client.HTTPSConnection("localhost", port, context=trusted, timeout=10)
        wire.putrequest(method, path, skip_accept_encoding=True)
        wire.putheader("Content-Length", str(len(body)))
        wire.endheaders(body)
        with closing(wire), wire.getresponse() as answer:
            return answer.status, answer.read().decode()

    with behind_nginx(server, port):
        for each in FLEET:
            assert call(f"/v1/fleet/{each}") == (200, f"/v1/fleet/{each}")
        assert call("/v1/fleet/push-object", body=bytes(20_000_000))[0] == 200
        assert call("/v1/fleet/get-run", "GET")[0] == 403
        for path in (
            "/v1/control/start-run",
            "/v1/control/register-node",
            "/v1/runtime/pull-task-input",
            "/v1/fleet/other",
            "/v1/fleet/",
            "/docs",
            "/",
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run",
            "/v1/fleet/..%2fcontrol%2fstart-run",
            "//v1//control//start-run",
        ):
            assert call(path)[0] == 403, path
        # What nginx takes for a node's call reaches the link as that call, however it was written.
        assert call("/v1/control/../fleet/get-run") == (200, "/v1/fleet/get-run")
