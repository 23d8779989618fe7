"""Results that cannot be written take a line; the user's own files keep their traceback."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path

import pytest

from fedlightning.cli import main
from fedlightning.cli.outputs import trainer_folders, writing_to
from fedlightning.core.errors import OutputError
from tests.support.commands import SMALL, of
from tests.support.comparisons import SADDLE
from tests.support.comparisons import SMALL as FEW_ROUNDS

SAVE_DIR = "--trainer.logger.init_args.save_dir"
FIT = ["fit", *of("quadratic_saddle", "fed_mm"), *SMALL]
COMPARE = ["compare", "--base", str(SADDLE / "base.yaml"), "--algorithms", f"A={SADDLE / 'fed_mm.yaml'}"]
COMPARE += ["--metric=distance", "--set", *FEW_ROUNDS]
FULL = Path("/dev/full")

needs_a_full_device = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def said_by(arguments):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    text = str(exit_.value)
    assert text.startswith("fedlightning: Results were not saved: ")
    assert len(text.splitlines()) == 1
    return text.removeprefix("fedlightning: Results were not saved: ")


@pytest.mark.parametrize("folder", ["taken", "taken/below"])
def test_a_file_in_the_way_of_a_fit_takes_a_line(folder, tmp_path):
    Path("taken").touch()
    said = said_by([*FIT, f"{SAVE_DIR}={folder}"])
    assert said.startswith(f"{tmp_path / folder}: ")
    assert said.endswith(f". Give another folder ({SAVE_DIR}=...).")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_in_the_way_of_a_comparison_takes_a_line(jobs):
    Path("taken").touch()
    said = said_by([*COMPARE, "--output=taken", f"--jobs={jobs}"])
    assert "taken/A/seed-0: Not a directory. Give another folder (--output=...)." in said


@needs_a_full_device
def test_a_full_disk_takes_a_line_in_a_fit(tmp_path):
    board = tmp_path / "runs" / "version_0"
    board.mkdir(parents=True)
    (board / "hparams.yaml").symlink_to(FULL)
    said = said_by([*FIT, "--trainer.logger.init_args.version=0"])
    assert said.startswith(f"{tmp_path / 'runs'}: No space left on device (")
    assert said.endswith(f" MiB are free there). Make room there, or give another folder ({SAVE_DIR}=...).")


@needs_a_full_device
@pytest.mark.parametrize("name", ["table.md", "results.csv", "figure.png"])
def test_a_full_disk_takes_a_line_in_a_comparison(name):
    Path("out").mkdir()
    (Path("out") / name).symlink_to(FULL)
    assert "out: No space left on device (" in said_by([*COMPARE, "--output=out"])


def test_the_environment_shows_everything(monkeypatch):
    monkeypatch.setenv("FEDLIGHTNING_DEBUG", "1")
    Path("taken").touch()
    with pytest.raises(OutputError) as error:
        main([*FIT, f"{SAVE_DIR}=taken"])
    assert isinstance(error.value.__cause__, FileExistsError)


OWN = """
import errno
import shutil
from pathlib import Path
from lightning.pytorch import Callback

class Full(Callback):
    def on_train_start(self, *args):
        raise OSError(errno.ENOSPC, "No space left on device")

class Removes(Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 2:
            trainer.logger.experiment.flush()
            shutil.rmtree(trainer.logger.save_dir)

class Taken(Callback):
    def on_train_start(self, *args):
        Path("runs").mkdir()
"""


@pytest.fixture
def own_files(monkeypatch):
    Path("own_files.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_files", raising=False)


@pytest.mark.parametrize(("callback", "kind"), [("Full", OSError), ("Taken", FileExistsError)])
def test_errors_of_the_user_s_own_code_keep_their_traceback(callback, kind, own_files):
    with pytest.raises(kind) as error:
        main([*FIT, f"--trainer.callbacks=own_files.{callback}"])
    assert not isinstance(error.value, OutputError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_folder_that_is_removed_ends_a_fit_with_a_line(own_files):
    """TensorBoard's writer keeps its error, and raises it again while that is handled."""
    said = said_by(
        [*FIT, "--trainer.callbacks=own_files.Removes", "--trainer.max_steps=6", "--trainer.log_every_n_steps=1"]
    )
    assert said.endswith(f": No such file or directory. Give another folder ({SAVE_DIR}=...).")
    for (
        thread
    ) in threading.enumerate():  # the writer's hands on its error before it ends, which would be a later test's
        if getattr(thread, "exception", None) is not None:
            thread.join()


def through(folders, number, name=None, package="lightning.somewhere"):
    """What becomes of an error of a library's, with no frame of this file below the block."""
    arguments = (number, "why") if name is None else (number, "why", str(name))
    code = f"with writing_to(folders):\n    raise OSError{arguments!r}"
    exec(
        compile(code, "/lib/site-packages/x.py", "exec"),
        {"__name__": package, "writing_to": writing_to, "folders": folders},
    )


@pytest.mark.parametrize("package", ["fedlightning.data.images", "torch.utils.data.dataset", "multiprocessing.heap"])
def test_data_sets_and_shared_memory_are_no_results(package, tmp_path):
    with pytest.raises(OSError, match="why") as error:
        through({"--a": tmp_path}, errno.ENOSPC, package=package)
    assert not isinstance(error.value, OutputError)


def test_the_option_is_that_of_the_folder(tmp_path):
    folders = {"--a": tmp_path / "a", "--b": str(tmp_path / "b"), "--c": None, "--d": "s3://bucket"}
    with pytest.raises(OutputError, match=r"b/x: why\. Give another folder \(--b=\.\.\.\)\."):
        through(folders, errno.EACCES, tmp_path / "b" / "x")
    with pytest.raises(OutputError, match=r"elsewhere: why \(.*\)\. Make room there, or give another folder\."):
        through(folders, errno.ENOSPC, tmp_path / "elsewhere")
    for number, name in ((errno.ENOENT, tmp_path / "elsewhere"), (errno.EACCES, None)):  # something that is read
        with pytest.raises(OSError, match="why") as error:
            through(folders, number, name)
        assert not isinstance(error.value, OutputError)


class _Named:
    def __init__(self, folder):
        self.save_dir = folder


class _Trainer:
    def __init__(self, *folders):
        self.loggers = [_Named(folder) for folder in folders]
        self.default_root_dir = "here"


def test_the_folders_of_a_trainer_are_its_loggers_or_its_own():
    assert trainer_folders(_Trainer()) == {"--trainer.default_root_dir": "here"}
    assert trainer_folders(_Trainer("a")) == {SAVE_DIR: "a"}
    assert list(trainer_folders(_Trainer("a", "b")).values()) == ["a", "b"]
