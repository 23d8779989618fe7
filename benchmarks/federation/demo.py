"""A federation on one machine, with accidents, that ends where its simulation does: ``make federation``.

Three nodes with three clients each train personal models of embedded digits by FedAPM, over TLS, with keys. A node is
killed and started again, then the server's program, then the link. At the end the parameters are compared with those of
``fedlightning fit`` on the same configs, the server's disk is searched for personal parameters, and the curve of the
training is drawn.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from pathlib import Path

import torch

from fedlightning.flower.deployment.flower_commands import is_taken
from fedlightning.flower.deployment.server_folder import ServerFolder

sys.path.append(str(Path(__file__).parent))
from left_behind import ANSWERS, left_behind
from machines import Service, command, fedlightning, free_port, say, until

ROOT = Path(__file__).parents[2]
FILES = ["configs/personalized/base.yaml", "configs/personalized/fed_apm.yaml", "benchmarks/federation/demo.yaml"]
CONFIGS = [f"--config={ROOT / file}" for file in FILES]
NODES = {"a": "0-2", "b": "3-5", "c": "6-8"}
ACCIDENTS = {"node b": 2, "the server's program": 4, "the link": 6}
"""What is killed, after which round."""
TOLERANCE = 1e-5


def main() -> None:
    """Run simulation and federation; ends with an error if they end at different parameters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/federation"), help="where everything goes")
    folder = parser.parse_args().folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    say("the simulation")
    fedlightning("fit", *CONFIGS, *table_in(folder / "simulation"))
    say("the federation: certificates, keys, configs")
    nodes = [f"{name}={clients}" for name, clients in NODES.items()]
    there = folder / "digits"
    fedlightning("federation", "new", there, f"--address=127.0.0.1:{free_port()}", "--nodes", *nodes, *CONFIGS)
    services = [Service("the link", folder / "link.log", command("federation", "link", there))]
    try:
        federate(ServerFolder.find(there), services)
    finally:
        for service in reversed(services):
            service.stop()
    draw(folder, there / "server" / "runs")
    search(there)
    compare(last(folder / "simulation"), last(there / "server" / "runs"))


def federate(server: ServerFolder, services: list[Service]) -> None:
    """Start link and nodes, and run the federation through its accidents to its end."""
    (link,), listen = services, server.federation.listen
    until(lambda: is_taken(listen.host, listen.port), services, 60)
    fedlightning("federation", "register", server.path)
    for name in NODES:
        home = server.path.parent / "nodes" / name
        start = command("node", "start", "--config", home / "node.yaml")
        services.append(Service(f"node {name}", home / "log", start))
    run(server)
    node_b = services[2]
    until(lambda: rounds(server) >= ACCIDENTS["node b"], services, 200)
    node_b.kill()
    until(lambda: rounds(server) >= ACCIDENTS["the server's program"], services, 200)
    link.kill_program("flwr-serverapp")
    go_on(server)
    until(lambda: rounds(server) >= ACCIDENTS["the link"], services, 200)
    link.kill()
    until(lambda: is_taken(listen.host, listen.port), services, 60)
    go_on(server)
    fedlightning("federation", "watch", server.path)
    fedlightning("federation", "status", server.path)


def run(server: ServerFolder, *options: str) -> None:
    """Submit the run, or go on with it; who does not answer within 15 seconds is asked again."""
    table = table_in(server.runs)
    fedlightning("federation", "run", server.path, "--detach", "--deadlines.phase=15", *table, *options)


def go_on(server: ServerFolder) -> None:
    """Go on from the last checkpoint, without waiting for the minute after which Flower sees that the run has ended."""
    fedlightning("federation", "stop", server.path, check=False)  # Flower may have seen it already
    run(server, "--ckpt_path=last")


def rounds(server: ServerFolder) -> int:
    """Return how far the run is."""
    file = server.runs / "progress.json"
    return int(json.loads(file.read_text())["round"]) if file.exists() else 0


def table_in(folder: Path) -> list[str]:
    """Return the option that has a run write its table and checkpoints into a folder."""
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(folder), "name": ""}}
    return [f"--trainer.logger={json.dumps(logger)}"]


def last(folder: Path) -> Path:
    """Return the latest checkpoint in a folder."""
    return max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)


def compare(simulation: Path, federation: Path) -> None:
    """Print the parameters at both ends, and their difference."""
    ends = []
    for name, path in {"simulation": simulation, "federation": federation}.items():
        checkpoint = torch.load(path, weights_only=True)
        ends.append(torch.cat([value.flatten() for value in checkpoint["state_dict"].values()]))
        first = ", ".join(f"{value:.7f}" for value in ends[-1][:4].tolist())
        print(f"{name}: round {checkpoint['global_step']}, {len(ends[-1])} parameters, {first}, ...")
    difference = float((ends[0] - ends[1]).abs().max() / ends[0].abs().max())
    print(f"largest difference, as a share of the largest parameter: {difference:.1e}")
    if difference > TOLERANCE:
        sys.exit(f"The federation did not end where the simulation does: {difference:.1e} is above {TOLERANCE:.0e}.")


def search(federation: Path) -> None:
    """Search all that the server has, the link's database included, for the personal parameters of the nodes' files."""
    found = left_behind(federation)
    (places, heads), (sent, there) = found["personal"], found[ANSWERS]
    print(
        f"found on the server's disk: {there} of {sent} places of answers, {heads} of {places} of personal parameters"
    )
    if heads:
        sys.exit("Personal parameters have left their nodes.")


def draw(folder: Path, runs: Path) -> None:
    """Draw the training loss of both over the rounds, and when what was killed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, where, style in (
        ("simulation", folder / "simulation", {"color": "0.75", "linewidth": 6}),
        ("federation of three nodes", runs, {"color": "C0", "marker": "."}),
    ):
        losses = losses_in(where)
        axes.plot(list(losses), list(losses.values()), label=name, **style)
    for what, after in ACCIDENTS.items():
        axes.axvline(after, color="C3", linestyle=":")
        place = {"rotation": 90, "ha": "right", "va": "center", "fontsize": 8, "color": "C3"}
        axes.text(after, 0.5, f"{what} killed", transform=axes.get_xaxis_transform(), **place)
    axes.set(xlabel="round", ylabel="training loss", ylim=(0, None))
    axes.legend()
    figure.savefig(folder / "curve.png", dpi=150)
    say(f"the curve is in {folder / 'curve.png'}")


def losses_in(folder: Path) -> dict[int, float]:
    """Return the loss of every round; of a round that was done again, the later one."""
    losses = {}
    for table in sorted(folder.glob("version_*/metrics.csv"), key=lambda path: path.stat().st_mtime):
        with table.open() as file:
            losses |= {int(row["step"]): float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]}
    return dict(sorted(losses.items()))


if __name__ == "__main__":
    main()
