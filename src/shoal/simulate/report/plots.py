"""Draw the results. The only module that needs matplotlib, which is the optional extra `plots`."""

from __future__ import annotations

from io import BytesIO

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError as error:
    from shoal.simulate.errors import PlotsError

    raise PlotsError("plots need matplotlib, which is not installed: pip install 'shoal[plots]'") from error

from shoal.simulate.churn import SPANS, WARM_UP
from shoal.simulate.cluster import POLICY_NAMES
from shoal.simulate.report.curves import Curve, Picture
from shoal.simulate.static import MARKS

INK = "#1f2933"
FAINT = "#8a94a0"
GRID = "#e4e7eb"
#: A colour per policy, so that a policy looks the same in every picture.
PALETTE = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9",
    "#8c6d31", "#6a3d9a", "#999999", "#b2182b", "#1b7837", "#c51b7d",
)  # fmt: skip
COLOURS = dict(zip(POLICY_NAMES, PALETTE, strict=False))
CAUSES = (
    ("share left on cards in use", "#f2b84b"),
    ("whole cards without the CPU", "#c8553d"),
    ("whole cards that could be used", "#9fb3c8"),
)
#: Where the right half of the picture without departures begins, in % arrived.
ZOOM = 80
MOST_BANDS = 4
_SIZE = (10.0, 4.4)
_DPI = 130


def allocation_png(picture: Picture) -> bytes:
    """Allocation against arrivals or time, one line per policy."""
    figure = _figure(*_SIZE)
    if picture.churn is None:
        whole, near = figure.subplots(1, 2, width_ratios=(1, 1.35))
        _arrivals(whole, picture)
        _arrivals_near(near, picture)
    else:
        _over_time(figure.subplots(), picture)
    shaded = " (shaded: least to most)" if _bands(picture) else ""
    _head(figure, _title(picture, "GPUs allocated") + shaded)
    return _png(figure)


def idle_png(picture: Picture) -> bytes:
    """Idle GPUs by cause, one bar per policy."""
    figure = _figure(_SIZE[0], 1.7 + 0.42 * len(picture.idle))
    axes = figure.subplots()
    _frame(axes)
    axes.grid(visible=False, axis="y")
    names = list(picture.idle)
    left = [0.0] * len(names)
    for (label, colour), values in zip(CAUSES, _parts(picture), strict=True):
        axes.barh(names, values, left=left, height=0.62, color=colour, label=label, edgecolor="white", linewidth=0.8)
        left = [done + value for done, value in zip(left, values, strict=True)]
    for i, total in enumerate(left):
        axes.annotate(f"{total:.2f} %", (total, i), (5, 0), textcoords="offset points", va="center", color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*left, 0.01]) * 1.12)
    axes.set_xlabel("% of all GPUs")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, labelcolor=INK)
    when = "when 100 % have arrived" if picture.churn is None else "after the warm-up"
    _head(figure, _title(picture, f"idle GPUs by cause, {when}"))
    return _png(figure)


# Parts


def _parts(picture: Picture) -> tuple[list[float], list[float], list[float]]:
    idle = picture.idle.values()
    return [i.shares for i in idle], [i.no_cpu for i in idle], [i.usable for i in idle]


def _arrivals(axes: Axes, picture: Picture) -> None:
    _frame(axes)
    _ideal(axes)
    for policy, curve in picture.curves.items():
        _line(axes, policy, curve, band=False)
    axes.set_xlim(0, MARKS[-1])
    axes.set_ylim(0, 104)
    axes.set_xlabel("GPU demand arrived, % of capacity")
    axes.set_ylabel("allocated, % of capacity")


def _arrivals_near(axes: Axes, picture: Picture) -> None:
    _frame(axes)
    _ideal(axes)
    near = {policy: _from(curve, ZOOM) for policy, curve in picture.curves.items()}
    for policy, curve in near.items():
        _line(axes, policy, curve, band=_bands(picture))
    floor = min((min(curve.least) for curve in near.values() if curve.x), default=0.0)
    axes.set_xlim(ZOOM, MARKS[-1])
    axes.set_ylim(floor - 1, 102)
    axes.set_xlabel(f"from {ZOOM} % on; beside the lines, what is allocated at {MARKS[-1]} %")
    axes.annotate(
        "dotted: all that could be", (0.985, 100), (0, 4), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", color=FAINT, fontsize=9,
    )  # fmt: skip
    _labels(axes, near, picture.allocated)


