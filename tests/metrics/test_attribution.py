"""Containers + unattributed = used, in every sample, whatever is read and in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu.protocol import Process
from shoal.metrics.attribution import CardUse, ContainerUse, UseSource, attribute
from shoal.metrics.processes import ContainerRef

A = ContainerRef("uid-a", "1" * 64)
B = ContainerRef("uid-b", "2" * 64)
GIB = 1 << 30


def test_two_pods_on_one_card_and_a_program_of_nobody() -> None:
    processes = [Process(1, 3 * GIB, 40), Process(2, GIB, 10), Process(3, GIB, 5), Process(9, 2 * GIB, 20)]
    use = attribute(8 * GIB, processes, {1: A, 2: A, 3: B}, {})
    assert use == CardUse(
        8 * GIB,
        3 * GIB,
        (ContainerUse(A, UseSource.PROCESS, 4 * GIB, 50), ContainerUse(B, UseSource.PROCESS, GIB, 5)),
    )


def test_the_drivers_account_of_a_cgroup_comes_before_its_processes() -> None:
    use = attribute(8 * GIB, [Process(1, 3 * GIB, 40)], {1: A}, {A: 5 * GIB, B: 0})
    assert use.containers == (
        ContainerUse(A, UseSource.CGROUP, 5 * GIB, 40),
        ContainerUse(B, UseSource.CGROUP, 0, None),
    )
    assert use.unattributed_bytes == 3 * GIB


def test_load_under_mps_is_not_known() -> None:
    use = attribute(4 * GIB, [Process(1, 3 * GIB, 40, mps=True), Process(2, GIB, 40)], {1: A}, {})
    assert use.containers == (ContainerUse(A, UseSource.MPS, 3 * GIB, None),)
    assert use.unattributed_bytes == GIB


def test_what_is_not_told_is_not_there() -> None:
    use = attribute(4 * GIB, [Process(1, None, None), Process(2, GIB, 3)], {1: A, 2: B}, {})
    assert use.containers == (
        ContainerUse(A, UseSource.PROCESS, None, None),
        ContainerUse(B, UseSource.PROCESS, GIB, 3),
    )
    assert use.unattributed_bytes is None, "some of it is A's"
    assert attribute(None, [Process(2, GIB, 3)], {2: B}, {}).unattributed_bytes is None
    assert attribute(None, [], {}, {}) == CardUse(None, None)


def test_a_load_that_cannot_be_is_no_reading() -> None:
    (use,) = attribute(GIB, [Process(1, GIB, 90), Process(2, 0, 90)], {1: A, 2: A}, {}).containers
    assert use.utilisation is None


def test_parts_read_later_may_be_more() -> None:
    use = attribute(GIB, [Process(1, 2 * GIB, 1), Process(2, GIB, 1)], {1: A}, {})
    assert (use.used_bytes, use.unattributed_bytes) == (3 * GIB, GIB)


def test_a_process_that_an_account_has_is_not_counted_twice() -> None:
    use = attribute(2 * GIB, [Process(1, 2 * GIB, 1)], {}, {A: 2 * GIB})
    assert (use.used_bytes, use.unattributed_bytes) == (2 * GIB, 0)


refs = st.builds(ContainerRef, st.sampled_from(["u1", "u2", "u3"]), st.sampled_from(["c1", "c2"]))
amounts = st.none() | st.integers(0, 80 * GIB)
running = st.lists(
    st.builds(Process, st.integers(1, 30), amounts, st.none() | st.integers(0, 200), st.booleans()), max_size=30
)


@given(amounts, running, st.dictionaries(st.integers(1, 30), refs), st.dictionaries(refs, st.integers(0, 80 * GIB)))
def test_the_parts_add_up(
    used: int | None, processes: list[Process], owners: dict[int, ContainerRef], accounts: dict[ContainerRef, int]
) -> None:
    use = attribute(used, processes, owners, accounts)
    assert len({part.container for part in use.containers}) == len(use.containers)
    parts = [part.memory_bytes for part in use.containers]
    known = [part for part in parts if part is not None]
    if use.unattributed_bytes is None:
        assert use.used_bytes is None or len(known) < len(parts)
    else:
        assert use.used_bytes is not None
        assert used is not None
        assert len(known) == len(parts)
        assert sum(known) + use.unattributed_bytes == use.used_bytes >= used
        assert use.unattributed_bytes >= 0
    assert all(part.utilisation is None or 0 <= part.utilisation <= 100 for part in use.containers)
    named = set(accounts) | {owners[process.pid] for process in processes if process.pid in owners}
    assert {part.container for part in use.containers} == named
