"""How sure a mean over scenarios is: bootstrap intervals, seeded, and paired ratios of two policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.sim.summaries import Summary

NUM_RESAMPLES: Final = 10_000
SEED: Final = 20_241_219
LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure over ``num_scenarios`` scenarios, with its 95 % interval; of one scenario it is the figure itself."""

    value: float
    low: float
    high: float
    num_scenarios: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """One figure of ``policy`` over that of ``baseline`` in the same scenarios; below 1 is less.

    of_means: mean over the scenarios over mean over the scenarios, so that long ones weigh more.
    per_scenario: geometric mean of the ratios, in which each scenario weighs the same.
    """

    policy: str
    baseline: str
    figure: str
    of_means: Interval
    per_scenario: Interval


def interval_of_mean(values: Sequence[float]) -> Interval:
    """The mean of ``values``, one of each scenario; scenarios are drawn again, with replacement."""
    sample = np.asarray(values, dtype=float)
    return _interval(float(sample.mean()), sample[_draws(len(sample))].mean(axis=1), len(sample))


def paired_ratio(summaries: Sequence[Summary], policy: str, baseline: str, figure: str = "jct_mean_s") -> PairedRatio:
    """``figure`` of ``policy`` over that of ``baseline``, over the scenarios that both have run.

    Pairs are drawn whole, so that what scenarios have in common cancels. Raises ValueError if there is none.
    """
    of = {(each.policy, each.scenario): float(getattr(each, figure)) for each in summaries}
    shared = [name for who, name in of if who == policy and (baseline, name) in of]
    if not shared:
        raise ValueError(f"no scenario was run under both {policy} and {baseline}")
    left = np.asarray([of[policy, name] for name in shared])
    right = np.asarray([of[baseline, name] for name in shared])
    draws = _draws(len(shared))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(left / right)
        return PairedRatio(
            policy=policy,
            baseline=baseline,
            figure=figure,
            of_means=_interval(
                float(left.mean() / right.mean()), left[draws].mean(axis=1) / right[draws].mean(axis=1), len(shared)
            ),
            per_scenario=_interval(float(np.exp(logs.mean())), np.exp(logs[draws].mean(axis=1)), len(shared)),
        )


def _draws(size: int) -> NDArray[np.int64]:
    return np.random.default_rng(SEED).integers(0, size, (NUM_RESAMPLES, size))


def _interval(value: float, resampled: NDArray[np.float64], size: int) -> Interval:
    low, high = np.quantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value=value, low=float(low), high=float(high), num_scenarios=size)