def _over_time(axes: Axes, picture: Picture) -> None:
    _frame(axes)
    for policy, curve in picture.curves.items():
        _line(axes, policy, curve, band=_bands(picture))
    if picture.churn is None:
        return
    horizon = picture.churn.horizon
    warm = horizon * WARM_UP / SPANS
    axes.axvspan(0, warm, color=GRID, alpha=0.6, linewidth=0)
    axes.annotate("warm-up, not counted", (warm, 0.95), (-6, 0), xycoords=("data", "axes fraction"),
                  textcoords="offset points", ha="right", color=FAINT)  # fmt: skip
    settled = {policy: _from(curve, warm) for policy, curve in picture.curves.items()}
    floor = min((min(curve.least) for curve in settled.values() if curve.x), default=0.0)
    axes.set_xlim(0, horizon)
    axes.set_ylim(max(0.0, floor - 3), 101)
    axes.set_xlabel("time, in mean lifetimes; beside the lines, the mean after the warm-up")
    axes.set_ylabel("allocated, % of capacity")
    _labels(axes, settled, picture.allocated)


def _ideal(axes: Axes) -> None:
    axes.plot([0, 100, MARKS[-1]], [0, 100, 100], color=FAINT, linewidth=1, linestyle=(0, (2, 3)))


def _bands(picture: Picture) -> bool:
    """Whether to shade from the least to the most over the seeds: with many policies that would hide the lines."""
    return picture.seeds > 1 and len(picture.curves) <= MOST_BANDS


def _line(axes: Axes, policy: str, curve: Curve, *, band: bool) -> None:
    """The line of one policy; those drawn first lie on top."""
    colour = COLOURS.get(policy, INK)
    if band:
        axes.fill_between(curve.x, curve.least, curve.most, color=colour, alpha=0.15, linewidth=0)
    axes.plot(
        curve.x, curve.mean, color=colour, linewidth=1.8, solid_capstyle="round", zorder=3 - len(axes.lines) / 100
    )


def _labels(axes: Axes, curves: dict[str, Curve], values: dict[str, float]) -> None:
    """Names and values to the right of the axes, each beside the end of its line, none over another."""
    ends = sorted(((curve.mean[-1], policy) for policy, curve in curves.items() if curve.x), reverse=True)
    low, high = axes.get_ylim()
    apart = 0.062
    places = _apart([(y - low) / (high - low) for y, _ in ends], apart)
    for (_, policy), place in zip(ends, places, strict=True):
        axes.annotate(f"{policy}  {values[policy]:.2f}", (1, place), (8, 0), xycoords="axes fraction",
                      textcoords="offset points", va="center", color=COLOURS.get(policy, INK),
                      fontweight="bold", annotation_clip=False)  # fmt: skip


def _apart(places: list[float], apart: float) -> list[float]:
    """Places from top to bottom, moved so that each is `apart` below the one above, and none below the bottom."""
    for i in range(1, len(places)):
        places[i] = min(places[i], places[i - 1] - apart)
    if places and places[-1] < 0:
        places[-1] = 0.0
        for i in range(len(places) - 2, -1, -1):
            places[i] = max(places[i], places[i + 1] + apart)
    return places


def _from(curve: Curve, x: float) -> Curve:
    kept = [i for i, at in enumerate(curve.x) if at >= x]

    def pick(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(values[i] for i in kept)

    return Curve(pick(curve.x), pick(curve.mean), pick(curve.least), pick(curve.most))


def _frame(axes: Axes) -> None:
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, length=0, pad=6)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def _head(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", color=INK, fontsize=13, fontweight="bold")


def _title(picture: Picture, what: str) -> str:
    seeds = f"{picture.seeds} seeds" if picture.seeds > 1 else "one seed"
    return f"{picture.workload}: {what}, {seeds}"


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.1), facecolor="white")
    figure.set_canvas(FigureCanvasAgg(figure))
    return figure


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    # No date and no version: equal results give equal files.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
