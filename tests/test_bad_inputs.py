"""A campaign of bad inputs: each ends in a clear error, or in the right result.

Checkpoints that are truncated, foreign or poisoned have tables of their own in ``test_checkpoint_io.py`` and
``test_security.py``; a few stand here for the rest.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning import algorithms as a
from fedlightning import participation as p
from fedlightning import proximal as psi
from fedlightning.callbacks import LastCheckpoint, LogPictures, RoundProgressBar
from fedlightning.cli import main
from fedlightning.data import (
    FEMNIST,
    IID,
    MNIST,
    Digits,
    DigitsM,
    DigitsOfSizes,
    Dirichlet,
    PersonalDigits,
    ScalePixels,
    Shards,
    SourceTargetShare,
    Synthetic,
)
from fedlightning.federation.client_states import MemoryMapped
from fedlightning.federation.files.checkpoint_io import CheckpointError
from fedlightning.federation.sampling.loaded_samples import SampleError
from fedlightning.federation.server import RoundRejectedError
from fedlightning.local import (
    SVRG,
    Adam,
    DecreasingTolerance,
    GradientDescent,
    GradientTolerance,
    LocalSteps,
    RelativeDecrease,
)
from fedlightning.oracle import Auto, ObjectiveError, Sequential, Vectorized
from fedlightning.tasks import (
    MDD,
    AUCMaximization,
    BilinearL1,
    DomainAdaptation,
    PersonalizedClassification,
    PersonalQuadratic,
    QuadraticSaddle,
    RobustClassification,
)
from tests.support.paths import CONFIGS
from tests.support.small import Line, Normed, Personal, clients, regression_data, trainer

NAN, INF = float("nan"), float("inf")
DEAL = {"batch_size": 4, "local_steps": 2, "seed": 1}


@dataclass(frozen=True)
class Row:
    """One bad input.

    Attributes:
        group: What is bad.
        name: Unique.
        run: Meets the input; where a right result is expected, it asserts that.
        error: The expected exception; None for a right result.
        says: Regular expression of the message.
    """

    group: str
    name: str
    run: Callable[[], Any]
    error: type[BaseException] | None = None
    says: str = ""


ROWS: list[Row] = []


def row(
    group: str, name: str, run: Callable[[], Any], error: type[BaseException] | None = None, says: str = ""
) -> None:
    ROWS.append(Row(group, name, run, error, says))


def fit(task=None, data=None, **options):
    """Two rounds; returns the task."""
    task = Line() if task is None else task
    trainer(**{"max_steps": 2, **options}).fit(task, regression_data() if data is None else data)
    return task


def weights(task):
    return torch.cat([parameter.detach().flatten() for parameter in task.parameters()])


def same(one, other):
    assert torch.allclose(weights(one), weights(other), atol=1e-5)


T, V = TypeError, ValueError
NUMBER, WHOLE = "expected a number, not", "expected a whole number, not"
PAIR = r"expected one number or a pair \[min, max\]"

OPTIONS: list[tuple[str, Callable[[Any], Any], list[tuple[Any, type[BaseException], str]]]] = [
    (
        "FedAvg.lr",
        a.FedAvg,
        [
            ("abc", T, rf"FedAvg\(lr='abc'\): {NUMBER} 'abc'"),
            ("0.1", T, NUMBER),
            (NAN, V, r"FedAvg\(lr=nan\): .*finite"),
            (INF, V, "finite"),
            (-0.1, V, r"FedAvg\(lr=-0.1\): expected > 0"),
            (0.0, V, "> 0"),
            (None, T, NUMBER),
            (True, T, rf"{NUMBER} True"),
            (1j, T, NUMBER),
            ({0.1}, T, NUMBER),
            ([], V, PAIR),
            ([0.1], V, PAIR),
            ([0.1, 0.1, 0.1], V, PAIR),
            (["a", "b"], T, rf"{NUMBER} 'a'"),
            ([[0.1], 0.2], T, NUMBER),
            ([0.1, NAN], V, "finite"),
            ([0.1, -1], V, "> 0"),
            ({1: 0.1}, T, "name prefixes or 'default' as keys, not 1"),
            ({"default": None}, T, NUMBER),
            ({"body": 0.1, "head": 0.0}, V, "> 0"),
        ],
    ),
    (
        "FedAvg.local_clip",
        lambda v: a.FedAvg(0.1, local_clip=v),
        [("a", T, NUMBER), (0, V, "> 0, or null"), ([1.0], T, NUMBER)],
    ),
    (
        "FedAvg.local_optimizer",
        lambda v: a.FedAvg(0.1, local_optimizer=v),
        [("adam", T, r"local_optimizer='adam'\): .*partial")],
    ),
    (
        "FedProx.mu",
        lambda v: a.FedProx(0.1, v),
        [(-1.0, V, r"FedProx\(mu=-1.0\): expected >= 0"), ([1.0, 2.0, 3.0], V, PAIR)],
    ),
    ("FedMM.eta3", lambda v: a.FedMM(0.1, eta3=v), [(2.5, V, "> 0 and <= 1"), ([1.0, 1.0], T, NUMBER)]),
    ("FedMM.mean_over", lambda v: a.FedMM(0.1, mean_over=v), [("both", V, "'cohort' or 'all'")]),
    ("FedExP.eps", lambda v: a.FedExP(0.1, v), [(0, V, "> 0"), ([1.0, 1.0], T, NUMBER)]),
    ("FedExP.output", lambda v: a.FedExP(0.1, output=v), [("mean", V, "'last' or 'mean_of_two'")]),
    ("FedNova.mu", lambda v: a.FedNova(0.1, v), [(-1.0, V, ">= 0"), ("a", T, NUMBER)]),
    (
        "FedNova.local_optimizer",
        lambda v: a.FedNova(0.1, local_optimizer=v),
        [("adam", T, "local_optimizer='adam'"), (Adam(), T, r"expected fedlightning.local.SGD\(...\) or null")],
    ),
    ("FedDyn.alpha", lambda v: a.FedDyn(0.1, v), [(0, V, "> 0"), ([1.0] * 3, V, PAIR), ("a", T, NUMBER)]),
    ("Scaffnew.p", lambda v: a.Scaffnew(0.1, v), [(0, V, "> 0 and <= 1"), (1.5, V, "> 0 and <= 1")]),
    ("Scaffnew.chi", lambda v: a.Scaffnew(0.1, chi=v), [(0, V, "> 0 and <= 1"), ("a", T, NUMBER)]),
    ("Scaffnew.seed", lambda v: a.Scaffnew(0.1, seed=v), [(2.5, T, WHOLE)]),
    ("SCAFFOLD.lr_server", lambda v: a.SCAFFOLD(0.1, v), [(0, V, "> 0"), ("x", T, NUMBER)]),
    ("FedPD.p", lambda v: a.FedPD(0.1, p=v), [(1.0, V, ">= 0 and < 1"), (NAN, V, "finite")]),
    ("FedPD.seed", lambda v: a.FedPD(0.1, seed=v), [("a", T, WHOLE), (2.5, T, WHOLE)]),
    ("FedDR.alpha", lambda v: a.FedDR(0.1, v), [(2.0, V, "> 0 and < 2"), (None, T, NUMBER)]),
    ("FedADMM.sigma", a.FedADMM, [(0, V, "> 0"), ([1.0] * 3, V, PAIR)]),
    ("FedADMM.nu", lambda v: a.FedADMM(1.0, nu=v), [(1.0, V, "> 0 and < 1")]),
    ("FedADMM.eps", lambda v: a.FedADMM(1.0, eps=v), [([1.0, 2.0], T, NUMBER)]),
    (
        "FedADMM.solver",
        lambda v: a.FedADMM(1.0, solver=v),
        [
            ("abc", T, r"FedADMM\(solver='abc'\): expected a LocalSolver object, e.g. LocalSteps"),
            (GradientDescent, T, r"solver=GradientDescent\): expected a LocalSolver object"),
            (None, T, "LocalSolver"),
        ],
    ),
    ("FedADMM.stop", lambda v: a.FedADMM(1.0, stop=v), [(0.1, T, "expected a StoppingRule object")]),
    ("FedADMMGong.rho", a.FedADMMGong, [(-1, V, "> 0")]),
    ("FedSplit.s", a.FedSplit, [("x", T, NUMBER)]),
    ("FIAELT.beta", a.FIAELT, [(NAN, V, "or null"), (True, T, NUMBER)]),
    ("FIAELT.r", lambda v: a.FIAELT(1.0, r=v), [(1.0, V, "< 1"), ([0.1, 0.1], T, NUMBER)]),
    ("Ditto.lam", lambda v: a.Ditto(0.1, v), [(-1, V, ">= 0"), (INF, V, "finite")]),
    (
        "pFedMe.inner_steps",
        lambda v: a.pFedMe(0.1, inner_steps=v),
        [(2.5, T, rf"pFedMe\(inner_steps=2.5\): {WHOLE}"), (0, V, ">= 1")],
    ),
    ("FedAPM.start", lambda v: a.FedAPM(0.1, start=v), [("own", V, "'local' or 'shared'")]),
    ("FedAPM.personal_passes", lambda v: a.FedAPM(0.1, personal_passes=v), [(1.5, T, WHOLE), ("a", T, WHOLE)]),
    ("FedAlt.personal_passes", lambda v: a.FedAlt(0.1, v), [(0, V, ">= 1"), ([1, 1], T, WHOLE)]),
    ("FedALA.first_passes", lambda v: a.FedALA(0.1, first_passes=v), [(2.5, T, WHOLE)]),
    (
        "FedCP.heads",
        lambda v: a.FedCP(0.1, v),
        [
            ("abc", T, r"FedCP\(heads='abc'\): expected the names of two heads"),
            (("one",), T, "two heads"),
            (3, T, "two heads"),
        ],
    ),
    ("FedCP.share", lambda v: a.FedCP(0.1, share=v), [(0, V, "> 0 and <= 1")]),
    ("MOON.bodies", lambda v: a.MOON(0.1, v), [("abc", T, "two bodies"), (3, T, "two bodies")]),
    ("FedSkip.period", lambda v: a.FedSkip(0.1, v), [(2.5, T, WHOLE), (0, V, ">= 1")]),
    ("CDMA.beta", lambda v: a.CDMA(0.1, v), [(2.5, V, ">= 0 and <= 1")]),
    ("CDMA.alpha", lambda v: a.CDMA(0.1, alpha=v), [([1.0, 1.0], T, NUMBER)]),
    ("CODASCA.stage_steps", lambda v: a.CODASCA(0.1, stage_steps=v), [(2.5, T, WHOLE)]),
    ("CatalystScaffoldS.seed", lambda v: a.CatalystScaffoldS(0.1, seed=v), [(None, T, WHOLE), (NAN, T, WHOLE)]),
    ("LocalSGDAPlus.refresh", lambda v: a.LocalSGDAPlus(0.1, v), [(2.5, T, WHOLE)]),
    ("LpProj.dim", lambda v: a.LpProj(0.1, v), [(2.5, T, WHOLE), (0, V, ">= 1")]),
    ("LpProj.p", lambda v: a.LpProj(0.1, 3, p=v), [(3, V, "expected 1 or 2")]),
    ("FeDualEx.output", lambda v: a.FeDualEx(0.1, output=v), [("mean", V, "'last' or 'ergodic'")]),
    ("SVRG.epochs", lambda v: SVRG(epochs=v), [(2.5, T, WHOLE), (INF, T, WHOLE)]),
    ("GradientDescent.max_steps", lambda v: GradientDescent(max_steps=v), [(0, V, ">= 1"), ([5], T, WHOLE)]),
    ("LocalSteps.clip", lambda v: LocalSteps(clip=v), [(0, V, "> 0, or null")]),
    ("DecreasingTolerance.nu", lambda v: DecreasingTolerance(1.0, v), [(2.5, V, "< 1")]),
    ("GradientTolerance.eps", GradientTolerance, [([1.0], T, NUMBER)]),
    ("RelativeDecrease.r", RelativeDecrease, [(1, V, "< 1")]),
    ("L1.weight", psi.L1, [(NAN, V, "finite"), ([1.0], T, NUMBER), (None, T, NUMBER)]),
    ("Nuclear.radius", lambda v: psi.Nuclear(0.1, v), [(0.0, V, "> 0, or null")]),
    (
        "Box",
        lambda v: psi.Box(*v),
        [((None, None), V, "at least one bound"), ((1.0, 0.0), V, "low"), (([1.0], None), T, NUMBER)],
    ),
    ("GroupLasso.groups", lambda v: psi.GroupLasso(0.1, v), [("cols", V, "'rows' or 'columns'")]),
    (
        "Sum.first",
        lambda v: psi.Sum(v, psi.L1(0.1)),
        [("abc", T, r"Sum\(first='abc'\): expected a Regularizer object"), (psi.L1, T, "first=L1")],
    ),
    ("Simplex.total", psi.Simplex, [(-1, V, "> 0")]),
    (
        "Vectorized.chunk_size",
        lambda v: Vectorized(chunk_size=v),
        [(0, V, ">= 1, or null"), (2.5, T, WHOLE), ([1], T, WHOLE)],
    ),
    ("Vectorized.compile", lambda v: Vectorized(compile=v), [("abc", T, "true or false")]),
    ("Vectorized.backward", lambda v: Vectorized(backward=v), [("x", V, "'autograd', 'vmap', 'each' or null")]),
    ("Sequential.threads", Sequential, [(-1, V, ">= 1"), (2.5, T, WHOLE)]),
    ("Auto.trials", Auto, [(2.5, T, WHOLE), ("a", T, WHOLE)]),
    (
        "Uniform.size",
        p.Uniform,
        [(2.5, T, rf"Uniform\(size=2.5\): {WHOLE}"), ([2], T, WHOLE), (0, V, ">= 1"), (None, V, "exactly one")],
    ),
    ("Uniform.fraction", lambda v: p.Uniform(fraction=v), [(1.5, V, "> 0 and <= 1"), (NAN, V, "finite")]),
    ("ResponseShare.low", p.ResponseShare, [("a", T, NUMBER), (2, V, "low <= high <= 1")]),
    ("Devices.day", lambda v: p.Devices(day=v), [(2.5, T, WHOLE)]),
    ("FirstResponders.size", p.FirstResponders, [("a", T, WHOLE), (2.5, T, WHOLE), (0, V, "at_least <= size")]),
    ("FirstResponders.first", lambda v: p.FirstResponders(3, first=v), [(0, V, "first >= at_least"), (1.5, T, WHOLE)]),
    ("FirstResponders.responses", lambda v: p.FirstResponders(3, v), [("x", T, "expected a Responses object")]),
    ("IID.num_clients", IID, [(2.5, T, rf"IID\(num_clients=2.5\): {WHOLE}"), ("3", T, WHOLE), (0, V, "at least 1")]),
    ("Dirichlet.alpha", lambda v: Dirichlet(3, v), [(0, V, "> 0"), ([1.0], T, NUMBER)]),
    ("Dirichlet.min_size", lambda v: Dirichlet(3, 1.0, v), [(2.5, T, WHOLE)]),
    ("Shards.shards_per_client", lambda v: Shards(3, v), [(NAN, T, WHOLE)]),
    (
        "SourceTargetShare",
        lambda v: SourceTargetShare(*v),
        [((3,), V, "even number"), (("2",), T, WHOLE), ((2, "a"), T, NUMBER)],
    ),
    ("ScalePixels.std", lambda v: ScalePixels(0.5, v), [(0.0, V, "> 0")]),
    ("MDD", lambda v: MDD(**v), [({"hidden": 0}, V, ">= 1"), ({"hidden": "a"}, T, WHOLE), ({"nu": NAN}, V, "finite")]),
    ("LogPictures", LogPictures, [("a", T, WHOLE), (0, V, ">= 1")]),
    (
        "LastCheckpoint",
        lambda v: LastCheckpoint(every_n_seconds=v),
        [(NAN, V, "finite"), (-1, V, ">= 0"), ("a", T, NUMBER)],
    ),
    ("RoundProgressBar", RoundProgressBar, [(0, V, ">= 1")]),
    ("MemoryMapped.folder", MemoryMapped, [(3, T, "path of a folder"), ("", T, "path of a folder")]),
    (
        "data.batch_size",
        lambda v: regression_data(batch_size=v),
        [("3", T, rf"batch_size='3'\): {WHOLE} '3'"), (2.5, T, WHOLE), (0, V, ">= 1, or null"), (True, T, WHOLE)],
    ),
    ("data.local_steps", lambda v: regression_data(local_steps=v), [(-1, V, ">= 1"), ([2], T, WHOLE)]),
    (
        "data.local_epochs",
        lambda v: regression_data(local_epochs=v),
        [(None, T, NUMBER), (0, V, "> 0"), (NAN, V, "finite")],
    ),
    ("data.rounds_per_epoch", lambda v: regression_data(rounds_per_epoch=v), [(0, V, ">= 1"), (NAN, T, WHOLE)]),
    ("data.eval_batch_size", lambda v: regression_data(eval_batch_size=v), [("a", T, WHOLE)]),
    ("data.num_workers", lambda v: regression_data(num_workers=v), [(-1, V, ">= 0"), ("a", T, WHOLE)]),
    ("data.seed", lambda v: regression_data(seed=v), [("3", T, WHOLE), (None, T, WHOLE)]),
    (
        "data.participation",
        lambda v: regression_data(participation=v),
        [
            (3, T, r"participation=3\): expected a Participation object, e.g. Uniform"),
            (p.Full, T, "participation=Full"),
            (p.ResponseShare(), T, "expected a Participation object"),
        ],
    ),
    (
        "Synthetic",
        lambda v: Synthetic(**v),
        [({"alpha": NAN}, V, "finite"), ({"num_clients": 0}, V, ">= 1"), ({"problem_seed": -1}, V, ">= 0")],
    ),
    (
        "Digits",
        lambda v: Digits(**v),
        [
            ({"partitioner": "IID"}, T, "expected a Partitioner object"),
            ({"size": 0}, V, ">= 1"),
            ({"partitioner": IID}, T, "partitioner=IID"),
        ],
    ),
    ("DigitsM", lambda v: DigitsM(**v), [({"num_clients": 3}, V, "even number"), ({"size": "a"}, T, WHOLE)]),
    ("DigitsOfSizes", DigitsOfSizes, [((), V, "8, 4, 2 or 1"), (8, V, "8, 4, 2 or 1"), ((3,), V, "3 is none of")]),
    ("PersonalDigits", lambda v: PersonalDigits(IID(3), test_share=v), [("a", T, NUMBER), (1.0, V, "< 1")]),
    (
        "QuadraticSaddle",
        lambda v: QuadraticSaddle(a.FedSGDA(0.1), **v),
        [
            ({"num_clients": 0}, V, ">= 1"),
            ({"dim_x": "a"}, T, WHOLE),
            ({"dim_y": -1}, V, ">= 0"),
            ({"noise": -1.0}, V, ">= 0"),
            ({"heterogeneity": NAN}, V, "finite"),
        ],
    ),
    ("PersonalQuadratic", lambda v: PersonalQuadratic(a.FedAlt(0.1), **v), [({"dim_shared": 0}, V, ">= 1")]),
    (
        "BilinearL1",
        lambda v: BilinearL1(a.FeDualEx(0.1), **v),
        [({"dim_x": 0}, V, ">= 1"), ({"weight": -1.0}, V, "> 0")],
    ),
    (
        "AUCMaximization",
        lambda v: AUCMaximization(a.FedSGDA(0.1), **v),
        [({"positive": "a"}, T, WHOLE), ({"prior": 2.0}, V, "> 0 and < 1")],
    ),
    ("RobustClassification", lambda v: RobustClassification(a.FedSGDA(0.1), **v), [({"ascent_lr": NAN}, V, "finite")]),
    (
        "DomainAdaptation",
        lambda v: DomainAdaptation(a.FedSGDA(0.1), **v),
        [({"adversary": "dann"}, T, "expected an Adversary object")],
    ),
    (
        "PersonalizedClassification.personal",
        lambda v: PersonalizedClassification(a.FedAlt(0.1), personal=v),
        [("head", T, r"personal='head'\): expected a list"), (3, T, "expected a list")],
    ),
    ("task.weighting", lambda v: Line(weighting=v), [("unifrm", V, "'uniform', 'samples'")]),
    ("task.buffers", lambda v: Line(buffers=v), [(True, V, "'average', 'local'")]),
    ("task.self_check", lambda v: Line(self_check=v), [(0, V, "number of rounds"), (True, V, "number of rounds")]),
    (
        "task.oracle",
        lambda v: Line(oracle=v),
        [("Sequential", T, "expected a ClientBatching object"), (Sequential, T, "oracle=Sequential")],
    ),
    (
        "task.client_storage",
        lambda v: Line(client_storage=v),
        [("rows", T, "expected a Storage object"), (MemoryMapped, T, "Storage")],
    ),
    (
        "task.server_clip",
        lambda v: Line(server_clip=v),
        [(-1.0, V, "> 0"), (0.0, V, "> 0"), ("a", T, NUMBER), (INF, V, "finite")],
    ),
    ("task.predict_client", lambda v: Line(predict_client=v), [(-1, V, ">= 0"), ("a", T, WHOLE), (2.5, T, WHOLE)]),
    (
        "task.drift_parameters",
        lambda v: Line(drift_parameters=v),
        [("head", V, "list of name prefixes"), (3, V, "list of name prefixes")],
    ),
    (
        "task.server_optimizer",
        lambda v: Line(server_optimizer=v),
        [
            ("adam", T, r"server_optimizer='adam'\): .*partial\(torch.optim.Adam"),
            (torch.optim.SGD([torch.zeros(1)], lr=1.0), T, "something that makes it"),
        ],
    ),
    ("task.server_scheduler", lambda v: Line(server_scheduler=v), [("step", T, "something that makes it")]),
]
for _owner, _make, _values in OPTIONS:
    for _value, _error, _says in _values:
        row("options", f"{_owner}={str(_value)[:60]!r}", functools.partial(_make, _value), _error, _says)


def other_parameters(parameters):
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


for _name, _run, _error, _says in [
    ("lr unknown prefix", lambda: fit(Line(a.FedAvg({"bodyy": 0.1, "default": 0.1}))), V, "Did you mean 'body'"),
    ("lr uncovered", lambda: fit(Line(a.FedAvg({"body": 0.1}))), V, "no entry covers parameter 'head.weight'"),
    ("lr empty map", lambda: fit(Line(a.FedAvg({}))), V, "Add its prefix or the key 'default'"),
    (
        "server_optimizer none",
        lambda: fit(Line(server_optimizer=lambda p: None)),
        T,
        "made None: expected a torch.optim",
    ),
    ("server_optimizer others", lambda: fit(Line(server_optimizer=other_parameters)), V, "made for other parameters"),
    (
        "server_optimizer LBFGS",
        lambda: fit(Line(server_optimizer=torch.optim.LBFGS)),
        V,
        "LBFGS: it evaluates the loss",
    ),
    ("server_scheduler none", lambda: fit(Line(server_scheduler=lambda o: None)), T, "server_scheduler made None"),
    ("local_optimizer LBFGS", lambda: fit(Line(a.FedAvg(0.1, local_optimizer=torch.optim.LBFGS))), V, "elementwise"),
    ("drift unknown", lambda: fit(Line(drift_parameters=["boddy"])), V, "Did you mean 'body'"),
    ("drift number", lambda: fit(Line(drift_parameters=[1])), T, "drift_parameters: 1 is no name prefix"),
    ("cohort too large", lambda: fit(data=regression_data(participation=p.Uniform(9))), V, "federation of 4 clients"),
    ("regularizer number", lambda: fit(Line(a.FeDualEx(0.1), regularizer=1)), T, "1 is no regulariser"),
    ("regularizer class", lambda: fit(Line(a.FeDualEx(0.1), regularizer=psi.L1)), T, "is no regulariser"),
    (
        "regularizer prefix",
        lambda: fit(Line(a.FeDualEx(0.1), regularizer={"hed": psi.L1(0.1)})),
        V,
        "Did you mean 'head'",
    ),
    (
        "max_regularizer without",
        lambda: fit(Line(a.FeDualEx(0.1), max_regularizer=psi.L1(0.1))),
        V,
        "set max_parameters",
    ),
    (
        "matrix on vector",
        lambda: fit(Line(a.FeDualEx(0.1), regularizer={"head.bias": psi.Nuclear(0.1)})),
        V,
        "matrices",
    ),
    ("regularizer refused", lambda: Line(regularizer=psi.L1(0.1)), V, "FedAvg takes no regularizer"),
    ("two movers", lambda: Line(a.FedMiD(0.1), regularizer=psi.L1(0.1), server_clip=1.0), V, "Use either"),
    (
        "optimizer on dual",
        lambda: Line(a.FeDualEx(0.1), server_clip=1.0),
        V,
        "computes the point from its server state",
    ),
    ("unknown task option", lambda: Line(regulariser=None), T, "unexpected keyword argument 'regulariser'"),
    ("unknown data option", lambda: regression_data(batchsize=3), T, "Did you mean 'batch_size'"),
    ("both sizes", lambda: p.Uniform(2, 0.5), V, "exactly one of size and fraction"),
    ("too many clients", lambda: IID(99).split(torch.arange(30), 0), V, "99"),
    ("sketch too long", lambda: fit(Line(a.LpProj(0.1, 10**6))), V, "1 to 41, the number of shared parameters"),
    ("heads not there", lambda: fit(Line(a.FedCP(0.1))), V, "'network.head' matches no trainable parameter"),
]:
    row("options", _name, _run, _error, _says)
row(
    "options",
    "a NumPy number",
    lambda: same(fit(seeded(Line, a.FedAvg(np.float32(0.0625)))), fit(seeded(Line, a.FedAvg(0.0625)))),
)
row(
    "options",
    "overlapping prefixes, the longest wins",
    lambda: fit(Line(a.FeDualEx(0.1), regularizer={"head": psi.L1(0.1), "head.bias": psi.L1(0.2)})),
)


def seeded(make, *args, **kwargs):
    torch.manual_seed(3)
    return make(*args, **kwargs)


X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.linspace(-1, 1, 8)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Labels(FederatedLightningModule):
    def __init__(self, algorithm=None, **federation):
        super().__init__(algorithm or a.FedAvg(0.1), **federation)
        self.net = nn.Linear(6, 3)

    def objective(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Keyed(Line):
    """Samples are dicts."""

    def __init__(self):
        super().__init__(oracle=Vectorized())

    def objective(self, batch):
        return super().objective((batch["x"], batch["y"][:, 0]))


def of(*sets, task=Line, **options):
    """Fit on one data set a client."""
    return fit(seeded(task), FederatedDataModule.from_datasets(list(sets), **{**DEAL, **options}))


def pair(x=X, y=Y):
    return TensorDataset(x, y)


def alike(*bad, good=None):
    """Bad data that mean the same as good ones give the same model."""
    same(of(*bad), of(*(good or [pair()] * len(bad))))


OE = ObjectiveError
for _name, _run, _error, _says in [
    ("mixed features", lambda: of(pair(), pair(), pair(torch.randn(8, 7))), OE, r"failed for client 2: .*4x7 and 6x5"),
    ("mixed targets", lambda: of(pair(), pair(y=torch.randn(8, 2))), OE, "failed for client 1"),
    ("empty client", lambda: of(pair(), pair(X[:0], Y[:0])), V, "Client 1 has no samples .*Leave such clients out"),
    ("all empty", lambda: of(pair(X[:0], Y[:0])), V, "Client 0 has no samples"),
    ("null client", lambda: of(pair(), None), V, "Client 1 has no samples"),
    (
        "norm of one sample",
        lambda: of(pair(X[:1], Y[:1]), task=Normed, batch_size=1),
        OE,
        "more than 1 value per channel",
    ),
    ("texts", lambda: of(Items(["a", "b"])), T, "holds str 'a'|holds str 'b'"),
    ("text labels", lambda: of(Items([(x, "cat") for x in X])), T, "holds str 'cat'.*Encode it as a tensor"),
    (
        "objects",
        lambda: of(Items([object()] * 8)),
        SampleError,
        "Round 1: the samples of client 0 .*must contain tensors",
    ),
    ("null samples", lambda: of(pair(), Items([None] * 8)), SampleError, "samples of client 1 could not be loaded"),
    ("integer features", lambda: of(pair((3 * X).long())), OE, "client 0: RuntimeError: .*same dtype"),
    (
        "label too large",
        lambda: of(pair(y=LABELS + 1), task=Labels),
        OE,
        "client 0: IndexError: Target 3 is out of bounds",
    ),
    ("label negative", lambda: of(pair(y=LABELS - 1), task=Labels), OE, "Target -1 is out of bounds"),
    ("label real", lambda: of(pair(), task=Labels), OE, "expected target dtype to be Long"),
    (
        "all NaN",
        lambda: of(pair(X * NAN), pair(X * NAN)),
        RoundRejectedError,
        "Round 1: All 2 clients .*finite at the initial parameters.*look at the clients' data",
    ),
    ("all infinite", lambda: of(pair(X * INF)), RoundRejectedError, "returned NaN or infinite numbers"),
    ("complex", lambda: of(pair(X + 1j)), OE, "same dtype"),
    ("truth values", lambda: of(pair(X > 0)), OE, "same dtype"),
    (
        "0-dimensional tensor set",
        lambda: TensorDataset(torch.tensor(3.0)) and of(TensorDataset(torch.tensor(3.0))),
        IndexError,
        "no dimensions",
    ),
    ("0-dimensional samples", lambda: of(Items([torch.tensor(1.0)] * 8)), OE, "client 0: ValueError"),
    ("ragged samples", lambda: of(Items([(x[: i + 1], x[0]) for i, x in enumerate(X[:6])])), SampleError, "equal size"),
    ("tuple of tensors", lambda: of((X, Y)), T, r"client 0 is a tuple: .*TensorDataset\(inputs, targets\)"),
    ("tuple of arrays", lambda: of((X.numpy(), Y.numpy())), T, "client 0 is a tuple"),
    ("a tensor", lambda: of(X), T, "client 0 is a Tensor"),
    ("sparse", lambda: of(pair(X.to_sparse())), T, r"torch.sparse_coo, .*\.to_dense\(\)"),
    ("meta", lambda: of(pair(X.to("meta"), Y.to("meta"))), T, "meta device"),
    ("other structure", lambda: of(pair(), TensorDataset(X, Y, Y)), OE, "client 1: ValueError: too many values"),
    ("dict beside tuple", lambda: of(pair(), Items([{"x": x, "y": x[0]} for x in X])), T, "a list of 2 beside a dict"),
    (
        "keys in another order",
        lambda: of(*(Items([dict.fromkeys(keys, x) for x in X]) for keys in ("xy", "yx")), task=Keyed),
        T,
        "a dict of 'x', 'y' beside a dict of 'y', 'x'",
    ),
    (
        "train is one data set",
        lambda: FederatedDataModule.from_datasets(pair()),
        T,
        "train=TensorDataset.*one a client",
    ),
    ("train is a dict", lambda: FederatedDataModule.from_datasets({"a": pair()}), T, "train=dict"),
    ("train is a tensor", lambda: FederatedDataModule.from_datasets(X), T, "train=Tensor"),
    ("train is null", lambda: FederatedDataModule.from_datasets(None), T, "train=NoneType"),
    ("train is a text", lambda: FederatedDataModule.from_datasets("mnist"), T, "train=str"),
    ("train is empty", lambda: FederatedDataModule.from_datasets([]), V, "give one data set a client"),
    ("train of numbers", lambda: of(3), T, "client 0 is int: expected a data set"),
    ("val of wrong length", lambda: of(pair(), pair(), val=[pair()]), V, "a list of 1 data sets for 2 clients"),
    ("val is a number", lambda: of(pair(), val=3), T, "val: the data set is int"),
    ("val does not fit", lambda: of(pair(), val=pair(torch.randn(8, 7))), RuntimeError, "8x7 and 6x5"),
]:
    row("shapes and dtypes", _name, _run, _error, _says)


def steady():
    return Line(dropout=0.0)


def left_out():
    task = of(*clients(2), pair(X * NAN))
    assert task.round_metrics["left_out"] == 1
    assert weights(task).isfinite().all()


for _name, _run in [
    ("one sample a client", lambda: same(*(of(pair(X[:1], Y[:1]), task=steady, batch_size=size) for size in (4, 1)))),
    ("one NaN client", left_out),
    ("double features", lambda: alike(pair(X.double(), Y.double()))),
    ("one double client", lambda: alike(pair(), pair(X.double(), Y.double()))),
    ("whole targets", lambda: alike(pair(y=torch.arange(8)), good=[pair(y=torch.arange(8.0))])),
    ("integers beside reals", lambda: alike(pair(), pair(X.round().long()), good=[pair(), pair(X.round())])),
    ("features with gradients", lambda: alike(pair(X.clone().requires_grad_()))),
    ("plain lists", lambda: alike(list(zip(X, Y, strict=True)), list(zip(X, Y, strict=True)))),
    ("arrays as samples", lambda: alike(Items(list(zip(X.numpy(), Y.numpy(), strict=True))))),
    ("batch larger than the data", lambda: weights(of(pair(), batch_size=1000)).isfinite().all() or pytest.fail("NaN")),
]:
    row("shapes and dtypes", _name, _run)


class Own(Dataset):
    length: Any = 8

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __getitem__(self, i):
        return X[i], Y[i]


def own(name="Own", **parts):
    """A data set with a part replaced; functions of (self, i)."""
    return type(name, (Own,), parts)()


class NoLength(Dataset):
    def __getitem__(self, i):
        return X[0], Y[0]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def raising(error):
    def item(self, i):
        raise error

    return item


def shrinking(self):
    self.calls = getattr(self, "calls", 9) - 1
    return self.calls


class ByWorker(Own):
    def __getitem__(self, i):
        raise KeyError("broken.png")


SE = SampleError
for _name, _run, _error, _says in [
    (
        "raises",
        lambda: of(pair(), own(__getitem__=raising(KeyError("broken.png")))),
        SE,
        "Round 1: the samples of client 1 could not be loaded: KeyError: 'broken.png'. Model and states",
    ),
    (
        "raises in a worker",
        lambda: of(ByWorker(), num_workers=1),
        SE,
        "client 0 could not be loaded: KeyError: 'broken.png'",
    ),
    ("raises OSError", lambda: of(own(__getitem__=raising(OSError("disk gone")))), SE, "OSError: disk gone"),
    (
        "raises StopIteration",
        lambda: of(own(__getitem__=raising(StopIteration()))),
        SE,
        "client 0 could not be loaded: StopIteration",
    ),
    ("claims too many", lambda: of(own(length=20)), SE, "IndexError: index .* out of bounds"),
    ("shrinks", lambda: of(own(__len__=shrinking), own(__len__=shrinking)), V, r"client 1 holds sample \d+, but train"),
    ("returns null", lambda: of(own(__getitem__=lambda self, i: None)), SE, "NoneType"),
    (
        "sometimes null",
        lambda: of(own(__getitem__=lambda self, i: None if i == 3 else (X[i], Y[i])), local_steps=8),
        SE,
        "NoneType",
    ),
    (
        "returns more or less",
        lambda: of(own(__getitem__=lambda self, i: (X[i], Y[i])[: 1 + i % 2]), local_steps=8),
        SE,
        "equal size",
    ),
    ("returns itself", lambda: of(own(__getitem__=lambda self, i: self)), SE, "must contain tensors"),
    ("no items", lambda: of(type("Bare", (Dataset,), {"__len__": lambda self: 8})()), SE, "NotImplementedError"),
    ("length raises", lambda: of(own(length=OSError("no file"))), T, "Own, has no length: OSError: no file"),
    ("no length", lambda: of(NoLength()), T, "client 0, NoLength, has no length"),
    ("real length", lambda: of(own(length=8.0)), T, "has no length: TypeError"),
    ("negative length", lambda: of(own(length=-3)), T, "should return >= 0"),
    ("stream", lambda: of(Stream()), T, "Stream, has no length.*Expected a data set with __len__ and __getitem__"),
    (
        "generator of clients",
        lambda: FederatedDataModule.from_datasets(s for s in clients()),
        T,
        r"train=generator.*list\(\.\.\.\)",
    ),
    ("generator of samples", lambda: of(s for s in X), T, "client 0 is generator"),
    ("class", lambda: of(Own), T, "client 0 is Own: expected a data set"),
    ("loader", lambda: of(DataLoader(Own())), T, "client 0 is DataLoader"),
    ("loader to fit", lambda: trainer().fit(Line(), DataLoader(Own())), T, "train with a FederatedDataModule"),
    ("all items NaN", lambda: of(own(__getitem__=lambda self, i: (X[i] * NAN, Y[i]))), RoundRejectedError, "Round 1: "),
]:
    row("own data sets", _name, _run, _error, _says)
row("own data sets", "plain items", lambda: alike(own()))


def mse(self, batch):
    return (batch[0] @ self.w - batch[1]).square().mean()


class Mine(FederatedLightningModule):
    def __init__(self, algorithm=None, **federation):
        super().__init__(algorithm or a.FedAvg(0.05), **federation)
        self.w, self.count = nn.Parameter(torch.zeros(6)), 0
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)


def with_objective(objective, oracle=None):
    return fit(type("Mine", (Mine,), {"objective": objective})(oracle=oracle))


def raised(error):
    def objective(self, batch):
        raise error

    return objective


def backward(self, batch):
    loss = mse(self, batch)
    loss.backward()
    return loss


def without_gradients(self, batch):
    with torch.no_grad():
        return mse(self, batch)


def frozen_inside(self, batch):
    self.w.requires_grad_(False)
    return mse(self, batch)


def changing_keys(self, batch):
    self.count += 1
    return {"loss": mse(self, batch), f"key{self.count}": 1.0}


def keys_of_clients(self, batch):
    return {"loss": mse(self, batch), **({"many": 1.0} if float(batch[1].mean()) > 0 else {})}


def logged(self, batch):
    self.log("x", 1.0)
    return mse(self, batch)


def stepped(self, batch):
    self.optimizers().step()
    return mse(self, batch)


def coroutine(self, batch):
    async def begun():
        return mse(self, batch)

    never_awaited = begun()
    never_awaited.close()  # or it would warn wherever it is collected, in another test
    return never_awaited


def generator(self, batch):
    yield mse(self, batch)


def converted(self, batch):
    self.double()
    return mse(self, batch)


NO_GRADIENT = "Mine.objective failed for client 0: .*does not depend on the parameters that are trained"
SCALAR = "Mine.objective must return a scalar tensor or a dict with a scalar tensor 'loss'; got "
for _name, _objective, _error, _says in [
    ("thaws a constant", lambda s, b: thawing(s, b), RuntimeError, "parameter 'frozen' was thawed during the fit"),
    ("null", lambda s, b: None, OE, f"{SCALAR}NoneType. Return the loss"),
    ("whole number", lambda s, b: 3, OE, f"{SCALAR}int"),
    ("number", lambda s, b: 0.5, OE, rf"{SCALAR}float\. Return the tensor itself, without \.item"),
    ("dict with a number", lambda s, b: {"loss": 0.5, "mse": mse(s, b)}, OE, r"without \.item"),
    ("vector", lambda s, b: (b[0] @ s.w - b[1]) ** 2, OE, rf"{SCALAR}a tensor of shape \(4,\).*\.mean\(\)"),
    ("one element", lambda s, b: mse(s, b)[None], OE, r"shape \(1,\)"),
    ("dict without loss", lambda s, b: {"mse": mse(s, b)}, OE, "keys are 'mse': name the loss 'loss'"),
    ("empty dict", lambda s, b: {}, OE, SCALAR),
    ("tuple", lambda s, b: (mse(s, b), 1), OE, f"{SCALAR}tuple"),
    ("text", lambda s, b: "x", OE, f"{SCALAR}str"),
    ("coroutine", coroutine, OE, f"{SCALAR}coroutine"),
    ("generator", generator, OE, f"{SCALAR}generator"),
    ("complex", lambda s, b: mse(s, b) + 0j, OE, r"real loss; got one of dtype torch.complex64.*\.real"),
    ("integer tensor", lambda s, b: torch.tensor(1), OE, "real loss; got one of dtype torch.int64"),
    ("detached", lambda s, b: mse(s, b).detach(), OE, NO_GRADIENT),
    ("constant", lambda s, b: torch.tensor(1.0), OE, NO_GRADIENT),
    ("data alone", lambda s, b: b[0].sum(), OE, NO_GRADIENT),
    ("no_grad", without_gradients, OE, NO_GRADIENT),
    ("requires_grad off", frozen_inside, OE, NO_GRADIENT),
    ("NumPy of a copy", lambda s, b: torch.as_tensor(np.mean((b[0] @ s.w).detach().numpy())), OE, NO_GRADIENT),
    ("NumPy", lambda s, b: torch.as_tensor(np.mean((b[0] @ s.w).numpy())), OE, "client 0: .*Can't call numpy"),
    ("backward", backward, OE, "client 0: .*backward through the graph a second time"),
    ("NaN", lambda s, b: mse(s, b) * NAN, RoundRejectedError, "Round 1: All 4 clients"),
    ("square root at zero", lambda s, b: (s.w * 0).sum().sqrt(), RoundRejectedError, "NaN or infinite"),
    (
        "raises",
        raised(RuntimeError("my own error")),
        OE,
        "Mine.objective failed for client 0: RuntimeError: my own error",
    ),
    ("raises KeyError", raised(KeyError("label")), OE, "KeyError: 'label'"),
    ("undefined attribute", lambda s, b: s.encodr(b[0]).mean(), OE, "no attribute 'encodr'"),
    ("undefined name", lambda s, b: nowhere, OE, "name 'nowhere' is not defined"),  # noqa: F821
    ("too few arguments", lambda s: 1, OE, "takes 1 positional argument"),
    ("too many arguments", lambda s, b, i: mse(s, b), OE, "missing 1 required positional argument: 'i'"),
    ("no function", 3, OE, "'int' object is not callable"),
    ("recursion", lambda s, b: s.objective(b), OE, "RecursionError"),
    ("misfit", lambda s, b: (b[0].T @ s.w).mean(), OE, "client 0: RuntimeError: size mismatch"),
    ("wrong structure", lambda s, b: b["x"].mean(), OE, "client 0: TypeError"),
    ("huge memory", lambda s, b: torch.zeros(10**13).sum() + mse(s, b), OE, "client 0: .*allocate"),
    ("self.log", logged, OE, r"called self.log\('x'.*return a dict"),
    ("self.optimizers", stepped, OE, r"called self.optimizers\(\). Return the loss"),
    ("self.double", converted, OE, "client 0: .*same dtype"),
    ("changing keys", changing_keys, OE, "returned 'key1' in 1 of 3 evaluations of a round. Return the same keys"),
    ("logs a vector", lambda s, b: {"loss": mse(s, b), "p": b[1]}, OE, r"'p' of shape \(4,\); only scalars"),
    ("logs a text", lambda s, b: {"loss": mse(s, b), "p": "high"}, OE, "returned 'p' = 'high'; only real numbers"),
    ("logs null", lambda s, b: {"loss": mse(s, b), "p": None}, OE, "returned 'p' = None"),
    ("logs a complex number", lambda s, b: {"loss": mse(s, b), "p": torch.tensor(1j)}, OE, "only real numbers"),
]:
    row("objectives", _name, functools.partial(with_objective, _objective), _error, _says)
row(
    "objectives",
    "keys of some clients",
    lambda: with_objective(keys_of_clients, Sequential()),
    OE,
    "Return the same keys",
)
row("objectives", "exits", lambda: with_objective(raised(SystemExit(3))), SystemExit, "3")


def changing_data(self, batch):
    batch[0].mul_(2)
    return mse(self, batch)


def seeding(self, batch):
    torch.manual_seed(0)
    return mse(self, batch)


def thawing(self, batch):
    self.frozen.requires_grad_(True)
    return (batch[0] @ (self.w + self.frozen) - batch[1]).square().mean()


def growing(self, batch):
    self.extra = nn.Parameter(torch.zeros(1))
    return mse(self, batch)


def good(objective, right):
    same(with_objective(objective), with_objective(right))


for _name, _run in [
    ("data in place", lambda: good(changing_data, lambda s, b: (2 * b[0] @ s.w - b[1]).square().mean())),
    ("seeds the generator", lambda: good(seeding, mse)),
    ("adds a parameter", lambda: torch.equal(with_objective(growing).w, with_objective(mse).w) or pytest.fail("moved")),
    ("double loss", lambda: good(lambda s, b: mse(s, b).double(), mse)),
    ("self.trainer", lambda: good(lambda s, b: mse(s, b) + 0 * s.trainer.global_step, mse)),
    ("self.zero_grad", lambda: good(lambda s, b: (s.zero_grad(), mse(s, b))[1], mse)),
    ("branch on a tensor", lambda: good(lambda s, b: mse(s, b) if mse(s, b) > 0 else 0 * mse(s, b), mse)),
    ("infinite constant", lambda: good(lambda s, b: mse(s, b) + INF, mse)),
    ("logs NaN", lambda: good(lambda s, b: {"loss": mse(s, b), "p": NAN}, mse)),
    ("key is a number", lambda: good(lambda s, b: {"loss": mse(s, b), 3: 1.0}, mse)),
    ("logs 'drift'", lambda: good(lambda s, b: {"loss": mse(s, b), "drift": -7.0}, mse)),
]:
    row("objectives", _name, _run)


class Skips(FederatedLightningModule):
    def __init__(self):
        self.x = 3

    def objective(self, batch):
        return batch[0].mean()


class SkipsOurs(Skips):
    def __init__(self):
        nn.Module.__init__(self)


class SkipsToLightning(Skips):
    def __init__(self):
        LightningModule.__init__(self)


class Late(Skips):
    def __init__(self):
        self.layer = nn.Linear(6, 1)
        FederatedLightningModule.__init__(self, a.FedAvg(0.1))


class Empty(Skips):
    def __init__(self):
        FederatedLightningModule.__init__(self, a.FedAvg(0.1))


class NoObjective(FederatedLightningModule):
    pass


def kind(base=Line, **attributes):
    return fit(type("Mine", (base,), attributes)())


def changed(change, task=Line):
    made = task()
    change(made)
    return fit(made)


def trained():
    return fit(Personal())


SUPER = r"does not call super\(\).__init__\(algorithm, \.\.\.\) of FederatedLightningModule"
for _name, _run, _error, _says in [
    ("no super", lambda: fit(Skips()), AttributeError, f"Skips.__init__ {SUPER}"),
    ("nn.Module's super", lambda: fit(SkipsOurs()), AttributeError, SUPER),
    ("LightningModule's super", lambda: fit(SkipsToLightning()), T, SUPER),
    ("late super", Late, AttributeError, r"cannot assign module before Module.__init__\(\) call"),
    (
        "no objective",
        lambda: fit(NoObjective(a.FedAvg(0.1))),
        T,
        r"NoObjective has no objective. Write objective\(self, batch\)",
    ),
    ("no parameters", lambda: fit(Empty()), V, "no shared trainable parameters"),
    ("algorithm is a class", lambda: Line(a.FedAvg), T, "expected an object of a dataclass derived from .*e.g. FedAvg"),
    ("algorithm is a text", lambda: Line("FedAvg"), T, "algorithm='FedAvg'"),
    ("algorithm is null", lambda: NoObjective(None), T, "algorithm=None"),
    ("algorithm replaced", lambda: changed(lambda t: setattr(t, "algorithm", "x")), T, "algorithm was replaced by 'x'"),
    (
        "algorithm removed",
        lambda: changed(lambda t: setattr(t, "algorithm", None)),
        T,
        "algorithm was replaced by None",
    ),
    (
        "personal is a text",
        lambda: kind(personal_parameters="head"),
        V,
        r"expected a sequence of name prefixes, e.g. \('head',\)",
    ),
    ("max is a text", lambda: kind(max_parameters="head"), V, "max_parameters='head'"),
    ("personal is null", lambda: kind(personal_parameters=None), V, r"personal_parameters=None: .*\(\) for none"),
    ("max is null", lambda: kind(max_parameters=None), V, "max_parameters=None"),
    ("personal is a number", lambda: kind(personal_parameters=(3,)), T, "personal_parameters: 3 is no name prefix"),
    ("personal is a tensor", lambda: kind(personal_parameters=(torch.zeros(1),)), T, "is no name prefix"),
    ("personal unknown", lambda: kind(personal_parameters=("hed",)), V, "Did you mean 'head'"),
    ("personal empty text", lambda: kind(personal_parameters=("",)), V, "'' matches no trainable parameter"),
    ("personal buffer", lambda: kind(Normed, personal_parameters=("net.1.running_mean",)), V, "matches no trainable"),
    (
        "overlap",
        lambda: kind(personal_parameters=("head",), max_parameters=("head.bias",)),
        V,
        "'head.bias' is named by max_parameters and by personal",
    ),
    ("all personal", lambda: kind(personal_parameters=("body", "head")), V, "nothing to federate"),
    ("all frozen", lambda: changed(lambda t: t.requires_grad_(False)), V, "no shared trainable parameters"),
    (
        "lazy",
        lambda: changed(lambda t: setattr(t, "head", nn.LazyLinear(1))),
        V,
        "'head.weight' of a lazy module has no shape yet. Pass one sample",
    ),
    (
        "complex",
        lambda: changed(lambda t: setattr(t, "c", nn.Parameter(torch.zeros(2) + 0j))),
        V,
        "torch.complex64.*one real",
    ),
    ("two dtypes", lambda: changed(lambda t: t.head.double()), V, r"requires_grad_\(False\)"),
    (
        "NaN parameter",
        lambda: changed(lambda t: t.head.weight.data.fill_(NAN)),
        RoundRejectedError,
        "Round 1: All 4 clients",
    ),
    ("automatic", lambda: changed(lambda t: setattr(t, "automatic_optimization", True)), T, "leave it False"),
    ("personalize a text", lambda: trained().personalize("a"), T, "personalize.*expected a client's number"),
    ("personalize a number", lambda: trained().personalize(1.5), T, "1.5 of type float"),
    ("personalize 99", lambda: trained().personalize(99), IndexError, "client=99: the federation has clients 0 to 3"),
    ("personalize -1", lambda: trained().personalize(-1), IndexError, "client=-1"),
    ("personalize too early", lambda: Personal().personalize(0), RuntimeError, "there are no client states"),
    ("client_states too early", lambda: Personal().client_states, RuntimeError, "from the first round on"),
    ("Trainer accumulates", lambda: fit(accumulate_grad_batches=2), V, r"accumulate_grad_batches=2\): .*local_steps"),
    ("Trainer clips", lambda: fit(gradient_clip_val=1.0), V, "local_clip of the algorithm"),
    ("Trainer without data", lambda: trainer().fit(Line()), Exception, "train_dataloader"),
]:
    row("modules", _name, _run, _error, _says)
row("modules", "personal named twice", lambda: kind(personal_parameters=("head", "head")))
row("modules", "an empty parameter", lambda: changed(lambda t: setattr(t, "c", nn.Parameter(torch.zeros(0)))))
row(
    "modules",
    "an integer constant",
    lambda: changed(lambda t: setattr(t, "c", nn.Parameter(torch.zeros(2, dtype=torch.long), requires_grad=False))),
)


def file(name, content=b""):
    Path(name).write_bytes(content)
    return name


def loading(content):
    return lambda: Line.load_from_checkpoint(file("bad.ckpt", content))


def saved(value):
    torch.save(value, "bad.ckpt")
    return "bad.ckpt"


for _name, _run, _error, _says in [
    ("MNIST without folder", lambda: MNIST("nowhere").setup("fit"), FileNotFoundError, "nowhere"),
    (
        "MNIST half",
        lambda: (Path("half/MNIST/raw").mkdir(parents=True), MNIST("half").setup("fit")),
        FileNotFoundError,
        "train-images-idx3-ubyte",
    ),
    ("FEMNIST without folder", lambda: FEMNIST("nowhere").setup("fit"), FileNotFoundError, "nowhere"),
    ("root is a file", lambda: MNIST(file("mnist")).setup("fit"), OSError, "mnist"),
]:
    row("files", _name, _run, _error, _says)
for _name, _run, _says in [
    ("empty", loading(b""), "bad.ckpt"),
    ("text", loading(b"hello"), "bad.ckpt"),
    (
        "half a file",
        lambda: Line.load_from_checkpoint(file("bad.ckpt", Path(saved({"a": 1})).read_bytes()[:100])),
        "bad.ckpt",
    ),
    ("a list", lambda: Line.load_from_checkpoint(saved([1, 2])), "bad.ckpt"),
    ("weights alone", lambda: Line.load_from_checkpoint(saved(Line().state_dict())), "bad.ckpt"),
]:
    row("checkpoints", _name, _run, CheckpointError, _says)


FIT = [
    "fit",
    f"--config={CONFIGS / 'quadratic_saddle' / 'base.yaml'}",
    f"--config={CONFIGS / 'quadratic_saddle' / 'fed_mm.yaml'}",
    "--trainer.max_steps=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
]


def config(text):
    """A command that reads a config of one's own."""
    return lambda: [*FIT, f"--config={file('own.yaml', text.encode())}"]


