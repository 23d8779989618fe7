"""The arguments of ``fedlightning compare``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedlightning.cli import main
from tests.support.comparisons import SADDLE, SMALL, table


def test_values_of_a_run_are_given_to_a_comparison_by_set(capsys):
    for argument in ("--trainer.max_steps=3", "--model.init_args.classes=3"):
        with pytest.raises(SystemExit):
            main(["compare", "--base=a", "--algorithms=b", "--metric=c", argument])
        said = capsys.readouterr().err
        assert f"{argument}: no such argument. Values of all runs are given as --set {argument[2:]}." in said


def test_from_the_command_line_and_a_config_file(tmp_path):
    config = tmp_path / "comparison.yaml"
    config.write_text(
        f"base: [{SADDLE / 'base.yaml'}]\nalgorithms: [{SADDLE / 'fed_mm.yaml'}]\nmetric: distance\nmode: min\n"
        f"set: [{SMALL[0]}]\n"
    )
    more = ["--set", SMALL[1], "--set", *SMALL[2:]]  # adds to the file's
    main(["compare", f"--config={config}", "--output=out", "--seeds", "0", "1", *more])
    assert Path("out/fed_mm/seed-1/done.json").is_file()
    assert max(float(row["round"]) for row in table("out")) == 6
