import pytest

from models import names
from models.errors import InputError, UnknownNameError


def test_a_head_outside_the_model_is_refused_with_the_range() -> None:
    """Twelve heads are 0..11: a check that is off by one lets 12 through."""
    with pytest.raises(UnknownNameError, match=r"0\.12 does not exist.*heads 0\.\.11"):
        names.parse_head("0.12", n_layers=12, n_heads=12)
    with pytest.raises(UnknownNameError, match=r"12\.0 does not exist: layers are 0\.\.11"):
        names.parse_head("12.0", n_layers=12, n_heads=12)
    assert names.parse_head("11.11", n_layers=12, n_heads=12) == (11, 11)


@pytest.mark.parametrize(
    "head", ["1", "-1.0", "0.-1", "1.2.3", "a.b", "", "1.", "1.²", (0, -1), (-1, 0), (1, 2, 3)]
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_not_a_head_is_refused(head: object) -> None:
    with pytest.raises(UnknownNameError, match=r"layer\.head|does not exist"):
        names.parse_head(head, n_layers=3, n_heads=5)


def test_heads_are_named_once_and_given_as_a_list() -> None:
    sizes = {"n_layers": 3, "n_heads": 5}
    assert names.parse_heads(["2.4", (0, 1)], **sizes) == [(2, 4), (0, 1)]
    with pytest.raises(InputError, match=r"once, but got \['1.2', '1.2'\]"):
        names.parse_heads(["1.2", (1, 2)], **sizes)
    with pytest.raises(InputError, match=r'as in \["1.2"\], but got the string'):
        names.parse_heads("1.2", **sizes)


def test_an_unknown_name_lists_what_is_close_or_what_there_is() -> None:
    assert "did you mean reversal?" in str(names.unknown("task", "revesal", ["reversal", "text"]))
    assert "there are: reversal, text" in str(names.unknown("task", "zzz", ["reversal", "text"]))


def test_a_choice_lists_the_options() -> None:
    assert names.choose("device", "cuda", names.DEVICES) == "cuda"
    with pytest.raises(InputError, match="device must be one of auto, cpu, cuda, mps, but got 'x'"):
        names.choose("device", "x", names.DEVICES)
