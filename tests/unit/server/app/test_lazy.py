"""Modules are imported without garbage collection, which is afterwards as it was."""

import gc

import pytest

from lakeshare_server.lazy import gc_disabled


@pytest.fixture(autouse=True)
def _collection_as_it_was():
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_off_in_the_block_only(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    with gc_disabled():
        assert not gc.isenabled()
    assert gc.isenabled() == was_enabled


def test_collection_is_as_before_after_an_import_that_fails() -> None:
    gc.enable()
    with pytest.raises(ModuleNotFoundError), gc_disabled():
        import lakeshare_server.no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
