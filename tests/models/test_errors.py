import re

from models import errors


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = re.findall(r"^([ │├└─]*)(\w+Error)(?: \((\w+)\))?  ", errors.__doc__, flags=re.M)
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    depth = {name: (len(lead) - 4) // 4 for lead, name, _ in drawn}
    assert depth == {name: kind.__mro__.index(errors.ProbeError) for name, kind in classes.items()}
    assert [name for _, name, base in drawn if base == "ValueError"] == ["InputError"]
    assert issubclass(errors.InputError, ValueError)