def asked(*arguments):
    return lambda: [*FIT, *arguments]


ALGORITHM, MODEL = "--model.init_args.algorithm", "--model.init_args"
COMMANDS: list[tuple[str, str, Callable[[], list[str]], str]] = [
    ("command line", "no such subcommand", lambda: ["fitt"], "fitt: no such subcommand. Did you mean 'fit'?"),
    ("command line", "unknown option", asked("--trainer.max_stpes=3"), "Did you mean 'trainer.max_steps'?"),
    ("command line", "unknown top option", asked("--modle=X"), "modle"),
    ("command line", "wrong value", asked("--trainer.max_steps=abc"), "trainer.max_steps=abc: expected int."),
    ("command line", "unknown class", asked(f"{ALGORITHM}=FedNN"), "FedNN"),
    ("command line", "misspelt class", asked(f"{ALGORITHM}=FedMMM"), "Did you mean 'fedlightning.algorithms.FedMM'?"),
    ("command line", "misspelt package", asked(f"{ALGORITHM}=fedlightning.algoritms.FedMM"), "Did you mean"),
    ("command line", "negative lr", asked(f"{ALGORITHM}.init_args.lr=-1"), "FedMM(lr=-1.0): expected > 0."),
    ("command line", "lr nan", asked(f"{ALGORITHM}.init_args.lr=.nan"), "FedMM(lr=nan): expected a finite number."),
    (
        "command line",
        "lr of three",
        asked(f"{ALGORITHM}.init_args.lr=[1,1,1]"),
        "expected one number or a pair [min, max]",
    ),
    ("command line", "lr text", asked(f"{ALGORITHM}.init_args.lr=fast"), "lr=fast"),
    ("command line", "clients of a half", asked(f"{MODEL}.num_clients=2.5"), "num_clients=2.5"),
    ("command line", "clients zero", asked(f"{MODEL}.num_clients=0"), "num_clients=0"),
    ("command line", "missing checkpoint", asked("--ckpt_path=runs/missing.ckpt"), "runs/missing.ckpt: no such file."),
    ("command line", "batch of none", asked("--data.init_args.rounds_per_epoch=0"), "rounds_per_epoch=0"),
    ("command line", "compare without arguments", lambda: ["compare"], "base"),
    ("files", "config missing", asked("--config=missing.yaml"), "missing.yaml"),
    ("files", "config is a folder", asked("--config=."), "."),
    ("files", "config is no YAML", config("a: [1, 2\nb: }"), "own.yaml: it is no YAML in line 2"),
    ("files", "config is a list", config("- 1\n- 2\n"), "own.yaml: it holds a list at the top. Expected keys"),
    ("files", "config is a number", config("3"), "own.yaml: it holds a int at the top"),
    ("files", "config with unknown key", config("modle:\n  class_path: x\n"), "modle"),
    (
        "files",
        "config with unknown argument",
        config("model:\n  init_args:\n    num_cleints: 3\n"),
        "Did you mean 'num_clients'?",
    ),
    (
        "files",
        "config with wrong class",
        config("model:\n  class_path: fedlightning.tasks.QuadraticSadle\n"),
        "Did you mean",
    ),
    (
        "files",
        "config with duplicate keys",
        config("seed_everything: 1\nseed_everything: 2\n"),
        "own.yaml: 'seed_everything' is given twice, again in line 2",
    ),
    (
        "files",
        "config repeats a key below",
        config("trainer:\n  max_steps: 1\n  max_steps: 2\n"),
        "'max_steps' is given twice, again in line 3",
    ),
    (
        "files",
        "config is binary",
        lambda: [*FIT, f"--config={file('own.yaml', bytes([0, 255, 254, 3]))}"],
        "own.yaml: it is no text",
    ),
    (
        "checkpoints",
        "text by the command line",
        lambda: [*FIT, f"--ckpt_path={file('bad.ckpt', b'hello')}"],
        "bad.ckpt",
    ),
    ("checkpoints", "empty by the command line", lambda: [*FIT, f"--ckpt_path={file('bad.ckpt')}"], "bad.ckpt"),
]

