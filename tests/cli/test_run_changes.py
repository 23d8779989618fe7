"""Changes of a run are checked against its config before anything is submitted."""

from __future__ import annotations

import pytest

from fedlightning.cli.early import MistakeError
from fedlightning.cli.run_changes import is_change, require_changes

RUN = """
trainer: {max_steps: 3}
model:
  class_path: fedlightning.tasks.Classification
  init_args: {algorithm: {class_path: fedlightning.algorithms.FedAvg, init_args: {lr: 0.1}}}
data: {participation: null}
deadlines: {phase: 3}
"""


def test_changes_are_told_from_arguments():
    changes = [
        "--trainer.max_steps=3",
        "--model=x.Y",
        "--seed_everything=1",
        "--silence.tolerance=2",
        "--data.val=null",
    ]
    others = ["--detach", "--ckpt_path=last", "folder", "trainer.max_steps=3", "--trainers=3"]
    assert [is_change(each) for each in changes + others] == [True] * len(changes) + [False] * len(others)


@pytest.mark.parametrize("place", ["", "server"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("--trainer.max_stpes=3", "Did you mean 'trainer.max_steps'?"),
        ("--model.init_args.algorithm.init_args.lrr=3", "FedAvg has no argument 'lrr'. Did you mean 'lr'?"),
        ("--model.init_args.netwrok=3", "Classification has no argument 'netwrok'"),
        (
            "--data.round_per_epoch=3",
            "RemoteClients has no argument 'round_per_epoch'. Did you mean 'rounds_per_epoch'?",
        ),
        ("--data.batch_size=3", "minibatches are drawn at the nodes. Set it for all of them: --work.batch_size=3."),
        ("--work.batchsize=3", "LocalWork has no argument 'batchsize'. Did you mean 'batch_size'?"),
        ("--checks.largst=3", "AnswerChecks has no argument 'largst'. Did you mean 'largest'?"),
        ("--data.num_clients=7", "cannot be changed for a run, because federation.yaml says which clients there are"),
        ("--trainer.default_root_dir=/tmp", "look for runs in the server's folder. Leave it out."),
        ("--silence.tolerence=3", "Silence has no argument 'tolerence'. Did you mean 'tolerance'?"),
    ],
)
def test_what_is_misspelt_is_found(place, change, said, tmp_path):
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "run.yaml").write_text(RUN)
    with pytest.raises(MistakeError) as refused:
        require_changes(tmp_path, [change])
    assert str(refused.value).lstrip("-").startswith(change.partition("=")[0].lstrip("-"))
    assert said in str(refused.value)


def test_what_is_right_passes(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    changes = [
        "--trainer.max_steps=5",
        "--deadlines.phase=5",
        "--work.local_steps=5",
        "--data.rounds_per_epoch=5",
        "--seed_everything=1",
    ]
    require_changes(tmp_path, [*changes, "--model.init_args.algorithm.init_args.lr=0.2", "--data.init_args.seed=3"])
    require_changes(tmp_path / "nowhere", changes)
