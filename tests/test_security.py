"""No checkpoint runs, imports or builds anything but what it may: every place of real ones is poisoned in turn."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from contextlib import suppress
from functools import partial
from itertools import cycle, islice

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.callbacks import History, LastCheckpoint
from fedlightning.cli import main
from fedlightning.core.serialisation import CheckpointError, UntrustedClassError
from fedlightning.data import ClientDatasets
from fedlightning.federation.files.checkpoint_io import AtomicCheckpointIO
from fedlightning.oracle import Sequential
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification, DomainAdaptation
from tests.support.paths import CONFIGS
from tests.support.small import Line, clients, regression_data, trainer

CANARY = """
from pathlib import Path
Path(__file__).with_name("imported").touch()

class Canary:
    def __init__(self, *args, **kwargs):
        Path(__file__).with_name("built").touch()

def run(*args, **kwargs):
    Path(__file__).with_name("ran").touch()
"""
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.enable_model_summary=false"]
CLASSES = [f"--config={CONFIGS}/classification/{name}.yaml" for name in ("base", "fed_avg")]


class Canaries:
    """A folder in which nothing must appear, and payloads that would make something appear there."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "canary_module.py").write_text(CANARY)

    @property
    def dead(self):
        """What ran."""
        left = sorted(p.name for p in self.folder.rglob("*") if p.name != "canary_module.py")
        return left + ["canary_module"] * ("canary_module" in sys.modules)

    def payloads(self):
        """Values for a place."""
        ran = str(self.folder / "ran")
        calls = {
            "canary_module.Canary": {},
            "canary_module.run": {},
            "os.system": {"command": f"touch {ran}"},
            "os.mkdir": {"path": ran},
            "subprocess.Popen": {"args": ["touch", ran]},
            "builtins.open": {"file": ran, "mode": "w"},
            "builtins.eval": {"source": f"open({ran!r}, 'w')"},
            "pathlib.Path.touch": {"self": ran},
            "importlib.import_module": {"name": "canary_module"},
            "fedlightning.federation.client_states.os.mkdir": {"path": ran},
            "fedlightning.oracle.auto.time.os.mkdir": {"path": ran},
            "fedlightning.cli.main": {"args": ["fit", f"--trainer.default_root_dir={ran}"]},
            "fedlightning.federation.files.checkpoint_io.write_whole": {"value": 0, "target": ran},
            "fedlightning.data.MNIST": {"root": ran, "download": True},
            "torch.optim.sys.modules": {},
            "torch.nn.modules.module.torch.save": {"obj": 0, "f": ran},
            "torch.utils.tensorboard.SummaryWriter": {"log_dir": ran},
            "lightning.pytorch.cli.instantiate_module": {"class_type": "canary_module.Canary", "config": {}},
            "lightning.pytorch.callbacks.ModelCheckpoint": {"dirpath": ran},
        }
        yield from ({"class_path": path, "init_args": arguments} for path, arguments in calls.items())
        yield {"class_path": "canary_module.Canary"}
        yield {"class_path": "canary_module.Canary", "dict_kwargs": {}}
        yield {"_instantiator": "canary_module.run", "_class_path": "canary_module.Canary"}
        yield {"class_path": ["canary_module.Canary"], "init_args": {"class_path": "canary_module.run"}}
        yield {"class_path": "fedlightning.algorithms.FedAvg", "init_args": {"lr": self.call("canary_module.run")}}
        yield {"class_path": "torch.optim.SGD", "init_args": {"lr": self.call("canary_module.run")}}
        yield {"class_path": "torch.nn.Sequential", "init_args": {"args": [self.call("canary_module.run")]}}
        yield {"class_path": "torch.optim.lr_scheduler.LambdaLR", "init_args": {"lr_lambda": "canary_module.run"}}
        yield [self.call("canary_module.run")]
        yield "canary_module.Canary"
        yield "canary_module.run"

    @staticmethod
    def call(path):
        return {"class_path": path, "init_args": {}}

    def pickled(self):
        """An object that runs something when it is unpickled."""
        return Unpickled(str(self.folder / "ran"))


class Unpickled:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.fixture
def canaries(tmp_path, monkeypatch):
    folder = tmp_path / "canaries"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    yield Canaries(folder)
    sys.modules.pop("canary_module", None)


def optimized(**options):
    return Line(
        FedAvg(0.05, local_optimizer=partial(torch.optim.SGD, momentum=0.5)),
        server_optimizer=partial(torch.optim.Adam, lr=0.01),
        server_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=2),
        **options,
    )


