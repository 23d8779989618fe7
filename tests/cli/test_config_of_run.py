"""A run saves its configuration, and never over a file of the user's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from fedlightning.cli import main
from tests.support.commands import SMALL
from tests.support.paths import CONFIGS

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory .* exists")  # of the CSVLogger
HERE = [f"--trainer.logger.{key}" for key in ("class_path=CSVLogger", "init_args.save_dir=.", "init_args.name=")]
HERE.append("--trainer.logger.init_args.version=")
LEFT = "configuration of this run is not saved: config.yaml is a file of your own"


@pytest.fixture(autouse=True)
def _config(tmp_path):
    saddle = CONFIGS / "quadratic_saddle"
    values = {**yaml.safe_load((saddle / "base.yaml").read_text()), "seed_everything": 3}
    (tmp_path / "config.yaml").write_text(f"# mine\n{yaml.safe_dump(values)}")
    shutil.copy(saddle / "fed_mm.yaml", tmp_path)


def arguments(command, *more):
    return [command, "--config=fed_mm.yaml", *(SMALL if command == "fit" else SMALL[2:5]), *more]


@pytest.mark.parametrize("command", ["fit", "validate"])
def test_nothing_is_written_without_a_logger(command):
    before = Path("config.yaml").read_bytes()
    off = ["--trainer.logger=false", "--trainer.enable_checkpointing=false"]
    main(arguments(command, "-c", "config.yaml", *off))
    assert Path("config.yaml").read_bytes() == before
    assert {path.name for path in Path().iterdir()} == {"config.yaml", "fed_mm.yaml"}


@pytest.mark.parametrize("given", ["config.yaml", "elsewhere.yaml"])
def test_a_file_of_the_users_own_stays_where_the_logger_writes(given):
    before = Path("config.yaml").read_bytes()
    Path("elsewhere.yaml").write_bytes(before)
    with pytest.warns(UserWarning, match=LEFT):
        main(arguments("fit", f"--config={given}", *HERE))
    assert Path("config.yaml").read_bytes() == before
    assert Path("metrics.csv").is_file()


@pytest.mark.slow
def test_a_configuration_of_a_run_stays_where_it_is_given():
    Path("config.yaml").rename("mine.yaml")
    main(arguments("fit", "--config=mine.yaml", *HERE))
    before = Path("config.yaml").read_text()
    Path("here").symlink_to(".")
    main(["fit", "--config=here/config.yaml"])  # it says the same: no warning
    with pytest.warns(UserWarning, match=LEFT):
        main(["fit", "--config=here/config.yaml", "--trainer.max_steps=1"])
    assert Path("config.yaml").read_text() == before


@pytest.mark.slow
def test_a_configuration_that_an_earlier_run_wrote_is_replaced():
    Path("config.yaml").rename("mine.yaml")
    for seed in (4, 5):
        main(arguments("fit", "--config=mine.yaml", *HERE, f"--seed_everything={seed}"))
        assert yaml.safe_load(Path("config.yaml").read_text())["seed_everything"] == seed


@pytest.mark.slow
def test_sections_from_files_of_their_own_are_saved_within():
    data = yaml.safe_load(Path("config.yaml").read_text())["data"]
    Path("data.yaml").write_text(f"# mine\n{yaml.safe_dump(data)}")
    Path("config.yaml").rename("mine.yaml")
    main(arguments("fit", "--config=mine.yaml", "--data=data.yaml", *HERE))
    assert Path("data.yaml").read_text().startswith("# mine\n")
    assert yaml.safe_load(Path("config.yaml").read_text())["data"]["class_path"] == data["class_path"]
