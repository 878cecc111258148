"""A plan copies what no point holds, keeps in place what one does, and never plans a copy over what a point holds."""

from pathlib import Path

import pytest

from lakeshare_pipelines.backup.model import Status
from tests.builders.backup_plans import Planner, a_delta_table, a_planner, an_object

ONE, TWO, THREE, FOUR = (f"2026-11-{day:02}" for day in range(1, 5))


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return a_planner(tmp_path)


def lanes(planner: Planner, day: str) -> dict[str, str]:
    return {key: row["lane"] for key, row in planner.by_key(day).items()}


def places(planner: Planner, day: str) -> dict[str, str]:
    return {key: row["stored_key"] for key, row in planner.by_key(day).items()}


def test_the_first_point_copies_everything(planner: Planner) -> None:
    plan = planner.plan(ONE, [an_object("a"), an_object("b/c d")])
    assert plan.previous is None
    assert lanes(planner, ONE) == {"a": "small", "b/c d": "small"}
    assert places(planner, ONE) == {"a": "objects/a", "b/c d": "objects/b/c d"}
    assert {row["first_point"] for row in planner.rows(ONE)} == {ONE}


def test_the_next_point_copies_only_what_is_new(planner: Planner) -> None:
    planner.point(ONE, [an_object("same"), an_object("gone")])
    plan = planner.plan(TWO, [an_object("same"), an_object("new")])
    assert lanes(planner, TWO) == {"same": "held", "new": "small"}
    assert planner.by_key(TWO)["same"]["first_point"] == ONE
    assert plan.previous == ONE
    assert plan.estimate.objects == 1
    assert plan.estimate.held_objects == 1
    assert plan.estimate.by_lane == {"held": 1, "small": 1}


@pytest.mark.parametrize("changed", [{"etag": "e2"}, {"size_bytes": 11}, {"etag": None}])
def test_what_changed_is_copied_beside_what_was(planner: Planner, changed: dict[str, object]) -> None:
    planner.point(ONE, [an_object("a"), an_object("b")])
    planner.plan(TWO, [an_object("a", **changed), an_object("b")])
    assert places(planner, TWO) == {"a": f"remade/{TWO}/a", "b": "objects/b"}
    assert lanes(planner, TWO) == {"a": "small", "b": "held"}


def test_what_was_only_touched_is_not_copied(planner: Planner) -> None:
    planner.point(ONE, [an_object("a")])
    later = an_object("a")["last_modified"].replace(hour=7)
    planner.plan(TWO, [an_object("a", last_modified=later, version_id="another")])
    assert lanes(planner, TWO) == {"a": "held"}


def test_a_degraded_point_is_built_on_too(planner: Planner) -> None:
    planner.point(ONE, [an_object("a")])
    planner.point(TWO, [an_object("a"), an_object("b")], "degraded")
    assert planner.plan(THREE, [an_object("a"), an_object("b")]).previous == TWO
    assert lanes(planner, THREE) == {"a": "held", "b": "held"}


def test_a_table_made_anew_goes_to_a_place_of_its_own_whole_and_stays_there(planner: Planner) -> None:
    first = a_delta_table("t", "a", "b")
    assert planner.point(ONE, [*first, an_object("plain")]).plan.tables[0].stored_root == "objects/t"
    # The same name of the first commit, another content; one file is the same by chance.
    anew = [*a_delta_table("t", "c", etag="e2"), an_object("t/a"), an_object("plain")]
    plan = planner.point(TWO, anew).plan
    assert plan.tables[0].stored_root == f"remade/{TWO}/t"
    assert places(planner, TWO) == {
        "t/_delta_log/00000000000000000000.json": f"remade/{TWO}/t/_delta_log/00000000000000000000.json",
        "t/a": f"remade/{TWO}/t/a",
        "t/c": f"remade/{TWO}/t/c",
        "plain": "objects/plain",
    }
    assert lanes(planner, TWO)["t/a"] == "small"
    assert any("t: files of the same name" in warning for warning in plan.warnings)
    plan = planner.plan(THREE, [*anew, an_object("t/d")])
    assert plan.tables[0].stored_root == f"remade/{TWO}/t"
    assert places(planner, THREE)["t/d"] == f"remade/{TWO}/t/d"
    assert lanes(planner, THREE)["t/c"] == "held"
    assert not plan.warnings


@pytest.mark.parametrize("status", ["verified", "degraded"])
def test_nothing_is_copied_over_what_an_older_point_holds(planner: Planner, status: Status) -> None:
    planner.point(ONE, [*a_delta_table("t", "a"), an_object("plain"), an_object("stays")], status)
    planner.point(TWO, [an_object("stays")])
    rows = [*a_delta_table("t", "b", etag="e2"), an_object("plain", "e2"), an_object("stays")]
    plan = planner.plan(THREE, rows)
    assert plan.previous == TWO
    assert set(places(planner, THREE).values()) == {
        f"remade/{THREE}/t/_delta_log/00000000000000000000.json",
        f"remade/{THREE}/t/b",
        f"remade/{THREE}/plain",
        "objects/stays",
    }


