"""The progress bar counts rounds."""

from __future__ import annotations

import logging

from lightning.pytorch.utilities import rank_zero_info

from fedlightning.callbacks import RoundProgressBar
from fedlightning.callbacks.progress import rounds_in_total
from tests.support.small import Line, regression_data, trainer


def test_progress_bar_counts_rounds(capsys):
    trainer(enable_progress_bar=True, callbacks=[RoundProgressBar()], max_steps=7).fit(Line(), regression_data())
    shown = capsys.readouterr().err
    assert "Round: 100%" in shown
    assert "7/7" in shown
    assert "val_loss" not in shown  # not logged to the bar


def test_messages_stand_above_the_progress_bar(capsys):
    class Talks(Line):
        def on_train_batch_end(self, *_):
            rank_zero_info("something to say")

    handler = logging.StreamHandler()  # Lightning's own has the stream that pytest took away
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        trainer(enable_progress_bar=True, callbacks=[RoundProgressBar()], max_steps=2).fit(Talks(), regression_data())
    finally:
        assert handler in logger.handlers
        logger.removeHandler(handler)
    before = capsys.readouterr().err.split("something to say\n")[:-1]
    assert len(before) == 2
    assert all(text[-1] in "\r\n" for text in before)


def test_rounds_in_total():
    seen = []

    class Spy(Line):
        def on_train_start(self):
            super().on_train_start()
            seen.append(rounds_in_total(self.trainer))

    trainer(max_steps=7).fit(Spy(), regression_data())
    trainer(max_steps=-1, max_epochs=3).fit(Spy(), regression_data())
    trainer(max_steps=7, max_epochs=1).fit(Spy(), regression_data())
    assert seen == [7, 15, 5]