def dual():
    return Line(FedMM(0.05, mu=1.0))


def fitted(make, folder, **options):
    callbacks = [History(), ModelCheckpoint(folder, monitor="train_loss", save_top_k=2)]
    callbacks = callbacks if make is optimized else callbacks[:1]
    fit = trainer(folder, enable_checkpointing=make is optimized, callbacks=callbacks, max_steps=6, **options)
    fit.fit(make(), regression_data())
    fit.save_checkpoint(folder / f"{make.__name__}.ckpt")
    return folder / f"{make.__name__}.ckpt"


def fitted_by_command(folder, configs, *options):
    main(["fit", *configs, *QUIET, "--trainer.max_steps=2", f"--trainer.default_root_dir={folder}",
          "--trainer.logger=false", "--trainer.limit_val_batches=1", *options])  # fmt: skip
    return next(folder.rglob("last.ckpt"))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Real checkpoints, and the class that loads each."""
    folder = tmp_path_factory.mktemp("real")
    adam = ["--model.init_args.server_optimizer=Adam", "--model.init_args.server_optimizer.lr=0.01",
            "--model.init_args.algorithm.init_args.local_optimizer=torch.optim.Adam"]  # fmt: skip
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("sys.argv", ["fedlightning"])
        return {
            "optimized": (Line, fitted(optimized, folder)),
            "dual": (Line, fitted(dual, folder)),
            "classes": (Classification, fitted_by_command(folder / "classes", CLASSES, *adam)),
        }


@pytest.fixture(scope="module")
def domains(tmp_path_factory):
    """One more, with networks in its hyper-parameters."""
    configs = [f"--config={CONFIGS}/domain_adaptation/{name}.yaml" for name in ("base", "fed_mm")]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("sys.argv", ["fedlightning"])
        return DomainAdaptation, fitted_by_command(tmp_path_factory.mktemp("domains"), configs)


def places(value, at=()):
    """Keys of every dict value and list element within, and of new entries: those that mean something somewhere."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*at, key)
            yield from places(item, (*at, key))
        for key in ("_instantiator", "_class_path", "class_path", "init_args", "network", "oracle", "hparams"):
            if key not in value:
                yield (*at, key)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield (*at, i)
            yield from places(item, (*at, i))


def put(checkpoint, place, payload):
    """A copy with a value at a place."""
    if not place:
        return payload
    key, *rest = place
    changed = copy.copy(checkpoint)
    changed = list(changed) if isinstance(changed, tuple) else changed
    before = changed[key] if isinstance(changed, list) or key in changed else None
    changed[key] = put(before, rest, payload)
    return changed


def load_and_use(cls, path, **options):
    load = cls.load_from_checkpoint.__func__  # Lightning's wrapper of class methods looks at the whole stack
    task = load(cls, path, **options)
    _ = task.server_state
    _ = task.client_states if task.run.has_client_states else None
    return task


def carefully(load):
    """Load what may be refused in whatever way."""
    with suppress(Exception, SystemExit), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load()


def entries(name, cls, path):
    """All ways a checkpoint is loaded in Python."""
    make = {"optimized": optimized, "dual": dual}.get(name)
    yield partial(load_and_use, cls, path)
    if make is None:
        return
    silent = {"verbose": False}
    yield lambda: trainer(max_steps=6, callbacks=[History()]).fit(make(), regression_data(), ckpt_path=path)
    top = partial(ModelCheckpoint, path.parent / "top", monitor="train_loss")
    going_on = partial(trainer, enable_checkpointing=True, max_steps=7)
    yield lambda: going_on(callbacks=[top()]).fit(make(), regression_data(), ckpt_path=path)
    yield lambda: trainer().test(make(), regression_data(), ckpt_path=path, **silent)
    yield lambda: trainer().validate(make(), regression_data(), ckpt_path=path, **silent)
    yield lambda: trainer().predict(make(), regression_data(), ckpt_path=path)
    yield partial(load_and_use, cls, path, weights_only=True)


def by_command(path):
    """The command line's ways."""
    run = [*CLASSES, *QUIET, "--trainer.logger=false", f"--ckpt_path={path}"]
    yield lambda: main(["fit", *run, "--trainer.max_steps=2", "--trainer.enable_checkpointing=false"])
    for command in ("validate", "test", "predict"):
        yield partial(main, [command, *run])


def poisoned(stored, canaries, each=1):
    """Checkpoints with one poisoned place, ``each`` of every place; payloads take turns."""
    take = cycle(canaries.payloads())
    for place in places(stored):
        for payload in islice(take, each):
            yield place, payload, put(stored, place, payload)


