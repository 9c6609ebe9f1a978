import re
from base64 import b64decode

import pytest

from shoal.simulate.errors import PlotsError
from shoal.simulate.report.page import write_report
from shoal.simulate.runs import compare_churn, compare_static
from shoal.simulate.scenario import Churn, Lifetimes, Mode
from tests.simulate.report.results import ignore

PNG = b"\x89PNG\r\n\x1a\n"


def check_folder(out):
    """Two pictures and a page that holds them and needs nothing else."""
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
    write_report(compare_churn(comparison, Churn(Lifetimes.EXP, 1.1, Mode.QUEUE), 1, ignore), out)
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
