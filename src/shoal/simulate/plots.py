"""Results as plots, and one HTML page that holds them all: no other file, no address, opens anywhere.

The only module that needs matplotlib, which is the optional extra `plots`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from statistics import fmean

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError as error:
    from shoal.simulate.errors import PlotsError

    raise PlotsError("plots need matplotlib, which is not installed: pip install 'shoal[plots]'") from error

from shoal.simulate.churn import SPANS, WARM_UP, ChurnResult
from shoal.simulate.cluster import POLICY_NAMES, Idle
from shoal.simulate.errors import PlotsError
from shoal.simulate.report import Results, Section, sections, settings
from shoal.simulate.scenario import Churn
from shoal.simulate.static import MARKS, Fill, StaticResult

# What the plots show, as numbers: means and extremes over the seeds


@dataclass(frozen=True, slots=True)
class Curve:
    """The allocation in % along x, the arrived demand in % or the time: mean, least and most over the seeds."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One workload: for each policy a curve, the reported allocation and the idle GPUs.

    `churn` is None without departures; then the reported allocation is that at the last mark.
    """

    workload: str
    seeds: int
    churn: Churn | None
    curves: dict[str, Curve]
    allocated: dict[str, float]
    idle: dict[str, Idle]


def charts(results: Results) -> list[Chart]:
    """The charts, one for each workload."""
    found = []
    for workload in dict.fromkeys(run.workload for run in results):
        runs = [run for run in results if run.workload == workload]
        by_policy = {
            name: [run for run in runs if run.policy == name] for name in dict.fromkeys(r.policy for r in runs)
        }
        found.append(
            Chart(
                workload,
                len({run.seed for run in runs}),
                next((run.churn for run in runs if isinstance(run, ChurnResult)), None),
                {policy: curve([_points(run) for run in own]) for policy, own in by_policy.items()},
                {policy: fmean([_allocated(run) for run in own]) for policy, own in by_policy.items()},
                {policy: mean_idle([idle for run in own for idle in _idle(run)]) for policy, own in by_policy.items()},
            )
        )
    return found


def curve(runs: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """One curve out of the points of several runs. Between its points a run stays where it was."""
    x = tuple(sorted({at for points in runs for at, _ in points}))
    lines = [_at_each(dict(points), x) for points in runs]
    values = list(zip(*lines, strict=True))
    return Curve(x, tuple(map(fmean, values)), tuple(map(min, values)), tuple(map(max, values)))


def _at_each(points: Mapping[float, float], x: Iterable[float]) -> list[float]:
    values, last = [], 0.0
    for at in x:
        last = points.get(at, last)
        values.append(last)
    return values


def mean_idle(samples: Sequence[Idle]) -> Idle:
    if not samples:
        return Idle(0.0, 0.0, 0.0)
    return Idle(
        fmean([sample.shares for sample in samples]),
        fmean([sample.no_cpu for sample in samples]),
        fmean([sample.usable for sample in samples]),
    )


def _points(run: StaticResult | ChurnResult) -> list[tuple[float, float]]:
    if isinstance(run, StaticResult):
        return [(float(fill.arrived), fill.allocated) for fill in run.fills]
    return [(span.end, span.allocated) for span in run.spans]


def _allocated(run: StaticResult | ChurnResult) -> float:
    return run.alloc_130 if isinstance(run, StaticResult) else run.alloc_mean


def _idle(run: StaticResult | ChurnResult) -> Iterable[Idle]:
    """What is idle when 100 % have arrived, or after the warm-up."""
    if isinstance(run, StaticResult):
        before: list[Fill] = [fill for fill in run.fills if fill.arrived <= MARKS[0]]
        return [fill.idle for fill in before[-1:]]
    return [span.idle for span in run.spans[WARM_UP:]]


# The plots

INK = "#1f2933"
FAINT = "#8a94a0"
GRID = "#e4e7eb"
#: A colour per policy, so that a policy looks the same in every chart.
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
#: Where the right half of the chart without departures begins, in % arrived.
ZOOM = 80
MOST_BANDS = 4
_SIZE = (10.0, 4.4)
_DPI = 130


def allocation_png(chart: Chart) -> bytes:
    """Allocation against arrivals or time, one line per policy."""
    figure = _figure(*_SIZE)
    if chart.churn is None:
        whole, near = figure.subplots(1, 2, width_ratios=(1, 1.35))
        _arrivals(whole, chart)
        _arrivals_near(near, chart)
    else:
        _over_time(figure.subplots(), chart)
    shaded = " (shaded: least to most)" if _bands(chart) else ""
    _head(figure, _title(chart, "GPUs allocated") + shaded)
    return _png(figure)


def idle_png(chart: Chart) -> bytes:
    """Idle GPUs by cause, one bar per policy."""
    figure = _figure(_SIZE[0], 1.7 + 0.42 * len(chart.idle))
    axes = figure.subplots()
    _frame(axes)
    axes.grid(visible=False, axis="y")
    names = list(chart.idle)
    left = [0.0] * len(names)
    for (label, colour), values in zip(CAUSES, _parts(chart), strict=True):
        axes.barh(names, values, left=left, height=0.62, color=colour, label=label, edgecolor="white", linewidth=0.8)
        left = [done + value for done, value in zip(left, values, strict=True)]
    for i, total in enumerate(left):
        axes.annotate(f"{total:.2f} %", (total, i), (5, 0), textcoords="offset points", va="center", color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*left, 0.01]) * 1.12)
    axes.set_xlabel("% of all GPUs")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, labelcolor=INK)
    when = "when 100 % have arrived" if chart.churn is None else "after the warm-up"
    _head(figure, _title(chart, f"idle GPUs by cause, {when}"))
    return _png(figure)


# Parts


def _parts(chart: Chart) -> tuple[list[float], list[float], list[float]]:
    idle = chart.idle.values()
    return [i.shares for i in idle], [i.no_cpu for i in idle], [i.usable for i in idle]


def _arrivals(axes: Axes, chart: Chart) -> None:
    _frame(axes)
    _ideal(axes)
    for policy, curve in chart.curves.items():
        _line(axes, policy, curve, band=False)
    axes.set_xlim(0, MARKS[-1])
    axes.set_ylim(0, 104)
    axes.set_xlabel("GPU demand arrived, % of capacity")
    axes.set_ylabel("allocated, % of capacity")


def _arrivals_near(axes: Axes, chart: Chart) -> None:
    _frame(axes)
    _ideal(axes)
    near = {policy: _from(curve, ZOOM) for policy, curve in chart.curves.items()}
    for policy, curve in near.items():
        _line(axes, policy, curve, band=_bands(chart))
    floor = min((min(curve.least) for curve in near.values() if curve.x), default=0.0)
    axes.set_xlim(ZOOM, MARKS[-1])
    axes.set_ylim(floor - 1, 102)
    axes.set_xlabel(f"from {ZOOM} % on; beside the lines, what is allocated at {MARKS[-1]} %")
    axes.annotate(
        "dotted: all that could be", (0.985, 100), (0, 4), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", color=FAINT, fontsize=9,
    )  # fmt: skip
    _labels(axes, near, chart.allocated)


def _over_time(axes: Axes, chart: Chart) -> None:
    _frame(axes)
    for policy, curve in chart.curves.items():
        _line(axes, policy, curve, band=_bands(chart))
    if chart.churn is None:
        return
    horizon = chart.churn.horizon
    warm = horizon * WARM_UP / SPANS
    axes.axvspan(0, warm, color=GRID, alpha=0.6, linewidth=0)
    axes.annotate("warm-up, not counted", (warm, 0.95), (-6, 0), xycoords=("data", "axes fraction"),
                  textcoords="offset points", ha="right", color=FAINT)  # fmt: skip
    settled = {policy: _from(curve, warm) for policy, curve in chart.curves.items()}
    floor = min((min(curve.least) for curve in settled.values() if curve.x), default=0.0)
    axes.set_xlim(0, horizon)
    axes.set_ylim(max(0.0, floor - 3), 101)
    axes.set_xlabel("time, in mean lifetimes; beside the lines, the mean after the warm-up")
    axes.set_ylabel("allocated, % of capacity")
    _labels(axes, settled, chart.allocated)


def _ideal(axes: Axes) -> None:
    axes.plot([0, 100, MARKS[-1]], [0, 100, 100], color=FAINT, linewidth=1, linestyle=(0, (2, 3)))


def _bands(chart: Chart) -> bool:
    """Whether to shade from the least to the most over the seeds: with many policies that would hide the lines."""
    return chart.seeds > 1 and len(chart.curves) <= MOST_BANDS


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


def _title(chart: Chart, what: str) -> str:
    seeds = f"{chart.seeds} seeds" if chart.seeds > 1 else "one seed"
    return f"{chart.workload}: {what}, {seeds}"


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.1), facecolor="white")
    figure.set_canvas(FigureCanvasAgg(figure))
    return figure


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    # No date and no version: equal results give equal files.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


# The page

PAGE = "report.html"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p.settings { color: #52606d; margin-top: .2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0 2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .3rem .9rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb; }
th { border-bottom: 2px solid #9aa5b1; } th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
"""


