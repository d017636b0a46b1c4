"""What is computed and simulated of many machines: the two agree, and nothing of it is lost on the way."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from testproject.bench.scale import table
from testproject.bench.scale.constants import Constants, share_of_one, sources
from testproject.bench.scale.devices import Cores, Hints, Log
from testproject.bench.scale.model import NONE, Fleet, bounds, costs, sessions, wall
from testproject.bench.scale.parts import Result
from testproject.bench.scale.simulate import Simulation

C = Constants()
MANAGE = Path(__file__).parents[1] / "testproject" / "manage.py"
#: More than anything carries.
FLOOD = 10_000_000.0
#: Enough of everything that a case does not want to bind.
PLENTY = replace(C, server_cores=256, capacity=4_096)
#: One wall each, far below all others.
WALLS = {
    "leader": (PLENTY, Fleet(hosts=1, demand=FLOOD, enqueue_batch=100)),
    "server cores": (replace(PLENTY, server_cores=2), Fleet(hosts=4, demand=FLOOD)),
    "WAL device": (replace(PLENTY, wal_mb_s=10), Fleet(hosts=4, demand=FLOOD, enqueue_batch=100)),
    "slots": (replace(PLENTY, capacity=32), Fleet(hosts=4, demand=FLOOD, enqueue_batch=100, duration=0.1)),
}


def simulated(constants: Constants, fleet: Fleet, *, seed: int = 1, works: int = 10_000) -> Result:
    return Simulation(constants, fleet, seed=seed, works=works).run()


@pytest.mark.parametrize("name", WALLS)
def test_the_wall_is_named_and_the_simulation_runs_into_it(name: str) -> None:
    constants, fleet = WALLS[name]

    named, bound = wall(constants, fleet)
    result = simulated(constants, fleet)

    assert named == name
    assert result.held_back
    assert result.carried == pytest.approx(bound, rel=0.15)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("hosts", [1, 10, 100])
def test_what_is_below_all_walls_is_carried(hosts: int, archive: bool) -> None:
    fleet = Fleet(hosts=hosts, demand=5_000.0, archive=archive)

    result = simulated(C, fleet, works=5_000)

    assert wall(C, fleet) == (NONE, 5_000.0)
    assert not result.held_back
    assert result.carried == pytest.approx(5_000, rel=0.05)
    assert result.wal_mb_s == pytest.approx(result.carried * costs(C, fleet).wal / 1e6, rel=0.05)
    assert 0.001 < result.percentile(0.5) <= result.percentile(0.99) < 0.05


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(hosts=1, demand=1_000.0),
        Fleet(hosts=1, demand=FLOOD),
        Fleet(hosts=10, shards=2, demand=20_000.0, enqueue_batch=7),
        Fleet(hosts=300, demand=FLOOD, duration=0.02, archive=True),
        Fleet(hosts=100, demand=10_000.0, channels=True, chunk=32),
    ],
    ids=str,
)
def test_each_work_runs_once_and_ends_once(fleet: Fleet) -> None:
    simulation = Simulation(C, fleet, works=3_000)

    result = simulation.run()

    assert len(result.runs) >= 500
    assert set(result.runs) == set(result.ends) == {1}
    assert (len(simulation.due), len(simulation.completed), simulation.worker_of, simulation.waiting) == (0, 0, {}, 0)
    assert [worker.running for worker in simulation.workers] == [0] * fleet.processes


def test_a_process_never_has_more_works_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    place = Simulation.place

    def watched(simulation: Simulation, work: int) -> bool:
        nonlocal most
        placed = place(simulation, work)
        most = max(most, *(worker.running for worker in simulation.workers))
        return placed

    monkeypatch.setattr(Simulation, "place", watched)
    simulated(replace(C, capacity=8), Fleet(hosts=3, demand=FLOOD, duration=0.01), works=1_000)

    assert most == 8


def test_a_seed_decides_everything() -> None:
    fleet = Fleet(hosts=10, demand=5_000.0)

    assert simulated(C, fleet, works=2_000) == simulated(C, fleet, works=2_000)
    assert simulated(C, fleet, works=2_000) != simulated(C, fleet, works=2_000, seed=2)


@pytest.mark.parametrize("hosts", [1, 10, 100, 1_000])
def test_more_shards_never_carry_less(hosts: int) -> None:
    shards = (1, 2, 4, 8, 16)
    fleets = [Fleet(hosts=hosts, shards=number, demand=100_000.0) for number in shards]

    computed = [wall(C, fleet)[1] for fleet in fleets]
    carried = [simulated(C, fleet, works=2_500).carried for fleet in fleets]

    assert computed == sorted(computed)
    assert all(after >= before * 0.95 for before, after in zip(carried, carried[1:], strict=False)), carried


def test_hints_that_wake_everybody_are_what_many_hosts_pay_for() -> None:
    """At a thousand works a second a thousand hosts keep the server busy with waking up; with a channel each they would not."""
    fleet = Fleet(hosts=1_000, demand=1_000.0)

    today, then = (simulated(C, one, works=1_000) for one in (fleet, replace(fleet, channels=True)))

    assert table.line(C, fleet, seed=1, works=1_000).wall == "(hints)"
    assert today.cores > 0.9 * C.server_cores
    assert then.cores < today.cores / 2
    assert then.percentile(0.5) < today.percentile(0.5)


def test_what_ends_at_once_stays_with_the_leader() -> None:
    fleet = Fleet(hosts=10, demand=5_000.0, duration=0.0)
    simulation = Simulation(C, fleet, works=1_000)

    simulation.run()

    assert costs(C, fleet).host == 0
    assert [worker.python.busy > 0 for worker in simulation.workers] == [True] + [False] * 9


def test_works_in_a_row_spare_the_server() -> None:
    spread, packed = (costs(C, Fleet(hosts=1_000, chunk=chunk)) for chunk in (1, 64))

    assert (spread.wave, packed.wave) == (1.0, 64.0)
    assert packed.server < 0.7 * spread.server


def test_bounds_are_those_of_the_constants() -> None:
    """The leader's bound from its parts: 256 works an iteration, with those of one process that is its own."""
    python = C.leader_own_iteration_us + C.leader_worker_us + 256 * (C.leader_own_work_us + C.exec_us)
    cycle = python + C.server_own_iteration_us + 256 * C.server_own_work_us + C.flush_us

    assert bounds(replace(C, reload_row_us=0), Fleet())["leader"] == pytest.approx(256 / cycle * 1e6)
    assert bounds(C, Fleet(hosts=2, shards=2))["leader"] == pytest.approx(2 * bounds(C, Fleet())["leader"])
    assert "worker's Python" not in bounds(C, Fleet())
    assert sessions(C, Fleet(hosts=100, shards=4)) == 100
    shared = bounds(share_of_one(C, 4), Fleet(hosts=100, shards=4))
    assert shared["server cores"] == pytest.approx(bounds(C, Fleet(hosts=25))["server cores"], rel=0.05)
    # More processes than cores on the one host: each is slower, all together are not faster than its cores.
    assert Fleet(hosts=1, shards=16).speed(C) == C.host_cores / 16
    assert Fleet(hosts=16, shards=16).speed(C) == 1


