"""The examples of the documentation run, keep their promised length, and its table names what exists."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import lightning
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, algorithms
from fedlightning.algorithms import FedAvg, FedDyn, FedMM
from fedlightning.channel import Channel, Clip
from fedlightning.cli import FederatedCLI, main
from fedlightning.participation import Uniform
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.commands import of
from tests.support.language import needs_hf
from tests.support.paths import CONFIGS, ROOT

README = (ROOT / "README.md").read_text()
PAGES = "\n".join([README, *(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))])


def block(name, language=""):
    """The code below a mark on one of the pages."""
    return re.search(rf"<!-- test: {name} -->\n```{language}\n(.*?)```", PAGES, re.DOTALL)[1]


def example(name):
    return block(name, "python")


@pytest.fixture
def readme(monkeypatch):
    """Runs one of the pages' examples and returns its names."""

    def run(name):
        module = ModuleType("readme")
        monkeypatch.setitem(sys.modules, "readme", module)
        exec(compile(example(name), f"example: {name}", "exec"), vars(module))
        return module

    return run


def fit(task, data, rounds, **options):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, **options}
    trainer = lightning.Trainer(max_steps=rounds, enable_model_summary=False, accelerator="cpu", **options)
    trainer.fit(task, data)
    return trainer


@pytest.mark.parametrize(
    ("name", "most"), [("short task", 15), ("task", 30), ("short algorithm", 30), ("algorithm", 60)]
)
def test_examples_are_short(name, most):
    assert len([line for line in example(name).splitlines() if line.strip()]) <= most


def test_the_readme_is_short():
    assert len(README.encode()) <= 8192


