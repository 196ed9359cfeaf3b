"""Row sets and ledgers do what Python sets do, and refuse to count a row twice."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.source import Span
from streamrf.statistics.rowset import Ledger, RowSet
from streamrf.support.errors import FileFormatError, InputError, MismatchError

N = 40
row_sets = st.sets(st.integers(0, N - 1))
spans = st.tuples(st.integers(0, N), st.integers(0, N)).map(lambda ends: (min(ends), max(ends)))


def row_set(rows):
    return RowSet((row, row + 1) for row in rows)


def as_set(rows):
    return {row for span in rows.spans() for row in range(span.start, span.stop)}


def is_canonical(rows):
    edges = [edge for span in rows.spans() for edge in span]
    return edges == sorted(set(edges))


@given(row_sets, row_sets)
def test_set_operations_are_those_of_sets(a, b):
    first, second = row_set(a), row_set(b)
    for result, expected in [
        (first.union(second), a | b),
        (first.intersection(second), a & b),
        (first.difference(second), a - b),
        (first.complement(N), set(range(N)) - a),
        (first.complement(N // 2), set(range(N // 2)) - a),
        (first.copy(), a),
    ]:
        assert as_set(result) == expected
        assert is_canonical(result)
    assert first.intersects(second) == bool(a & b)
    assert first.contains_all(second) == (b <= a)
    assert first.count == len(a)
    assert (first == second) == (a == b)
    assert bool(first) == bool(a)
    assert all((row in first) == (row in a) for row in range(-1, N + 1))


@given(row_sets, spans)
def test_a_span_is_added_once(a, span):
    rows, new = row_set(a), set(range(*span))
    assert rows.contains(span) == (new <= a)
    if a & new:
        with pytest.raises(MismatchError, match=rf"Rows {min(a & new)} to \d+.* a second time"):
            rows.add(span)
        assert as_set(rows) == a
    else:
        rows.add(span)
        assert as_set(rows) == a | new
        assert is_canonical(rows)


@given(row_sets, spans)
def test_a_span_is_removed_only_if_it_is_there(a, span):
    rows, gone = row_set(a), set(range(*span))
    if gone <= a:
        rows.remove(span)
        assert as_set(rows) == a - gone
        assert is_canonical(rows)
    else:
        with pytest.raises(MismatchError, match=rf"Rows {min(gone - a)} to \d+.* cannot be removed"):
            rows.remove(span)
        assert as_set(rows) == a


@given(row_sets, row_sets)
def test_whole_sets_are_added_and_removed_exactly(a, b):
    added, removed = row_set(a), row_set(a)
    if a & b:
        with pytest.raises(MismatchError):
            added.add_all(row_set(b))
        assert as_set(added) == a
    else:
        added.add_all(row_set(b))
        assert as_set(added) == a | b
    if b <= a:
        removed.remove_all(row_set(b))
        assert as_set(removed) == a - b
    else:
        with pytest.raises(MismatchError):
            removed.remove_all(row_set(b))
        assert as_set(removed) == a


@given(row_sets)
def test_a_row_set_survives_json(a):
    assert RowSet.from_json(json.loads(json.dumps(row_set(a).to_json()))) == row_set(a)


def test_neighbours_join_and_the_message_names_the_overlap():
    rows = RowSet([Span(0, 100), Span(200, 300)])
    rows.add(Span(100, 200))
    assert rows.to_json() == [[0, 300]]
    with pytest.raises(MismatchError, match=r"^Rows 250 to 299 would be added a second time"):
        rows.add(Span(250, 400))
    with pytest.raises(MismatchError, match=r"^Rows 300 to 349 cannot be removed"):
        rows.remove(Span(280, 350))


def test_numpy_rows_become_plain_json():
    rows = RowSet([(np.int64(1), np.int64(4))])
    assert json.dumps(rows.to_json()) == "[[1, 4]]"


@pytest.mark.parametrize("span", [(3, 2), (-1, 2)])
def test_what_is_no_span_is_refused(span):
    with pytest.raises(InputError, match="not a range of rows"):
        RowSet().add(span)


DAMAGED_ROW_SETS = """
    null {} "ab" [1,2] [[1]] [[1,2,3]] [[2,1]] [[1,1]] [[0,5],[5,6]] [[0,5],[3,8]] [[5,6],[0,1]] [[-1,2]] [[0,1.0]]
    [[false,true]] ["ab"] [[0,null]]
