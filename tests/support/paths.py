"""Where tests find the files of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