def test_cores_serve_in_order_and_one_flush_ends_all_that_wait() -> None:
    cores, log = Cores(2), Log(1.0, 100.0)

    assert [cores.serve(0.0, 3.0), cores.serve(0.0, 1.0), cores.serve(0.5, 1.0), cores.serve(9.0, 1.0)] == [3.0, 1.0, 2.0, 10.0]
    assert cores.busy == 6.0
    assert [log.commit(0.0, 0), log.commit(0.1, 50), log.commit(0.2, 50), log.commit(2.5, 0), log.commit(9.0, 0)] == [1, 2.5, 3, 4, 10]
    assert log.bytes == 100


def test_who_has_not_yet_woken_takes_two_hints_at_once() -> None:
    hints = Hints(Cores(1), signal=1.0, again=0.5, wake=2.0)

    assert hints.send(0.0, 1.0, 3) == (4.0, 10.0)
    assert hints.send(0.0, 1.0, 3) == (12.5, 12.5)
    assert hints.sent == 2


def test_the_command_prints_a_line_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {"hosts": [1, 10], "demand": [1_000, 100_000], "shards": [1], "works": 500}

    call_command("bench_scale", **chosen, constants=True, set=[("server_cores", 8.0)])

    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(sources()) + 1 + 1 + 4
    assert [one.split() for one in told if one.startswith("server_cores")] == [["server_cores", "8.0", "now"]]
    assert [one.split()[:3] for one in told[-4:]] == [[h, d, "1"] for h in ("1", "10") for d in ("1,000", "100,000")]
    assert [one.split()[-1] for one in told[-4::2]] == ["none", "none"]


def test_what_cannot_be_told_is_said() -> None:
    with pytest.raises(CommandError, match="no_such"):
        call_command("bench_scale", set=[("no_such", 1.0)])
    if connection.vendor == "sqlite":
        with pytest.raises(CommandError, match="DATABASE_URL"):
            call_command("bench_scale", measure=True)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="hints, log and sessions are PostgreSQL's")
def test_constants_are_measured_on_the_spot(test_database_url: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(MANAGE), "bench_scale", "--measure", "--hosts", "1", "--demand", "1000", "--shards", "1", "--works", "500"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE_URL": test_database_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    now = {one.split()[0]: float(one.split()[1].replace(",", "")) for one in ran.stdout.splitlines() if one.endswith(" now")}
    assert now.keys() >= {"leader_own_work_us", "server_other_work_us", "wake_server_us", "leader_worker_us", "pulse_us"}
    assert all(0 <= value < 100_000 for value in now.values()), now
    # Bytes of the log do not depend on what else the machine does.
    assert now["run_own_wal"] == pytest.approx(C.run_own_wal, rel=0.25)
