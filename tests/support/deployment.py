"""A small federation of two nodes on this machine, as its folders lie on the disk."""

from __future__ import annotations

from tests.support.paths import CONFIGS


def federation_in(folder, address="127.0.0.1:8443", listen=None):
    """Make the folders of a federation with nodes a (clients 0, 1) and b (2)."""
    from fedlightning.flower.deployment.address import Address
    from fedlightning.flower.deployment.federation_file import Federation
    from fedlightning.flower.deployment.new import NewFederation

    at = Address.parse(address, "address")
    listen = at.of_link() if listen is None else Address.parse(listen, "listen")
    federation = Federation("digits", at, listen, {"a": (0, 1), "b": (2,)})
    return NewFederation(federation, simulation(folder)).write(folder)


def simulation(folder):
    """Configs of a simulation of three clients."""
    from fedlightning.flower.deployment.simulation_config import SimulationConfig

    few = folder.with_name("few.yaml")
    few.write_text("data: {init_args: {partitioner: {init_args: {num_clients: 3}}}}\ntrainer: {max_steps: 2}\n")
    return SimulationConfig.read([*(CONFIGS / "classification" / f"{name}.yaml" for name in ("base", "fed_avg")), few])


class Flower:
    """Stands in for Flower's commands: answers are given beforehand, and what was asked is kept."""

    def __init__(self, server, answers=()):
        self.server = server
        self.answers = list(answers)
        self.asked = []
        self.followed = []
        self.running = True

    def require_link(self):
        if not self.running:
            from fedlightning.core.errors import UsageError

            raise UsageError("The link is not running")

    def ask(self, *arguments):
        self.require_link()
        self.asked.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def follow(self, run_id):
        self.followed.append(run_id)


def run_of(number, status="running", elapsed=3.0, details="N/A"):
    """A run as Flower lists it."""
    return {"run-id": number, "status": status, "status-details": details, "elapsed": elapsed}
