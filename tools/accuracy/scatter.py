"""A picture of predicted against measured peaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frenzy.core.values.units import GIB
from frenzy.evaluation.score import ScoredRow


def draw_scatter(scored: Sequence[ScoredRow], file: Path) -> None:
    """Write a PNG: one point for each run that was measured to its end, one colour for each data set."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), dpi=120)
    for name in dict.fromkeys(each.row.dataset for each in scored if each.error is not None):
        rows = [each for each in scored if each.row.dataset == name and each.error is not None]
        measured = [(each.measured_bytes or 0) / GIB for each in rows]
        predicted = [each.prediction.peak_allocated_bytes / GIB for each in rows]
        left.scatter(measured, predicted, s=9, alpha=0.6, label=f"{name} ({len(rows)})")
        right.scatter(measured, [100 * (each.error or 0.0) for each in rows], s=9, alpha=0.6)
    most = max(((each.measured_bytes or 0) / GIB for each in scored if each.error is not None), default=1.0) * 1.2
    left.plot([1, most], [1, most], color="black", linewidth=0.8)
    left.set(xscale="log", yscale="log", xlabel="measured, GiB", ylabel="predicted, GiB", title="Peak on one GPU")
    right.axhspan(-3, 3, color="0.9", zorder=0)
    right.axhline(0, color="black", linewidth=0.8)
    right.set(xscale="log", xlabel="measured, GiB", ylabel="error, %", title="Error (grey: 3 %)")
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50, 100]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FormatStrFormatter("%g"))
    left.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)
