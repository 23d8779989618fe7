"""Kills a node at every step of its work, starts it anew, repeats all requests, and prints what it ends at.

``python -m tests.support.killed_node FOLDER`` prints JSON. Every life of the node is a fork of this process, which has
imported torch and computed nothing, and a killed one ends by ``os._exit``: nothing is flushed, closed or tidied up.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from hashlib import sha256
from pathlib import Path

import torch

from fedlightning import algorithms as fl
from fedlightning.federation.files import whole_files
from fedlightning.federation.protocol import Stamp
from fedlightning.federation.remote import store as files
from fedlightning.federation.remote.generation import RequestDigest, Standing
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.standing import Asked
from fedlightning.federation.remote.training_codec import encode_asked
from fedlightning.oracle import Sequential
from tests.support.federations import loop_for
from tests.support.nodes import node
from tests.support.situations import seeded
from tests.support.small import Normed, regression_data

FEDERATION = "f" * 32
CLIENTS = (1, 3)
ROUNDS = 3
STEPS = ("compute", "save", "sync", "replace", "removed", "sync folder", "send")
KILLED = 9


def make():
    return seeded(lambda: Normed(fl.SCAFFOLD(0.05), buffers="local"))()


class Steps:
    """Counts the steps of a node's work, and kills it at one of them."""

    def __init__(self, fatal=None):
        self.fatal, self.counts = fatal, dict.fromkeys(STEPS, 0)

    def at(self, step):
        self.counts[step] += 1
        if (step, self.counts[step]) == self.fatal:
            os._exit(KILLED)

    def before(self, step, function):
        def counting(*args, **kwargs):
            self.at(step)
            return function(*args, **kwargs)

        return counting

    def halfway(self, function):
        """Writing a file, of which a killed process leaves half."""

        def counting(value, file):
            self.counts["save"] += 1
            if ("save", self.counts["save"]) == self.fatal:
                function(value, file)
                file.flush()
                os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size // 2)
                os._exit(KILLED)
            function(value, file)

        return counting


def live(folder, steps):
    """One life of the node; returns what it ends at.

    The server is another machine: what it has received it keeps, and after a kill it asks again for what is missing.
    """
    whole_files.torch.save = steps.halfway(torch.save)
    whole_files.os.fsync = steps.before("sync", os.fsync)
    files.sync_folder = steps.before("sync folder", files.sync_folder)
    Path.replace = steps.before("replace", Path.replace)
    Path.unlink = steps.before("removed", Path.unlink)
    service = node(make(), Sequential(), regression_data(), CLIENTS, folder, buffers="local")
    service.runner.train = steps.before("compute", service.runner.train)
    server, received = loop_for(make(), Sequential(), buffers="local").server, folder.with_suffix(".received")
    received.mkdir(exist_ok=True)
    before, base, digest = len(list(received.iterdir())), {}, sha256()
    for index in range(ROUNDS):
        request, answer = server.request(Stamp(index, 0), index), received / str(index)
        standings = tuple(Standing(client, base.get(client)) for client in CLIENTS)
        if not answer.exists():
            data = service.handle(encode_asked(Asked(FEDERATION, request, standings)).to_bytes())
            assert Packet.from_bytes(data).kind == "answers", Packet.from_bytes(data).values
            steps.at("send")
            answer.write_bytes(data)
        digest.update(answer.read_bytes())
        base = {each.client: RequestDigest(request).generation(each) for each in standings}
    for client in CLIENTS:
        for name, value in sorted(service.states(FEDERATION, Standing(client, base[client])).items()):
            digest.update(name.encode() + value.numpy().tobytes())
    left = sorted(path.name for path in folder.rglob("*.pt*") if "partial" in path.name)
    found = {"end": digest.hexdigest(), "computed": steps.counts["compute"], "left": left, "steps": steps.counts}
    return {**found, "received before": before}


def forked(folder, fatal=None):
    """A life in a process of its own: its exit status, and what it ends at."""
    result = folder.with_suffix(".json")
    child = os.fork()
    if not child:
        try:
            result.write_text(json.dumps(live(folder, Steps(fatal))))
        except BaseException as error:
            result.write_text(json.dumps({"error": repr(error)}))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, None if status else json.loads(result.read_text())


def main():
    root = Path(sys.argv[1])
    _, whole = forked(root / "whole")
    found = {"whole": whole, "killed": []}
    for step in STEPS:
        for count in range(1, whole.get("steps", {}).get(step, 0) + 1):
            folder = root / f"{step}-{count}"
            first, _ = forked(folder, (step, count))
            _, end = forked(folder)
            found["killed"].append([step, count, first, end])
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.disable()  # a collection would look at, and so copy, all that a fork shares with this process
    gc.freeze()
    main()
