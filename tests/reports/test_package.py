"""The package offers what it lists, and only when asked."""

import pytest

import reports


def test_every_listed_name_is_there() -> None:
    for name in reports.__all__:
        assert callable(getattr(reports, name)) or isinstance(getattr(reports, name), str)
    assert dir(reports) == sorted(reports.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = reports.no_such_name