ALL = [(r.group, r.name) for r in ROWS] + [(group, name) for group, name, *_ in COMMANDS]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_there_are_two_hundred_bad_inputs_with_names_of_their_own():
    assert len(ALL) >= 200
    assert len(set(ALL)) == len(ALL)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.group}: {r.name}")
def test_a_clear_error_or_the_right_result(row):
    if row.error is None:
        row.run()
        return
    with pytest.raises(row.error) as caught:
        row.run()
    said = str(caught.value)
    assert re.search(row.says, said, re.DOTALL), said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("group", "name", "arguments", "says"), COMMANDS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_commands_end_with_a_few_lines(group, name, arguments, says, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments())
    assert exit_.value.code not in (None, 0)
    said = capsys.readouterr().err + (exit_.value.code if isinstance(exit_.value.code, str) else "")
    assert says in said
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line and not line.startswith("Seed set")]) <= 5, said


class Breaks(Dataset):
    """A healthy data set until its items have been asked for so many times, all clients together."""

    def __init__(self, data, calls, limit, breaks):
        self.data, self.calls, self.limit, self.breaks = data, calls, limit, breaks

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        self.calls.append(i)
        return self.data[i] if len(self.calls) <= self.limit else self.breaks(self.data[i])


SAMPLES_A_ROUND = 4 * 3 * 4  # clients, local steps, batch size