@pytest.mark.parametrize("name", ["optimized", "dual", "classes"])
def test_what_is_not_poisoned_loads(name, real, canaries):
    cls, path = real[name]
    for entry in entries(name, cls, path):
        entry()
    for entry in by_command(path) if name == "classes" else ():
        entry()
    assert not canaries.dead


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimized", "dual", "classes"])
def test_every_place_of_a_checkpoint_can_be_poisoned(name, real, canaries, tmp_path):
    cls, path = real[name]
    stored = torch.load(path, weights_only=True)
    bad = tmp_path / "bad.ckpt"
    tried = 0
    for number, (place, payload, checkpoint) in enumerate(poisoned(stored, canaries)):
        if number % 2 or (place[0] not in ("hyper_parameters", "federation") and len(place) > 2):
            continue  # Lightning's own states are gone through below, and all of it by the slow test
        torch.save(checkpoint, bad)
        carefully(partial(load_and_use, cls, bad))
        assert not canaries.dead, (place, payload)
        tried += 1
    assert tried >= 50


def test_poison_through_every_entry(real, canaries, tmp_path):
    """Every entry meets the places it reads."""
    cls, path = real["optimized"]
    stored = torch.load(path, weights_only=True)
    bad = tmp_path / "bad.ckpt"
    read = ("federation", "hyper_parameters", "callbacks", "loops", "optimizer_states", "lr_schedulers")
    chosen = [p for p in places(stored) if len(p) == 1 or (p[0] in read and len(p) <= 3)][::3]
    take, tried = cycle(canaries.payloads()), 0
    for number, place in enumerate(chosen):
        payload = next(take)
        torch.save(put(stored, place, payload), bad)
        ways = list(entries("optimized", cls, bad))
        carefully(ways[1 + number % (len(ways) - 1)])
        assert not canaries.dead, (place, payload)
        tried += 1
    assert tried >= 50


def test_poison_by_the_command_line(real, canaries, tmp_path):
    _, path = real["classes"]
    stored = torch.load(path, weights_only=True)
    bad = tmp_path / "bad.ckpt"
    spots = [("federation", "oracle"), ("hyper_parameters", "algorithm"), ("hyper_parameters", "_class_path"), ("new",)]
    for place, way in zip(spots, by_command(bad), strict=True):
        torch.save(put(stored, place, canaries.call("canary_module.run")), bad)
        carefully(way)
        assert not canaries.dead, place


@pytest.mark.parametrize("place", [("state_dict",), ("hyper_parameters", "dropout"), ("callbacks", "x"), ("new",)])
def test_pickled_objects_are_refused(place, real, canaries, tmp_path, monkeypatch):
    cls, path = real["optimized"]
    bad = tmp_path / "bad.ckpt"
    torch.save(put(torch.load(path, weights_only=True), place, canaries.pickled()), bad)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0")
    for entry in entries("optimized", cls, bad):
        with pytest.raises(
            CheckpointError, match=r"more than tensors.*mkdir.*Nothing of it was run.*weights_only=False"
        ):
            entry()
    assert not canaries.dead


