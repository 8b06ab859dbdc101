"""Cost against size: curves, what they come to, and how they are drawn for docs/scaling.md."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.outcome import Outcome
from bench.processes import ROOT

RATIO_MAX = 1.5
DRAWN = ROOT / "docs" / "assets" / "scaling"


@dataclass
class Curve:
    """A cost per operation at each size; ``per`` says of what, with its unit."""

    per: str
    points: list[tuple[float, float]] = field(default_factory=list)
    wanted: bool = True
    """Whether the largest is to cost no more than half as much again as the smallest."""

    def add(self, size: float, value: float) -> None:
        self.points.append((size, value))

    @property
    def ratio(self) -> float:
        """The cost at the largest size over the least at any: what is fixed counts for nothing at small ones."""
        least, last = min(value for _, value in self.points), self.points[-1][1]
        return last / least if least else float(last > 0) + 1.0


@dataclass
class Family:
    """Curves over one size."""

    goal: str
    name: str
    title: str
    size: str
    curves: dict[str, Curve] = field(default_factory=dict)

    def add(self, per: str, size: float, value: float, *, wanted: bool = True) -> None:
        """One more point of a curve."""
        self.curves.setdefault(per, Curve(per, wanted=wanted)).add(size, value)

    def told(self, outcome: Outcome) -> None:
        """Checks and raw figures."""
        for curve in self.curves.values():
            low, high = curve.points[0], curve.points[-1]
            what = f"{self.title}: {curve.per}, at {high[0]:,g} {self.size} against the least from {low[0]:,g} on"
            limit = RATIO_MAX if curve.wanted else None
            outcome.check(self.goal, what, curve.ratio, limit, ours=f"{low[1]:,.3g} to {high[1]:,.3g}")
        outcome.keep(self.name, {per: curve.points for per, curve in self.curves.items()})


def keep(families: Sequence[Family], folder: Path = DRAWN) -> None:
    """The figures of the curves, of which the tables of docs/scaling.md are made (``make docs``)."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        family.name: {
            "size": family.size,
            "curves": {
                per: [[float(f"{number:.4g}") for number in point] for point in curve.points]
                for per, curve in family.curves.items()
            },
        }
        for family in families
    }
    (folder / "figures.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


def draw(families: Sequence[Family], folder: Path = DRAWN) -> list[Path]:
    """A picture for each family: one panel for each curve, sizes by powers of ten, costs from nothing up."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "persist", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for family in families:
        curves = list(family.curves.values())
        figure, axes = pyplot.subplots(1, len(curves), figsize=(2.9 * len(curves), 2.5), squeeze=False)
        for axis, curve in zip(axes[0], curves, strict=True):
            sizes, values = zip(*curve.points, strict=True)
            axis.plot(sizes, values, marker="o", markersize=3.5, linewidth=1.4, color="#00796b")
            axis.set_xscale("log")
            axis.set_ylim(0, 1.25 * max(values) or 1)
            axis.set_title(curve.per, fontsize=9)
            axis.set_xlabel(family.size)
            axis.grid(visible=True, axis="y", linewidth=0.4, alpha=0.5)
        figure.tight_layout()
        path = folder / f"{family.name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
        # The library leaves spaces at the ends of lines.
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
        drawn.append(path)
    return drawn
