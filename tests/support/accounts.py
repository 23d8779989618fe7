"""What tests of accounts of privacy need: a package that only an extra installs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from fedlightning.core.requirements import how_to_install

needs_dp_accounting = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason=f"needs dp-accounting. {how_to_install('dp_accounting')}"
)