@pytest.mark.slow
@pytest.mark.skipif("FEDLIGHTNING_CAMPAIGNS" not in os.environ, reason="minutes a checkpoint: FEDLIGHTNING_CAMPAIGNS=1")
@pytest.mark.parametrize("name", ["optimized", "dual", "classes", "domains"])
def test_all_places_through_all_entries(name, request, canaries, tmp_path):
    cls, path = request.getfixturevalue("domains") if name == "domains" else request.getfixturevalue("real")[name]
    stored = torch.load(path, weights_only=True)
    bad = tmp_path / "bad.ckpt"
    tried = 0
    for number, (place, payload, checkpoint) in enumerate(poisoned(stored, canaries, each=4)):
        torch.save(checkpoint, bad)
        ways = list(entries(name, cls, bad))
        for way in {0, number % len(ways)}:
            carefully(ways[way])
        if name == "classes" and number % 100 == 0:
            carefully(list(by_command(bad))[number // 100 % 4])
        assert not canaries.dead, (place, payload)
        tried += 1
    assert tried >= 1000


def test_the_hole_that_was_known(real, canaries, tmp_path):
    """``federation.oracle`` was built from whatever class path it had."""
    cls, path = real["dual"]
    stored = torch.load(path, weights_only=True)
    bad = tmp_path / "bad.ckpt"
    payload = {"class_path": "os.mkdir", "init_args": {"path": str(canaries.folder / "ran")}}
    torch.save(put(stored, ("federation", "oracle"), payload), bad)
    task = cls.load_from_checkpoint(bad, weights_only=True)
    for _ in range(2):  # nor does it go on without the states that were refused
        with pytest.raises(UntrustedClassError, match=r"bad.ckpt: federation.oracle names the class 'os.mkdir'"):
            _ = task.server_state
    with pytest.raises(UntrustedClassError, match=r"federation.oracle names the class 'os.mkdir'"):
        trainer(max_steps=8).fit(dual(), regression_data(), ckpt_path=bad)
    assert not canaries.dead


@pytest.mark.parametrize(
    ("place", "payload", "said"),
    [
        (("algorithm",), {"class_path": "canary_module.Canary"}, r"hyper_parameters.algorithm names .*canary_module"),
        (("_instantiator",), "canary_module.run", r"hyper_parameters._instantiator asks to run 'canary_module.run'"),
        (("_class_path",), "canary_module.Canary", r"_class_path asks for a 'canary_module.Canary', which is no Line"),
        (("_class_path",), "fedlightning.tasks.QuadraticSaddle", r"which is no Line"),
        (
            ("algorithm", "init_args", "local_optimizer"),
            {"class_path": "torch.optim.sys.modules"},
            r"algorithm.local_optimizer names the class 'torch.optim.sys.modules'.*trusted=\[TheClass\]",
        ),
        (("dropout",), [1, {"class_path": "fedlightning.cli.main"}], r"hyper_parameters.dropout\[1\] names"),
    ],
)
def test_refusals_name_place_class_and_remedy(place, payload, said, real, canaries, tmp_path):
    _, path = real["optimized"]
    bad = tmp_path / "bad.ckpt"
    torch.save(put(torch.load(path, weights_only=True), ("hyper_parameters", *place), payload), bad)
    with pytest.raises(UntrustedClassError, match=said):
        Line.load_from_checkpoint(bad)
    assert not canaries.dead


class Head(torch.nn.Linear):
    """A class of the module that defines the task."""


class Headed(Line):
    def __init__(self, algorithm=None, head=None, activation=None, **federation):
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.own, self.activation = head, activation


def test_classes_beside_the_task_and_those_named_are_built(tmp_path, real, canaries):
    _, path = real["dual"]
    stored = torch.load(path, weights_only=True)
    ours = {"class_path": f"{__name__}.Head", "init_args": {"in_features": 2, "out_features": 1}}
    theirs = {"class_path": "canary_module.Canary", "init_args": {}}
    layer = {"class_path": "torch.nn.ELU", "init_args": {"alpha": 0.5}}
    task = Headed(FedAvg(0.05))
    fit = trainer(tmp_path, max_steps=1)
    fit.fit(task, regression_data())
    fit.save_checkpoint(tmp_path / "own.ckpt")
    stored = torch.load(tmp_path / "own.ckpt", weights_only=True)
    torch.save(put(put(stored, ("hyper_parameters", "head"), ours), ("hyper_parameters", "activation"), layer),
               tmp_path / "own.ckpt")  # fmt: skip
    with pytest.raises(CheckpointError, match=r"'own.weight' is missing there"):
        Headed.load_from_checkpoint(tmp_path / "own.ckpt")
    loaded = Headed.load_from_checkpoint(tmp_path / "own.ckpt", strict=False)
    assert type(loaded.own) is Head
    assert loaded.activation.alpha == 0.5
    torch.save(put(stored, ("hyper_parameters", "activation"), theirs), tmp_path / "their.ckpt")
    with pytest.raises(UntrustedClassError, match="canary_module"):
        Headed.load_from_checkpoint(tmp_path / "their.ckpt")
    assert Headed.load_from_checkpoint(tmp_path / "their.ckpt", activation=None).activation is None
    assert not canaries.dead
    from canary_module import Canary

    loaded = Headed.load_from_checkpoint(tmp_path / "their.ckpt", trusted=[Canary])
    assert type(loaded.activation) is Canary
    with pytest.raises(TypeError, match="expected a list of classes"):
        Headed.load_from_checkpoint(tmp_path / "their.ckpt", trusted=["canary_module.Canary"])


def test_what_a_module_merely_imports_is_not_its_own(real, tmp_path, canaries):
    """``subprocess`` and ``os`` are names in this very module, which defines the task."""
    assert subprocess.Popen
    task = Headed(FedAvg(0.05))
    fit = trainer(tmp_path, max_steps=1)
    fit.fit(task, regression_data())
    fit.save_checkpoint(tmp_path / "own.ckpt")
    stored = torch.load(tmp_path / "own.ckpt", weights_only=True)
    for path in ("subprocess.Popen", "os.mkdir", "LastCheckpoint", "main", "warnings"):
        payload = {"class_path": f"{__name__}.{path}", "init_args": {"path": str(canaries.folder / "ran")}}
        torch.save(put(stored, ("hyper_parameters", "head"), payload), tmp_path / "bad.ckpt")
        with pytest.raises(UntrustedClassError, match=r"hyper_parameters.head names"):
            Headed.load_from_checkpoint(tmp_path / "bad.ckpt")
    assert LastCheckpoint
    assert not canaries.dead


class Own(Sequential):
    """A user's oracle."""


def test_a_users_own_oracle_is_taken_from_this_run(tmp_path):
    first = trainer(tmp_path, max_steps=2)
    first.fit(Line(FedMM(0.05), oracle=Own()), regression_data())
    first.save_checkpoint(tmp_path / "own.ckpt")
    task = Line(FedMM(0.05), oracle=Own())
    trainer(tmp_path, max_steps=4).fit(task, regression_data(), ckpt_path=tmp_path / "own.ckpt")
    assert type(task.run.simulation.runner.oracle_selection.oracle) is Own
    with pytest.raises(UntrustedClassError, match=r"federation.oracle names the class 'tests.test_security.Own'"):
        trainer(max_steps=4).fit(Line(FedMM(0.05)), regression_data(), ckpt_path=tmp_path / "own.ckpt")


def test_folders_are_not_made_where_a_checkpoint_says(real, tmp_path):
    _, path = real["dual"]
    there = {
        "class_path": "fedlightning.federation.client_states.MemoryMapped",
        "init_args": {"folder": str(tmp_path / "rows")},
    }
    bad = tmp_path / "bad.ckpt"
    stored = torch.load(path, weights_only=True)
    torch.save(put(stored, ("hyper_parameters", "client_storage"), there), bad)
    with pytest.raises(CheckpointError, match=r"kept in the folder .*rows, which is not there. Give client_storage="):
        Line.load_from_checkpoint(bad)
    assert not (tmp_path / "rows").exists()
    assert Line.load_from_checkpoint(bad, client_storage=None).client_states is not None
    (tmp_path / "rows").mkdir()
    assert Line.load_from_checkpoint(bad).client_states is not None


class Data(ClientDatasets):
    """Data that keep their hyper-parameters."""

    def __init__(self, participation=None, root=None):
        super().__init__(clients(), local_steps=2, participation=participation)
        self.save_hyperparameters()


def test_data_modules_of_a_checkpoint(tmp_path, canaries):
    fit = trainer(tmp_path, max_steps=1)
    fit.fit(Line(FedMM(0.05)), Data(Uniform(2)))
    fit.save_checkpoint(tmp_path / "data.ckpt")
    stored = torch.load(tmp_path / "data.ckpt", weights_only=True)
    assert Data.load_from_checkpoint(tmp_path / "data.ckpt").participation == Uniform(2)
    take = cycle(canaries.payloads())
    for place in places(stored["datamodule_hyper_parameters"], ("datamodule_hyper_parameters",)):
        torch.save(put(stored, place, next(take)), tmp_path / "bad.ckpt")
        carefully(lambda: Data.load_from_checkpoint(tmp_path / "bad.ckpt"))
        assert not canaries.dead, place
    torch.save(put(stored, ("datamodule_hyper_parameters", "root"), canaries.call("os.mkdir")), tmp_path / "bad.ckpt")
    with pytest.raises(UntrustedClassError, match=r"datamodule_hyper_parameters.root names the class 'os.mkdir'"):
        Data.load_from_checkpoint(tmp_path / "bad.ckpt")


def test_superseded_files_are_removed_but_no_folders_or_detours(tmp_path):
    """The paths of superseded checkpoints come from the checkpoint a run is resumed from."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data.txt").touch()
    (tmp_path / "old.ckpt").touch()
    io = AtomicCheckpointIO()
    io.remove_checkpoint(tmp_path / "old.ckpt")
    assert not (tmp_path / "old.ckpt").exists()
    detour = f"{tmp_path}/elsewhere/../precious/data.txt"
    for path in (tmp_path / "precious", detour, f"local://{tmp_path}/precious", f"file://{tmp_path}/precious/data.txt"):
        with pytest.warns(UserWarning, match="is left"):
            io.remove_checkpoint(path)
    assert (tmp_path / "precious" / "data.txt").exists()