"""


@pytest.mark.parametrize("value", [json.loads(text) for text in DAMAGED_ROW_SETS.split()])
def test_damaged_row_sets_are_refused(value):
    with pytest.raises(FileFormatError, match="damaged"):
        RowSet.from_json(value)


ledgers = st.dictionaries(st.sampled_from("abc"), row_sets)


def ledger(rows_of):
    result = Ledger()
    for key, rows in rows_of.items():
        result.add(key, f"{key}.zarr", N, row_set(rows))
    return result


def pairs(rows_of):
    return {(key, row) for key, rows in rows_of.items() for row in rows}


def as_pairs(held):
    return pairs({key: as_set(shard.rows) for key, shard in held.shards().items()})


@given(ledgers, ledgers)
def test_ledgers_add_and_subtract_exactly(a, b):
    mine, theirs = ledger(a), ledger(b)
    assert mine.count == len(pairs(a))
    assert mine.intersects(theirs) == bool(pairs(a) & pairs(b))
    assert (mine == theirs) == (pairs(a) == pairs(b)) == (mine.digest() == theirs.digest())
    if pairs(a) & pairs(b):
        with pytest.raises(MismatchError, match="a second time"):
            mine.add_all(theirs)
        assert as_pairs(mine) == pairs(a)
    else:
        mine.add_all(theirs)
        assert as_pairs(mine) == pairs(a) | pairs(b)
        mine.remove_all(theirs)
        assert mine == ledger(a)
        assert mine.digest() == ledger(a).digest()


@given(ledgers, ledgers)
def test_ledgers_refuse_to_remove_what_is_not_there(a, b):
    mine = ledger(a)
    if pairs(b) <= pairs(a):
        mine.remove_all(ledger(b))
        assert as_pairs(mine) == pairs(a) - pairs(b)
    else:
        with pytest.raises(MismatchError):
            mine.remove_all(ledger(b))
        assert mine == ledger(a)


@given(ledgers)
def test_a_ledger_survives_json(a):
    held = ledger(a)
    again = Ledger.from_json(json.loads(json.dumps(held.to_json())))
    assert again == held
    assert again.to_json() == held.to_json()


def test_messages_name_the_shard_and_the_rows():
    held = ledger({"a": range(10)})
    with pytest.raises(MismatchError, match=r"other\.zarr: Rows 5 to 9 would be added a second time"):
        held.add("a", "other.zarr", N, RowSet([(5, 20)]))
    with pytest.raises(MismatchError, match=r"new\.zarr is not among the 1 shards"):
        held.remove("x", "new.zarr", RowSet([(0, 5)]))
    with pytest.raises(MismatchError, match=r"grown\.zarr has 50 rows .* a\.zarr, which had 40"):
        held.add("a", "grown.zarr", 50, RowSet([(45, 50)]))
    with pytest.raises(InputError, match=r"has 40 rows, so there is no row 40"):
        held.add("b", "b.zarr", N, RowSet([(0, N + 1)]))
    assert held == ledger({"a": range(10)})


def test_labels_do_not_count_and_a_forgotten_shard_leaves_no_trace():
    moved = Ledger()
    moved.add("a", "/elsewhere/a.zarr", N, row_set({1, 2}))
    moved.add("b", "b.zarr", N, row_set({3}))
    moved.remove("b", "b.zarr", row_set({3}))
    assert moved == ledger({"a": {1, 2}})
    assert moved.digest() == ledger({"a": {1, 2}}).digest()
    assert list(moved.shards()) == ["a"]


def test_what_is_handed_out_is_a_copy():
    held = ledger({"a": {1}})
    held.rows("a").add((5, 6))
    held.shards()["a"].rows.add((5, 6))
    held.copy().add("a", "a.zarr", N, row_set({5}))
    assert held == ledger({"a": {1}})
    assert not held.contains("a", (5, 6))
    assert held.contains("a", (1, 2))


GOOD = {"label": "a", "n_rows": 10, "rows": [[0, 10]]}


CHANGES = [
    {"label": 1},
    {"n_rows": "10"},
    {"n_rows": 9},
    {"n_rows": True},
    {"rows": []},
    {"rows": [[3, 2]]},
    {"rows": None},
]


@pytest.mark.parametrize("value", [None, [], {"a": None}, {"a": {}}, *({"a": GOOD | change} for change in CHANGES)])
def test_damaged_ledgers_are_refused(value):
    with pytest.raises(FileFormatError, match="damaged"):
        Ledger.from_json(value)
    assert Ledger.from_json({"a": GOOD}).count == 10


def test_a_shard_leaves_with_the_mark_it_came_with():
    ledger = Ledger()
    ledger.add("f", "a", 10, RowSet([(0, 4)]), 2**63 + 5)
    ledger.add("f", "a", 10, RowSet([(4, 10)]), 2**63 + 6)
    assert ledger.shards()["f"].mark == 11
    ledger.remove("f", "a", RowSet([(0, 2)]), 4)
    again = Ledger.from_json(ledger.to_json())
    with pytest.raises(MismatchError, match="a: it has changed since it was added"):
        again.remove("f", "a", RowSet([(2, 10)]), 8)
    assert again.rows("f").count == 8
    again.remove("f", "a", RowSet([(2, 10)]), 7)
    assert not again


def test_rows_without_a_mark_make_it_unknown():
    ledger = Ledger()
    ledger.add("f", "a", 10, RowSet([(0, 4)]), 3)
    ledger.add("f", "a", 10, RowSet([(4, 5)]))
    assert ledger.shards()["f"].mark is None
    assert "mark" not in ledger.to_json()["f"]
    ledger.remove("f", "a", RowSet([(0, 5)]), 99)
    assert not ledger


@pytest.mark.parametrize("mark", [7, "7", "x" * 16, "A" * 16])
def test_damaged_marks_are_refused(mark):
    entry = {"label": "a", "n_rows": 3, "rows": [[0, 3]], "mark": mark}
    with pytest.raises(FileFormatError, match="16 hexadecimal digits"):
        Ledger.from_json({"f": entry})