def test_nothing_is_copied_over_what_a_later_point_holds(planner: Planner) -> None:
    planner.point(THREE, [an_object("a", "e3"), an_object("b")])
    planner.plan(ONE, [an_object("a"), an_object("b")])
    assert places(planner, ONE) == {"a": f"remade/{ONE}/a", "b": "objects/b"}


def test_what_comes_back_unchanged_goes_to_its_old_place(planner: Planner) -> None:
    planner.point(ONE, [an_object("a"), an_object("b")])
    planner.point(TWO, [an_object("b")])
    planner.plan(THREE, [an_object("a"), an_object("b")])
    assert places(planner, THREE)["a"] == "objects/a"


def test_files_that_become_a_tables_lie_together_with_it(planner: Planner) -> None:
    planner.point(ONE, [an_object("t/a"), an_object("t/b")])
    planner.point(TWO, [an_object("t/a", "e2"), an_object("t/b")])
    assert places(planner, TWO) == {"t/a": f"remade/{TWO}/t/a", "t/b": "objects/t/b"}
    rows = [an_object("t/a", "e2"), an_object("t/b"), *a_delta_table("t")]
    plan = planner.plan(THREE, rows)
    assert {key.removesuffix(of) for of, key in places(planner, THREE).items()} == {f"remade/{THREE}/"}
    assert plan.tables[0].stored_root == f"remade/{THREE}/t"


def test_tables_inside_each_other_move_together(planner: Planner) -> None:
    planner.point(ONE, [*a_delta_table("t", "a"), *a_delta_table("t/in", "b"), *a_delta_table("u", "c")])
    plan = planner.plan(
        TWO, [*a_delta_table("t", "a"), *a_delta_table("t/in", "b", etag="e2"), *a_delta_table("u", "c")]
    )
    assert {table.root: table.stored_root for table in plan.tables} == {
        "t": f"remade/{TWO}/t",
        "t/in": f"remade/{TWO}/t/in",
        "u": "objects/u",
    }
    assert lanes(planner, TWO)["t/a"] == "small"
    assert lanes(planner, TWO)["u/c"] == "held"


@pytest.mark.parametrize(("external", "kept"), [("follow", True), ("refuse", False)])
def test_what_was_followed_outside_stays_held_while_its_table_is_there(
    tmp_path: Path, external: str, kept: bool
) -> None:
    planner = a_planner(tmp_path, external=external)
    outside = [
        an_object("x", bucket="else", stored_key="external/else/x", table_root=root, first_point=ONE)
        for root in ("t", "dropped")
    ]
    outside[1]["key"] = "y"
    table = a_delta_table("t", "a")
    planner.point(ONE, table, also_held=outside)
    planner.plan(TWO, table)
    followed = [row for row in planner.rows(TWO) if row["bucket"] == "else"]
    assert [row["stored_key"] for row in followed] == (["external/else/x"] if kept else [])
    assert all(row["lane"] == "held" for row in planner.rows(TWO))


def test_a_prefix_of_the_target_stands_before_everything(tmp_path: Path) -> None:
    from lakeshare_pipelines.backup.plan import make_stored_prefixes
    from lakeshare_pipelines.backup.stores import StoreAddress

    backup = a_planner(tmp_path, target=StoreAddress(url="s3://safe/keep")).backup
    found = make_stored_prefixes(backup, ONE, None)
    assert (found.usual, found.remade, found.stored_root("", "", ())) == (
        "keep/objects/",
        f"keep/remade/{ONE}/",
        "keep/objects",
    )


def test_dated_points_are_whole_each_in_its_place(tmp_path: Path) -> None:
    planner = a_planner(tmp_path, layout="dated", target={"url": str(tmp_path / "target" / "point-{day}")})
    planner.point(ONE, a_delta_table("t", "a"))
    plan = planner.plan(TWO, a_delta_table("t", "a", etag="e2"))
    assert plan.previous is None
    assert places(planner, TWO)["t/a"] == "t/a"
    assert set(lanes(planner, TWO).values()) == {"small"}
    assert plan.tables[0].stored_root == "t"
    assert not plan.warnings


def test_only_the_listing_and_the_plan_are_left_in_the_workspace(planner: Planner) -> None:
    planner.point(ONE, [an_object("a")])
    planner.plan(TWO, [an_object("a")])
    assert {path.name for path in planner.workspace(TWO).folder.iterdir()} == {"listing", "plan"}
