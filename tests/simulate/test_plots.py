import re
from base64 import b64decode

import pytest

from shoal.simulate.cluster import POLICY_NAMES, Idle
from shoal.simulate.errors import PlotsError
from shoal.simulate.plots import COLOURS, Curve, charts, curve, mean_idle, write_report
from shoal.simulate.runs import compare_churn, compare_static
from shoal.simulate.scenario import Churn, ChurnMode, Lifetimes
from tests.simulate.results import ignore


def test_a_curve_is_the_mean_and_the_extremes_over_the_seeds():
    runs = [[(1.0, 10.0), (2.0, 20.0)], [(2.0, 30.0), (3.0, 40.0)]]
    assert curve(runs) == Curve((1, 2, 3), (5, 25, 30), (0, 20, 20), (10, 30, 40))


def test_idle_gpus_are_averaged():
    assert mean_idle([Idle(1, 2, 3), Idle(3, 4, 6)]) == Idle(2, 3, 4.5)
    assert mean_idle([]) == Idle(0, 0, 0)


def test_the_picture_shows_what_was_idle_when_all_had_arrived(comparison):
    results = compare_static(comparison, 1, ignore)
    (chart,) = charts(results)
    assert chart.churn is None
    assert chart.seeds == 2
    assert list(chart.curves) == list(chart.idle) == ["fragmentation", "binpack"]
    own = [run.alloc_130 for run in results if run.policy == "binpack"]
    assert chart.allocated["binpack"] == pytest.approx(sum(own) / 2)
    last = [[fill for fill in run.fills if fill.arrived <= 100][-1] for run in results if run.policy == "binpack"]
    idle = chart.idle["binpack"]
    assert idle.shares + idle.no_cpu + idle.usable == pytest.approx(
        100 - sum(fill.last_allocated for fill in last) / len(last)
    )


def test_every_policy_has_a_colour_of_its_own() -> None:
    assert sorted(COLOURS) == sorted(POLICY_NAMES)
    assert len(set(COLOURS.values())) == len(COLOURS)


PNG = b"\x89PNG\r\n\x1a\n"


def check_folder(out):
    """Two charts and a page that holds them and needs nothing else."""
    names = sorted(path.name for path in out.iterdir())
    assert names == ["allocation-_odd____name.png", "idle-_odd____name.png", "report.html"]
    pngs = [(out / name).read_bytes() for name in names[:2]]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(png.startswith(PNG) for png in pngs)
    assert [b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)\"", page)] == pngs
    shell = re.sub(r"base64,[^\"]+", "", page)
    assert "://" not in shell
    assert not re.search(r"<(script|link|iframe)|(src|href)=(?!\"data:)|url\(", shell)
    assert "&lt;odd&gt; &amp; name" in shell
    assert "<odd>" not in shell
    return shell


def test_a_report_without_departures(comparison, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    results = compare_static(comparison, 1, ignore)
    assert write_report(results, out) == out / "report.html"
    page = check_folder(out)
    assert "without departures; mean of 2 seeds" in page
    assert page.count("<table>") == 2
    assert "<td>&lt;odd&gt; &amp; name</td>" in page


def test_a_report_with_departures(comparison, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    write_report(compare_churn(comparison, Churn(Lifetimes.EXP, 1.1, ChurnMode.QUEUE), 1, ignore), out)
    page = check_folder(out)
    assert "with departures: load 1.1, exponential lifetimes, pods that do not fit wait" in page
    assert page.count("<table>") == 3


def test_equal_results_give_equal_files(comparison, tmp_path):
    results = compare_static(comparison, 1, ignore)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(results, tmp_path / name)
    assert [path.read_bytes() for path in sorted((tmp_path / "a").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "b").iterdir())
    ]


def test_a_folder_that_is_not_there(comparison, tmp_path):
    with pytest.raises(PlotsError, match=r"cannot be written .*--out"):
        write_report(compare_static(comparison, 1, ignore), tmp_path / "none")