def write_report(results: Results, out: Path) -> Path:
    """The plots as PNG files and the page, in a folder that exists; returns the page."""
    shown = []
    try:
        for chart in charts(results):
            images = {"allocation": allocation_png(chart), "idle": idle_png(chart)}
            for kind, png in images.items():
                (out / f"{kind}-{_file_name(chart.workload)}.png").write_bytes(png)
            shown.append((chart, images))
        page = out / PAGE
        page.write_text(_page(results, shown), encoding="utf-8")
    except OSError as error:
        raise PlotsError(f"{error.filename} cannot be written ({error.strerror}): name another --out") from error
    return page


def _file_name(workload: str) -> str:
    return re.sub(r"[^\w.-]", "_", workload)


def _page(results: Results, shown: list[tuple[Chart, dict[str, bytes]]]) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Placement policies compared</title><style>{_STYLE}</style></head><body>",
        "<h1>Placement policies compared</h1>",
        f'<p class="settings">{escape(settings(results))}</p>',
        *(_table(section) for section in sections(results)),
    ]
    for chart, images in shown:
        parts.append(f"<h2>{escape(chart.workload)}</h2>")
        parts += [_image(png, f"{chart.workload}: {kind}") for kind, png in images.items()]
    return "\n".join([*parts, "</body></html>", ""])


def _table(section: Section) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in section.heads)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    caption = escape(section.title)
    return f'<div class="wide"><table><caption>{caption}</caption>\n<tr>{head}</tr>\n{rows}\n</table></div>'


def _image(png: bytes, words: str) -> str:
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{b64encode(png).decode()}">'
