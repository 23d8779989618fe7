"""The command line of ``fedlightning compare``; whatever carries it out is imported once it has been understood."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from fedlightning.cli.parser import ComparisonParser, underscored
from fedlightning.cli.stops import interrupts_kept

Mode = Literal["max", "min"]
Report = Literal["last", "best", "best_on_test"]


def main(args: Sequence[str] | None = None) -> None:
    """Parse the command line and compare; see ``fedlightning compare --help``."""
    parser = ComparisonParser(
        prog="fedlightning compare",
        description="Run several algorithms on one task over several seeds: results.csv, table.md, figure.png.",
    )
    parser.add_argument("--config", action="config", help="YAML file with these arguments")
    parser.add_argument("--base", nargs="+", type=str, required=True, help="configs of task, data and trainer")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=str,
        required=True,
        help="configs of algorithms, each a path or Name=path; 'Name=path lr=0.1 ...' changes values of the file",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds, one run each")
    parser.add_argument("--output", type=str, default="runs/compare", help="folder of the results")
    parser.add_argument("--metric", type=str, required=True, help="metric of the table and the figure")
    parser.add_argument(
        "--mode",
        type=Mode | None,
        default=None,
        help="whether more or less is better; by default as the name says",
    )
    parser.add_argument(
        "--report",
        type=Report,
        default="last",
        help="the round that is reported of every run: last; best on validation data; best_on_test, of data that "
        "validate on their test data, to compare with tables made so",
    )
    parser.add_argument(
        "--baseline",
        type=str | None,
        default=None,
        help="the algorithm to which differences are given; first by default",
    )
    parser.add_argument("--target", type=float | None, default=None, help="report the cost of reaching this value")
    parser.add_argument(
        "--axes",
        nargs="+",
        type=str,
        default=["round", "upload"],
        help="costs to draw and report against: round, seconds, upload, download, upload_bytes, download_bytes, "
        "virtual_seconds",
    )
    parser.add_argument("--also", nargs="+", type=str, default=[], help="further metrics, a row of panels each")
    parser.add_argument("--log_scale", type=bool, default=False, help="logarithmic vertical axes for the metric")
    parser.add_argument(
        "--budget_upload", type=float | None, default=None, help="stop every run when so many floats have been uploaded"
    )
    parser.add_argument(
        "--grid",
        nargs="+",
        type=str,
        default=[],
        help="search hyper-parameters of the algorithm or its local solver first, on the first seed: lr=1,0.3 beta=1,3",
    )
    parser.add_argument("--test", type=bool, default=False, help="test every final model")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, in processes of their own")
    parser.add_argument(
        "--set", action="extend", nargs="+", type=str, default=[], help="values of all runs, e.g. trainer.max_steps=100"
    )
    config = parser.parse_args([underscored(argument) for argument in (sys.argv[1:] if args is None else args)])
    with interrupts_kept():
        from lightning.pytorch.utilities.exceptions import SIGTERMException

        from fedlightning.compare.command import compare

    try:
        compare(**{name: value for name, value in vars(config).items() if name != "config"})
    except (KeyboardInterrupt, SIGTERMException) as stop:
        print("fedlightning compare: interrupted. The same command goes on where it stopped.", file=sys.stderr)
        raise SystemExit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None
