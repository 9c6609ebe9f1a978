import json
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.simulate.cluster import POLICY_NAMES
from tests.simulate.made_up import node_file, pod_file, write

MAIN = [sys.executable, "-c", "from shoal.cli.main import main; main()"]


@pytest.fixture
def files(tmp_path):
    """The options that name a made-up trace."""
    return ["--nodes", str(node_file(tmp_path)), "--pods", str(pod_file(tmp_path))]


def run(*options):
    return CliRunner().invoke(main, ["simulate", *options])


def test_help_teaches_by_examples_and_names_every_policy():
    result = run("--help")
    assert result.exit_code == 0
    assert "shoal simulate --nodes nodes.csv --pods pods.csv" in result.output
    listed = re.sub(r"-\s+", "-", result.output)
    assert [name for name in POLICY_NAMES if name not in listed] == []


def test_a_table_on_stdout_and_progress_on_stderr(files):
    result = run(*files, "--policy", "binpack, spread,binpack", "--seeds", "3-4,7", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert re.search(r"^workload +binpack +spread$", result.stdout, re.MULTILINE)
    assert "mean of 3 seeds" in result.stdout
    assert len(re.findall(r"^\d/6 small (binpack|spread) seed [347]: [\d.]+ s$", result.stderr, re.MULTILINE)) == 6


def test_quiet_says_nothing_on_stderr(files):
    result = run(*files, "--policy", "binpack", "--seeds", "3", "--jobs", "1", "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_json_has_one_object_per_run(files, tmp_path):
    more = ["--pods", str(pod_file(tmp_path, "other.csv", seed=9))]
    result = run(*files, *more, "--policy", "binpack,fgd", "--seeds", "1,2", "--format", "json", "--jobs", "1")
    runs = json.loads(result.stdout)
    assert [(item["workload"], item["policy"], item["seed"]) for item in runs] == [
        (work, policy, seed) for work in ("small", "other") for seed in (1, 2) for policy in ("binpack", "fgd")
    ]
    assert all(set(item) == {"workload", "policy", "seed", "alloc_100", "alloc_130"} for item in runs)
    assert all(0 < item["alloc_100"] <= 100 for item in runs)


CHURN_FIELDS = {
    "workload", "policy", "seed", "load", "lifetimes", "mode", "start",
    "alloc_mean", "refused_pct", "pending_gpus_mean",
}  # fmt: skip


def test_json_with_departures(files):
    churn = ["--lifetimes", "trace", "--load", "1.1", "--start", "same", "--format", "json"]
    result = run(*files, "--policy", "binpack,spread", "--seeds", "1", "--jobs", "1", *churn)
    runs = json.loads(result.stdout)
    assert [set(item) for item in runs] == [CHURN_FIELDS] * 2
    assert {(item["load"], item["lifetimes"], item["mode"], item["start"]) for item in runs} == {
        (1.1, "trace", "loss", "same")
    }


def test_departures_have_defaults_and_a_queue_tells_waits(files):
    churn = ["--lifetimes", "exp", "--mode", "queue", "--format", "json"]
    (item,) = json.loads(run(*files, "--policy", "binpack", "--seeds", "1", "--jobs", "1", *churn).stdout)
    assert (item["load"], item["start"]) == (0.95, "empty")
    assert set(item) == CHURN_FIELDS | {"waiting"}
    assert set(item["waiting"]["share"]) == {"pods", "mean", "p95", "still_waiting"}


def test_output_is_the_same_for_any_number_of_processes(files):
    options = [*files, "--policy", "fragmentation,random", "--seeds", "5-6", "--format", "json", "--quiet"]
    assert run(*options, "--jobs", "2").stdout == run(*options, "--jobs", "1").stdout


def test_out_writes_a_page(files, tmp_path):
    out = tmp_path / "a" / "b"
    result = run(*files, "--policy", "binpack", "--seeds", "1", "--jobs", "1", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["allocation-small.png", "idle-small.png", "report.html"]
    assert str(out / "report.html") in result.stderr


BAD = [
    (["--policy", "best"], "no policy 'best': choose among fragmentation, "),
    (["--policy", ","], "',' names nothing"),
    (["--seeds", "x"], "'x' is no seed: write a number, a range such as 42-51"),
    (["--seeds", "1,,2"], "'' is no seed"),
    (["--seeds", "-3"], "'-3' is no seed"),
    (["--seeds", "9-7"], "'9-7' runs backwards: write 7-9"),
    (["--seeds", "1-99999999999"], "more than 10000 seeds"),
    (["--lifetimes", "exp", "--load", "0"], "0 is not a number above 0"),
    (["--lifetimes", "exp", "--load", "-1"], "-1 is not a number above 0"),
    (["--lifetimes", "exp", "--load", "nan"], "nan is not a number above 0"),
    (["--lifetimes", "exp", "--load", "much"], "'much' is not a valid float"),
    (["--lifetimes", "ever"], "'ever' is not one of 'exp', 'trace'"),
    (["--load", "0.9"], "--load 0.9 is for runs in which pods leave: add --lifetimes"),
    (["--mode", "queue"], "--mode queue is for runs in which pods leave: add --lifetimes"),
    (["--start", "same"], "--start same is for runs in which pods leave: add --lifetimes"),
    (["--lifetimes", "exp", "--start", "same"], "starts empty: drop it, or use trace"),
    (["--jobs", "0"], "0 is not in the range x>=1"),
    (["--pods", "nowhere.csv"], "nowhere.csv cannot be read"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_are_refused_with_the_value_and_the_fix(files, options, message):
    result = run(*files, *options)
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.stderr)
    assert result.stdout == ""


def test_bad_files_are_refused(files, tmp_path):
    bad = write(tmp_path / "bad.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli", ["a,1,1,1,x"])
    result = run(*files, "--pods", str(bad))
    assert result.exit_code == 2
    assert "bad.csv, line 2: gpu_milli 'x' is not a whole number" in result.stderr
    twice = run(*files, *files[2:])
    assert twice.exit_code == 2
    assert "more than one pod list is called small" in twice.stderr


def test_lifetimes_of_a_trace_without_times_are_refused(files, tmp_path):
    timeless = write(tmp_path / "timeless.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli", ["a,1,1,1,1000"])
    result = run(*files[:2], "--pods", str(timeless), "--lifetimes", "trace", "--seeds", "1", "--jobs", "1")
    assert result.exit_code == 2
    assert "timeless: pod a has no creation_time and deletion_time" in result.stderr


def test_an_out_that_is_a_file_is_refused_before_the_runs(files):
    result = run(*files, "--out", files[1] + "/below")
    assert result.exit_code == 2
    assert "cannot be made" in result.stderr
    assert result.stdout == ""


def test_without_matplotlib_one_line_tells_what_to_install(files, tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from shoal.cli.main import main; main()"
    out = ["--out", str(tmp_path / "out"), "--seeds", "1"]
    done = subprocess.run([sys.executable, "-c", code, "simulate", *files, *out], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: plots need matplotlib, which is not installed: pip install 'shoal[plots]'"
    ]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_ends_all_processes_quietly(files, jobs):
    options = ["simulate", *files, "--policy", "binpack", "--seeds", "1-5000", "--jobs", jobs]
    # Whoever runs the tests in the background of a shell has interrupts ignored, for all its children.
    command = ["env", "--default-signal=INT", *MAIN, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    # The pipes close when the last process is gone.
    stdout, stderr = process.communicate()
    assert first.startswith("1/5000 small binpack seed ")
    assert process.returncode == 1
    assert stdout == ""
    assert stderr.splitlines()[-1] == "Aborted!"
    assert "Traceback" not in stderr