def federation(limit=10**9, breaks=None):
    calls: list[int] = []
    sets = [Breaks(data, calls, limit, breaks) for data in clients()]
    return FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=3, rounds_per_epoch=10, seed=1)


def broken(sample):
    raise OSError("disk gone")


def not_numbers(sample):
    return sample[0] * NAN, sample[1]


def scaffold():
    return seeded(Line, a.SCAFFOLD(0.05), oracle=Sequential())


def states(task):
    return {"point": task.server_state, "clients": task.client_states}


def assert_same_states(one, other):
    assert torch.equal(weights(one), weights(other))
    assert str(states(one)) == str(states(other))


@pytest.mark.parametrize(
    ("rounds", "breaks", "error", "says"),
    [
        (2, broken, SampleError, "Round 3: the samples of client 0 could not be loaded: OSError: disk gone"),
        (3, not_numbers, RoundRejectedError, r"Round 4: All 4 clients .*saved to .*before-rejected-round-4\.ckpt"),
    ],
)
def test_what_was_trained_before_bad_data_is_whole_and_goes_on(tmp_path, rounds, breaks, error, says):
    task, before = scaffold(), scaffold()
    run = trainer(tmp_path, enable_checkpointing=True, max_steps=6)
    with pytest.raises(error, match=says):
        run.fit(task, federation(rounds * SAMPLES_A_ROUND, breaks))
    assert run.global_step == rounds
    trainer(max_steps=rounds).fit(before, federation())
    assert_same_states(task, before)
    run.save_checkpoint(tmp_path / "rescued.ckpt")
    resumed, whole = scaffold(), scaffold()
    trainer(max_steps=6).fit(resumed, federation(), ckpt_path=tmp_path / "rescued.ckpt")
    trainer(max_steps=6).fit(whole, federation())
    assert_same_states(resumed, whole)


class FailsLater(Line):
    def objective(self, batch):
        if self.trainer.global_step == 2:
            raise ValueError("too late")
        return super().objective(batch)


def test_what_was_trained_before_an_objective_fails_is_whole(tmp_path):
    task = seeded(FailsLater, a.SCAFFOLD(0.05), oracle=Sequential())
    run = trainer(tmp_path, max_steps=6)
    with pytest.raises(ObjectiveError, match=r"FailsLater\.objective failed for client 0: ValueError: too late"):
        run.fit(task, federation())
    before = scaffold()
    trainer(max_steps=2).fit(before, federation())
    assert run.global_step == 2
    assert_same_states(task, before)
    run.save_checkpoint(tmp_path / "rescued.ckpt")
    resumed, whole = scaffold(), scaffold()
    trainer(max_steps=4).fit(resumed, federation(), ckpt_path=tmp_path / "rescued.ckpt")
    trainer(max_steps=4).fit(whole, federation())
    assert_same_states(resumed, whole)