def test_a_head_of_its_own_learns_each_clients_labels(readme):
    """Two clients whose labels are turned by one digit: no common head fits both."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 64, generator=draw)
    y = torch.arange(40) % 10
    data = FederatedDataModule.from_datasets(
        train=[TensorDataset(x, (y + turn) % 10) for turn in (0, 1)], batch_size=None, local_steps=20
    )
    task = readme("short task").Digits(FedAvg(lr=0.3))
    with torch.no_grad():
        before = task.body[1].weight.clone()
        fit(task, data, rounds=15)
        for client in (0, 1):
            own = task.personalize(client)
            assert (own.head(own.body(x)).argmax(1) == (y + client) % 10).float().mean() > 0.9
    assert not torch.equal(task.body[1].weight, before)


def test_momentum_at_the_server_is_that_of_a_server_optimizer(readme):
    algorithm = readme("short algorithm").FedAvgM(lr=0.02, momentum=0.5)
    tasks = (
        QuadraticSaddle(algorithm).double(),
        QuadraticSaddle(FedAvg(lr=0.02), server_optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.5)).double(),
    )
    for task in tasks:
        fit(task, ClientNumbers(local_steps=3, rounds_per_epoch=12), rounds=12, precision="64-true")
    torch.testing.assert_close(tasks[0].x, tasks[1].x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tasks[0].y, tasks[1].y, rtol=1e-12, atol=1e-12)


def test_a_module_is_trained_as_it_is(readme):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 20, 5, generator=draw)
    train = [TensorDataset(rows, rows.sum(1)) for rows in x]
    data = FederatedDataModule.from_datasets(train=train, val=train[0], batch_size=5, local_steps=4, rounds_per_epoch=5)
    task = readme("federate").task
    first = float(fit(task, data, rounds=5).callback_metrics["val_mse"])
    assert float(fit(task, data, rounds=40).callback_metrics["val_mse"]) < 0.5 * first


def test_task_learns_the_line(readme):
    robust_line = readme("task").RobustLine
    draw = torch.Generator().manual_seed(0)
    truth = torch.linspace(-1, 1, 5)
    x = torch.randn(6, 100, 5, generator=draw)
    train = [TensorDataset(rows, rows @ truth) for rows in x]
    data = FederatedDataModule.from_datasets(
        train=train, val=train[0], batch_size=20, local_steps=10, participation=Uniform(fraction=0.5), seed=0
    )
    for algorithm in (FedAvg(lr=0.05), FedMM(lr=[0.05, 0.02], mu=1.0)):
        trainer = fit(robust_line(algorithm), data, rounds=60)
        assert trainer.callback_metrics["val_mse"] < 0.01 * truth.square().sum()


def test_the_short_algorithm_goes_through_a_channel(readme):
    task = QuadraticSaddle(readme("short algorithm").FedAvgM(lr=0.02), channel=Channel(client=[Clip(norm=0.01)]))
    fit(task, ClientNumbers(local_steps=3), rounds=1)
    assert 0 < task.server_state.m.norm() <= 0.01 * (1 + 1e-6)


def test_algorithm_reaches_the_saddle(readme):
    task = QuadraticSaddle(readme("algorithm").FedDyn(lr=0.05, alpha=3.0))
    fit(task, ClientNumbers(local_steps=5, rounds_per_epoch=50), rounds=50, precision="64-true")
    assert (task.server_state.z - task.solution).norm() < 1e-6


def test_algorithm_is_that_of_the_package(readme):
    options = {"local_steps": 3, "rounds_per_epoch": 20, "participation": Uniform(size=3)}
    points = []
    for make in (readme("algorithm").FedDyn, FedDyn):
        task = QuadraticSaddle(make(lr=0.05, alpha=3.0))
        fit(task, ClientNumbers(**options), rounds=20, precision="64-true")
        points.append((task.server_state.z, task.server_state.h, task.client_states.h))
    for ours, theirs in zip(*points, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_clients_with_other_sensors_learn_one_head(readme):
    torch.manual_seed(0)
    task = readme("architectures").Wearables(FedAvg(lr=0.05))
    draw = torch.Generator().manual_seed(0)

    def sets():
        inputs = [torch.randn(60, features, generator=draw) for features in (9, 6, 6, 9)]
        return [TensorDataset(x, x[:, 0] - 2 * x[:, 1]) for x in inputs]

    data = FederatedDataModule.from_datasets(train=sets(), val=sets(), batch_size=20, local_steps=10)
    trainer = fit(task, data, rounds=60)
    assert trainer.callback_metrics["val_mse_max"] < 0.3
    assert trainer.val_dataloaders.grouped
    assert [task.personalize(i).sensor.in_features for i in range(4)] == [9, 6, 6, 9]


def test_a_logger_of_ones_own_takes_histograms(readme, tmp_path):
    logger = readme("a logger of your own").Binned(tmp_path, name="", version="")
    data = ClientNumbers(local_steps=3, rounds_per_epoch=2)
    fit(QuadraticSaddle(FedMM(lr=0.05, mu=1.0)), data, rounds=2, logger=logger, log_every_n_steps=1)
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"dual_norm_clients_low", "dual_norm_p10", "dual_norm"} <= set(header)


def test_other_percentiles_are_logged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    Path("percentiles.yaml").write_text(block("percentiles", "yaml"))
    configs = [CONFIGS / "personalized" / "base.yaml", CONFIGS / "personalized" / "fed_alt.yaml", "percentiles.yaml"]
    options = ["--trainer.max_steps=1", "--trainer.val_check_interval=1", "--trainer.enable_progress_bar=false"]
    cli = FederatedCLI(["fit", *(f"--config={path}" for path in configs), *options])
    ends = {name.rpartition("_")[2] for name in cli.trainer.callback_metrics if name.startswith("val_accuracy_")}
    assert ends == {"std", "worst", "p5", "p25", "p50", "p75", "p95"}


def test_every_clients_values_are_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    Path("values.yaml").write_text(block("client values file", "yaml"))
    configs = [CONFIGS / "personalized" / "base.yaml", CONFIGS / "personalized" / "fed_alt.yaml", "values.yaml"]
    options = ["--trainer.max_steps=1", "--trainer.val_check_interval=1", "--trainer.enable_progress_bar=false"]
    FederatedCLI(["fit", *(f"--config={path}" for path in configs), *options])
    header, *rows = Path("runs/version_0/clients.csv").read_text().splitlines()
    shown = re.search(r"^round,stage,client.*$", PAGES, re.MULTILINE)[0]
    assert {*shown.split(",")} <= {*header.split(",")}
    assert {row.split(",")[1] for row in rows} == {"train", "val"}


@needs_hf
def test_adapters_travel_as_the_table_says(readme):
    module = readme("adapters")
    spaces = [task.parameter_space() for task in (module.adapters, module.factors, module.ranks)]
    r, layers = 8, [(32, 32)] * 4 + [(32, 128)]
    down, up = (r * sum(layer[side] for layer in layers) for side in (0, 1))
    assert [space.shared.dim for space in spaces] == [down + up, down, down + up]
    assert [space.personal.dim for space in spaces] == [0, up, (down + up) // 4]


@needs_hf
def test_the_configs_of_adapters_send_what_the_table_says(monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    rows = re.findall(r"^\| `(fed_\w+)`: .* \| ([\d,]+) \| ([\d,]+)", PAGES, re.MULTILINE)
    assert len(rows) == 3
    for name, sent, kept in rows:
        space = FederatedCLI([*of("language", name), "--trainer.logger=false"], run=False).model.parameter_space()
        assert [f"{space.shared.dim:,}", f"{space.personal.dim:,}"] == [sent, kept.rstrip(",")]


def test_texts_of_the_docs_are_padded(readme):
    samples = readme("texts").data.federation.train[:4]
    assert samples["attention_mask"].sum(1).tolist() == [6, 18, 6, 23]


def test_python_example_runs():
    code = re.search(r"## Use it from Python\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    exec(compile(code, "README.md: Python", "exec"), {})


def test_own_classes_run_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_lines.py").write_text(f"{example('own classes')}\n{example('task')}")
    words = block("own classes on the command line").replace("\\\n", " ").split()
    assert words.pop(0) == "fedlightning"
    monkeypatch.setattr(sys, "argv", ["fedlightning", *words, "--trainer.enable_progress_bar=false"])
    main()
    (board,) = Path("runs").rglob("events.*")
    events = EventAccumulator(str(board)).Reload()
    assert [event.step for event in events.Scalars("val_mse")] == [10, 20]
    assert events.Scalars("val_mse")[-1].value < 1.0  # of 5, the variance of a sum of five


def test_regularizer_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    Path("regularizer.yaml").write_text(block("regularizer", "yaml"))
    configs = CONFIGS / "universal_perturbation"
    files = (configs / "base.yaml", configs / "fe_dual_ex.yaml", "regularizer.yaml")
    cli = FederatedCLI([f"--config={file}" for file in files], run=False)
    terms = [type(term.regularizer).__name__ for term in cli.model.run.simulation.server.algorithm.regularizer.terms]
    assert terms == ["GroupLasso", "L1"]


def test_table_names_every_algorithm():
    table = (ROOT / "docs" / "algorithms.md").read_text()
    classes = {v for v in vars(algorithms).values() if isinstance(v, type) and issubclass(v, algorithms.Algorithm)}
    bases = {algorithms.Algorithm, algorithms.LocalGradientAlgorithm, algorithms.SplittingAlgorithm}
    for cls in classes - bases:
        assert f"| `{cls.__name__}` |" in table
    assert f"All {len(classes - bases)} algorithms" in README


LINKED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


IMPORTED = re.compile(r"^\s*(?:import|from) (lightning|fedlightning)\b", re.M)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_import_fedlightning_before_lightning(page):
    """Each by itself: beside a CPU-only torch the other order ends in torchvision's missing operators."""
    for code in re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        imported = IMPORTED.findall(code)
        assert imported[:1] != ["lightning"], f"{page.name}: lightning comes first in\n{code}"


def anchors(page):
    """The anchors of a page's headings, as the site and code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """To files of the repository and to headings of its pages, so that they lead somewhere off the site as well."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if "://" in target:
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_every_algorithm_file_is_exported():
    exported = {getattr(value, "__module__", "") for value in vars(algorithms).values()}
    for path in (ROOT / "fedlightning" / "algorithms").glob("*.py"):
        if path.stem not in ("__init__", "base"):
            assert f"fedlightning.algorithms.{path.stem}" in exported
