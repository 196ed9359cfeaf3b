"""Which columns matter: by the user's own columns, against naive references, on the command line and in Python."""

import io
import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import done, streamrf

import streamrf as package
from streamrf.data.columns.column import Column
from streamrf.reports.importance import (
    Dependence,
    column_groups,
    draw_dependence,
    permutation_importance,
    value_of,
)
from streamrf.reports.page import panels
from streamrf.support.errors import InputError

FAST = ("--D", "64", "--pilot", "none", "--threads", "1", "--quiet")


def table(rows, seed):
    """The target follows colour and area; the third and fourth column are noise."""
    rng = np.random.default_rng(seed)
    colour, area = rng.choice(["blue", "green", "red"], rows), rng.uniform(0, 2, rows)
    day = np.datetime64("2024-01-01") + rng.integers(0, 60, rows).astype("timedelta64[D]")
    price = 2.0 * (colour == "red") + area**2
    noise = np.where(rng.random(rows) < 0.2, None, rng.normal(size=rows))
    return pa.table(
        {"colour": colour, "area": area, "noise": pa.array(noise, pa.float64()), "day": day, "price": price}
    )


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    root = tmp_path_factory.mktemp("importance")
    for name, rows, seed in (("train", 1500, 0), ("test", 600, 1)):
        pq.write_table(table(rows, seed), root / f"{name}.parquet")
    done("train", root / "train.parquet", "--target", "price", *FAST, "--out", root / "m.model")
    return root


def test_columns_are_those_of_the_table(shelf):
    found = package.importance(shelf / "m.model", shelf / "test.parquet", rows=400, repeats=3, threads=1)
    assert set(found.names) == {"colour", "area", "noise", "day"}
    assert set(found.names[:2]) == {"colour", "area"}
    assert found.rises.shape == (4, 3)
    assert (found.mean[:2] > 0.3).all()
    assert (found.mean[2:] < 0.1).all()
    assert found.spread.tolist() == found.rises.std(axis=1).tolist()
    assert (found.rows, found.loss) == (400, "RMSE")
    assert "<td>colour</td>" in found._repr_html_()
    again = package.importance(shelf / "m.model", shelf / "test.parquet", rows=400, repeats=3, threads=2)
    assert (again.names, again.rises.tolist()) == (found.names, found.rises.tolist())


def test_all_codes_of_a_column_move_together(shelf):
    model = package.Model.load(shelf / "m.model")
    groups = column_groups(model)
    assert [len(codes) for codes in groups.values()] == [column.width for column in model.columns.columns]
    assert np.concatenate(list(groups.values())).tolist() == list(range(model.n_inputs))
    X = package.open_source(str(shelf / "test.parquet"), columns=model.columns, target="price").read(slice_of(200)).X
    seen = []

    def loss(Z):
        seen.append(Z)
        return 0.0

    permutation_importance(loss, X, groups, seed=3, repeats=1)
    levels = groups["colour"][:3]
    for Z, (name, codes) in zip(seen[1:], groups.items(), strict=True):
        assert (Z[:, levels].sum(axis=1) == 1).all()  # still one level in every row
        others = np.setdiff1d(np.arange(X.shape[1]), codes)
        assert (Z[:, others] == X[:, others]).all(), name
        assert sorted(map(tuple, Z[:, codes])) == sorted(map(tuple, X[:, codes]))


def slice_of(rows):
    from streamrf.data.source import Span

    return Span(0, rows)


def test_partial_dependence_has_values_as_the_table_has_them(shelf):
    found = package.importance(
        shelf / "m.model", shelf / "test.parquet", rows=300, repeats=1, partial=["colour", "area", "day", "noise"]
    )
    colour, area, day, noise = found.dependence
    assert colour.values == ("red", "green", "blue") or sorted(colour.values) == ["blue", "green", "red"]
    by_colour = dict(zip(colour.values, colour.predictions[:, 0], strict=True))
    assert by_colour["red"] - by_colour["blue"] == pytest.approx(2.0, abs=0.5)
    assert len(area.values) <= 20
    assert list(area.values) == sorted(area.values)
    assert area.predictions[-1, 0] - area.predictions[0, 0] > 2.0
    assert all(value.startswith("2024-0") for value in day.values)
    assert "missing" in noise.values


def test_values_of_codes():
    onehot = Column("c", "onehot", ("a", "b"), flag=True)
    assert [value_of(onehot, np.array(codes)) for codes in ([1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1])] == [
        "a", "b", "other", "missing",
    ]  # fmt: skip
    assert value_of(Column("d", "date"), np.array([19723.5])) == "2024-01-01T12:00:00"
    assert value_of(Column("o", "ordinal", ("x", "y")), np.array([1.0])) == "y"
    assert value_of(None, np.array([2.5])) == 2.5


def test_the_command(shelf, tmp_path):
    command = (
        "importance",
        shelf / "m.model",
        shelf / "test.parquet",
        "--rows",
        "300",
        "--repeats",
        "2",
        "--threads",
        "1",
    )
    told = done(*command, "--partial", "colour", "--plot", tmp_path / "i.png", "--json").json
    assert [set(each) for each in told["columns"]] == [{"column", "rise", "spread"}] * 4
    assert (told["rows"], told["repeats"], told["loss"]) == (300, 2, "RMSE")
    assert [each["column"] for each in told["partial"]] == ["colour"]
    assert (tmp_path / "i.png").read_bytes().startswith(b"\x89PNG")
    assert json.dumps(told)
    text = done(*command, "--partial", "colour").out
    assert text.index("area") < text.index("noise")
    assert "\ncolour" in text
    refused = streamrf(*command, "--partial", "color")
    assert "--partial color" in refused.sentence
    assert "colour" in refused.sentence


def test_classes_are_judged_by_log_loss(tmp_path):
    data = table(1000, 0)
    data = data.append_column("big", pa.array(np.where(data["area"].to_numpy() > 1, "yes", "no")))
    pq.write_table(data.drop_columns(["price"]), tmp_path / "c.parquet")
    done("train", tmp_path / "c.parquet", "--target", "big", *FAST, "--out", tmp_path / "c.model")
    found = package.importance(tmp_path / "c.model", tmp_path / "c.parquet", rows=300, repeats=2, partial="area")
    assert found.loss == "log loss"
    assert found.names[0] == "area"
    assert found.dependence[0].predictions.shape[1] == 2
    assert np.allclose(found.dependence[0].predictions.sum(axis=1), 1)


@pytest.mark.parametrize("levels", [3, 8, 15, 20])
def test_names_of_levels_do_not_lie_on_one_another(levels):
    names = tuple(f"Long name {i}" for i in range(levels))
    figure, sides = panels((8.6, 2.9), 4)
    for axes in sides:
        draw_dependence(axes, Dependence("column", names, np.zeros((levels, 1))), ["prediction"])
    figure.savefig(io.BytesIO(), format="svg")
    labels = sides[0].get_xticklabels()
    assert [label.get_text() for label in labels] == list(names)
    boxes = [label.get_window_extent() for label in labels]
    upright = labels[0].get_rotation() == 90
    assert upright == (levels > 8)
    if upright:
        assert all(one.x1 <= other.x0 + 0.5 for one, other in pairwise(boxes))


def test_what_cannot_be_is_refused(shelf):
    with pytest.raises(InputError, match="`partial='none'` must be a column"):
        package.importance(shelf / "m.model", shelf / "test.parquet", partial="none")
    with pytest.raises(InputError, match="`repeats` 1 or more"):
        package.importance(shelf / "m.model", shelf / "test.parquet", repeats=0)
