"""Each step of a run is printed once, in the order in which they ended, and then how the run ended."""

import dagster as dg

from lakeshare_pipelines.demo.processes import RUN_TAG, EndedSteps, ProgressReporter


@dg.op
def write_rows() -> int:
    return 1


@dg.op
def publish_rows(rows: int) -> None:
    raise dg.Failure(f"{rows} rows are wrong")


@dg.job
def publish() -> None:
    publish_rows(write_rows())


def test_each_ended_step_of_the_marked_run_is_returned_once():
    with dg.DagsterInstance.ephemeral() as instance:
        steps = EndedSteps(instance, "of this start")
        publish.execute_in_process(instance=instance, tags={RUN_TAG: "another"}, raise_on_error=False)
        assert list(steps.next()) == []

        publish.execute_in_process(instance=instance, tags={RUN_TAG: "of this start"}, raise_on_error=False)
        assert list(steps.next()) == ["write rows", "publish rows: stopped"]
        assert list(steps.next()) == []


def test_a_run_with_a_stopped_step_is_not_reported_as_done(capsys):
    for steps in (["write", "publish"], ["write", "audit: stopped"]):
        with ProgressReporter().working("flights") as report_step:
            for step in steps:
                report_step(step)
    ended = [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert ended == ["write", "publish", "flights: done", "write", "audit: stopped", "flights: stopped"]
