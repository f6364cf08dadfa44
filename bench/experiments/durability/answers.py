"""Reads and shows the results of `lockbench crash` and `lockbench fsync`."""

from functools import partial

from bench.experiments.durability import loss_words, price_words
from bench.experiments.durability.loss_judge import earned as earned_losses
from bench.experiments.durability.loss_result import CrashResult
from bench.experiments.durability.planner import earned as earned_prices
from bench.experiments.durability.price_result import FsyncResult
from bench.report.answer import Answer

LOSSES = Answer(
    "crash",
    CrashResult,
    earned_losses,
    loss_words.sheet,
    loss_words.suite,
    figures=loss_words.figures,
)
PRICES = Answer(
    "fsync",
    FsyncResult,
    earned_prices,
    price_words.sheet,
    price_words.suite,
    figures=price_words.figures,
    # The page shows the prices of a policy next to the losses in the newest crash result.
    beside=partial(price_words.beside, LOSSES),
)
