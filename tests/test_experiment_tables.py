"""Every comparison with other people's tables takes a round, on random data of the same shapes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from fedlightning.compare import command
from fedlightning.compare.arguments import main
from fedlightning.compare.plan import Plan, algorithm_arguments, parse_algorithms
from fedlightning.compare.run import execute
from fedlightning.data import CIFAR10, MNIST, PersonalFashionMNIST
from tests.support.paths import ROOT

TABLES = sorted((ROOT / "experiments" / "benchmarks").glob("*.yaml"))
IN_FULL = {"niid_fcube", "pfllib_fashion_mnist", "nvflare_alpha_01"}
"""Comparisons of which every algorithm runs; one of each of the others does, they have the same files."""

SMALL_NETWORKS = {
    **dict.fromkeys(
        ["nvflare_alpha_01", "nvflare_alpha_1"],
        ("=fedlightning.models.LeNet5", ".init_args.channels=3", ".init_args.size=32"),
    ),
    "pfllib_fashion_mnist": ("=fedlightning.models.PersonalMLP", ".init_args.in_features=784"),
}
"""Networks of all algorithms but the first one with a network."""

TINY = (
    "--trainer.max_steps=1",
    "--trainer.val_check_interval=1",
    "--data.init_args.local_steps=1",
    "--data.init_args.batch_size=2",
)


def pictures(count, *shape):
    """A reader of random pictures, in a training and a test part."""
    draw = torch.Generator().manual_seed(0)
    images, held = (torch.randint(256, (n, *shape), generator=draw, dtype=torch.uint8) for n in (count, 20))
    labels, held_labels = (torch.arange(n) % 10 for n in (count, 20))
    return staticmethod(lambda *_: (images, labels, held, held_labels))


def write_femnist(root, writers=12):
    """A tiny FEMNIST as LEAF writes it."""
    users = [f"writer {i}" for i in range(writers)]
    held = {user: {"x": [[i / writers] * 784], "y": [i]} for i, user in enumerate(users)}
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        (root / part / "all.json").write_text(json.dumps({"users": users, "user_data": held}))


@pytest.fixture(autouse=True)
def _random_data(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(MNIST, "read", pictures(600, 1, 28, 28))
    monkeypatch.setattr(CIFAR10, "read", pictures(4000, 3, 32, 32))
    monkeypatch.setattr(PersonalFashionMNIST, "read", pictures(600, 1, 28, 28))


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_round(path, tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(command, "compare", lambda **given: asked.update(given))
    main([f"--config={path}"])
    values = list(TINY)
    if path.stem == "niid_femnist":
        write_femnist(tmp_path / "femnist")
        values.append(f"--data.init_args.root={tmp_path / 'femnist'}")
    if path.stem == "pfllib_fashion_mnist":
        values.append("--data.init_args.partitioner.init_args.min_size=2")
    algorithms = parse_algorithms(asked["algorithms"])
    assert asked["report"] == ("best_on_test" if "pfllib" in path.stem else "last")
    for number, name in enumerate(algorithms if path.stem in IN_FULL else list(algorithms)[:1]):
        if number == 1 or path.stem == "nvflare_alpha_1":  # it differs from the other in its data alone
            values += [f"--model.init_args.network{value}" for value in SMALL_NETWORKS.get(path.stem, ())]
        chosen = {name: algorithms[name]}
        comparison = Plan(algorithm_arguments(asked["base"], chosen, values), tuple(values))
        run = replace(comparison.run(name, 0, (), tmp_path / name), metric=asked["metric"])
        execute(run, lambda rounds: None)
        (row,) = run.history
        assert 0 <= row["val_accuracy"] <= 1
        assert row["train_loss"] > 0


def test_tables_report_what_theirs_report():
    """The last round on the whole test part; FCUBE alone has validation data of its own."""
    assert len(TABLES) == 15
    bases = [ROOT / "experiments" / "benchmarks" / "base" / f"{name}.yaml" for name in ("niid", "nvflare", "pfllib")]
    assert all("    val_share: 0\n" in base.read_text() for base in bases)
