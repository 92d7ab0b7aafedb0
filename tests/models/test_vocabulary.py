import pytest

from models.errors import VocabularyError
from models.vocabulary import Vocabulary


def test_text_and_ids_are_each_other_s_inverse() -> None:
    vocabulary = Vocabulary(("b", "a", " ", "\n"))
    assert vocabulary.encode("ab \n") == [1, 0, 2, 3]
    assert vocabulary.decode(vocabulary.encode("ab \nba")) == "ab \nba"
    assert vocabulary.encode("") == []


def test_unknown_characters_are_all_named() -> None:
    with pytest.raises(VocabularyError, match=r"one of 'a-c', but got '1', 'é', '😀'"):
        Vocabulary(("a", "b", "c")).encode("a1é😀b")


def test_a_negative_id_is_no_id_from_the_end() -> None:
    with pytest.raises(VocabularyError, match=r"ids must be 0\.\.2, but got \[-1\]"):
        Vocabulary(("a", "b", "c")).decode([0, -1])


def test_it_is_described_by_its_runs() -> None:
    assert Vocabulary(tuple("abcdefghijklmnopqrstuvwxyz|")).describe() == "a-z|"
    assert Vocabulary(tuple("ba9")).describe() == "9ab"
