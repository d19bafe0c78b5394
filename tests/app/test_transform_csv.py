"""`bnorm transform` of CSV files: quotes and text stay as they are written, and other formats get types."""

import pytest

from commands import read

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads and writes files by pyarrow")


def test_text_of_csv_stays_as_it_is_written(command, tmp_path, state):
    """Numbers of other columns too: a 007 is no 7."""
    head, row = "id,f0,f1,f2,note\n", "007,0,0,2000,a b\n"
    (tmp_path / "x.csv").write_text(head + row + "1e5,0,0,2000,\n")
    command("transform", tmp_path / "x.csv", "--state", state, "-o", tmp_path / "y.csv")
    lines = (tmp_path / "y.csv").read_text().splitlines()
    found = [(line.split(",")[0], line.split(",")[-1]) for line in lines]
    assert found == [
        ("id", "note"),
        ("007", "a b"),
        ("1e5", ""),
    ]


QUOTES = {  # a CSV file in, and out but for the normalized values
    "all": '"id","f0","f1","f2","note"\n"007","0","0","2000","a ""b"""\n"1","0","0","2000",""\n',
    "text": '"id","f0","f1","f2","note"\n"007",0,0,2000,"a"\n"1",0,0,2000,""\n',
    "values": 'id,f0,f1,f2,note\n007,0,0,2000,"a"\n1,0,0,2000,"b"\n',
    "none": 'id,f0,f1,f2,note\n007,0,0,2000,"a,b"\n1,0,0,2000,b\n',
}


@pytest.mark.parametrize("name", QUOTES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotes_stay(command, tmp_path, state, name, end):
    (tmp_path / "x.csv").write_bytes(QUOTES[name].replace("\n", end).encode())
    command("transform", tmp_path / "x.csv", "--state", state, "-o", tmp_path / "y.csv")
    lines = [text.splitlines() for text in (QUOTES[name], (tmp_path / "y.csv").read_text())]
    assert lines[0][0] == lines[1][0]
    for x, y in zip(*(text[1:] for text in lines), strict=True):
        x, y = x.split(","), y.split(",")
        assert x[0] == y[0]
        assert x[4:] == y[4:] or (x[4:], y[4:]) == (['""'], [""])  # an empty text needs no quotes
        assert [cell[0] == '"' for cell in x[1:4]] == [cell[0] == '"' for cell in y[1:4]]


TYPED = {  # columns of a CSV file, and their types in Parquet
    "number": (["1", "-20", "", "0"], "int64", [1, -20, None, 0]),
    "age": (["41", "NA", "-", "7"], "int64", [41, None, None, 7]),
    "zip": (["007", "12", "", "1"], "string", None),
    "price": (["1.50", "2e3", "", "-.5"], "string", None),
    "ratio": (["1.50", "2e3", "", "-0.5"], "double", [1.5, 2000.0, None, -0.5]),
    "flag": (["true", "False", "", "true"], "bool", [True, False, None, True]),
    "word": (["a", "1", "", "b"], "string", None),
    "long": (["1234567890123456789", "1", "", "2"], "string", None),
    "nothing": (["", "", "", ""], "string", None),
    "day": (["2024-02-29", "", "0001-01-01", "1999-12-31"], "date32[day]", None),
    "no day": (["2024-02-30", "", "2024-01-01", ""], "string", None),
    "time": (["2024-02-29 10:20:30", "", "2024-02-29T10:20", ""], "timestamp[ms]", None),
    "exact time": (["2024-02-29 10:20:30.25", "", "2024-02-29 10:20:30", ""], "timestamp[us]", None),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_types_of_csv(command, tmp_path, state, suffix):
    """What passes through has its type in formats with types, as long as its text says no more than the type does."""
    lines = ["f0,f1,f2," + ",".join(TYPED)]
    lines += ["1,2,3," + ",".join(values[i] for values, _, _ in TYPED.values()) for i in range(4)]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / f"y.{suffix}"
    command("transform", tmp_path / "x.csv", "--state", state, "-o", out, "--text", "flag", "--null-values", "-")
    y = read(out)
    for name, (text, kind, values) in TYPED.items():
        if name == "flag":
            kind, values = "string", text
        assert str(y[name].type) == kind, name
        if kind == "string":
            assert y[name].to_pylist() == text
        elif values:
            assert y[name].to_pylist() == values
    assert str(y["day"][0].as_py()) == "2024-02-29"
    assert str(y["exact time"][0].as_py()) == "2024-02-29 10:20:30.250000"


IN_GERMAN = {  # the same, with --decimal , --thousands .
    "count": (["1.234", "-5", "", "12.345.678"], "int64", [1234, -5, None, 12345678]),
    "price": (["1,50", "1.000,25", "NA", "2e3"], "double", [1.5, 1000.25, None, 2000.0]),
    "zip": (["007", "1.234", "", "1"], "string", None),
    "version": (["1.5", "2.10", "", "1"], "string", None),
    "day": (["2024-02-29", "", "0001-01-01", "1999-12-31"], "date32[day]", None),
}
GERMAN = ["--delimiter", ";", "--decimal", ",", "--thousands", "."]


def test_types_of_csv_in_another_dialect(command, tmp_path, state):
    """Numbers that pass through are those that the options say: 1.234 is no 1.2."""
    lines = [["f0", "f1", "f2", *IN_GERMAN]]
    lines += [["1", "2", "3", *(values[i] for values, _, _ in IN_GERMAN.values())] for i in range(4)]
    (tmp_path / "x.csv").write_text("".join(";".join(line) + "\n" for line in lines))
    out = tmp_path / "y.parquet"
    command("transform", tmp_path / "x.csv", "--state", state, "-o", out, *GERMAN)
    y = read(out)
    for name, (text, kind, values) in IN_GERMAN.items():
        assert str(y[name].type) == kind, name
        if kind == "string" or values:
            assert y[name].to_pylist() == (values or text)


@pytest.mark.parametrize(("value", "kept"), [("1.234", 1234), ("12.34", None)])
def test_another_dialect_in_a_later_file(command, tmp_path, state, value, kept):
    """The types are those of the first file, a Parquet file."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    first = {"f0": [1.0], "f1": [1.0], "f2": [1.0], "n": pa.array([7], pa.int32())}
    parquet.write_table(pa.table(first), tmp_path / "1.parquet")
    (tmp_path / "2.csv").write_text(f"f0;f1;f2;n\n1;2;3;?\n1;2;3;{value}\n")
    out = tmp_path / "y.parquet"
    arguments = ["transform", tmp_path / "1.parquet", tmp_path / "2.csv", "--state", state, "-o", out, *GERMAN]
    arguments += ["--null-values", "?"]
    if kept is None:
        assert command.fails(*arguments).endswith(
            f"row 2 below the header: expected int32, as in the first rows, got '{value}'"
        )
    else:
        command(*arguments)
        assert read(out)["n"].to_pylist() == [7, None, kept]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("int64", str(2**62), 2**62), ("int64", "007", 7), ("float64", ".5", 0.5), ("float64", "+1e16", 1e16)],
)
def test_a_later_file_has_any_values_of_the_types(command, tmp_path, state, kind, text, value):
    """The types are those of the first file, a Parquet file, and no guess from how its values are written."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    first = {"f0": [1.0], "f1": [1.0], "f2": [1.0], "n": pa.array([7]).cast(kind)}
    parquet.write_table(pa.table(first), tmp_path / "1.parquet")
    (tmp_path / "2.csv").write_text(f"f0,f1,f2,n\n1,2,3,{text}\n")
    command("transform", tmp_path / "1.parquet", tmp_path / "2.csv", "--state", state, "-o", tmp_path / "y.parquet")
    assert read(tmp_path / "y.parquet")["n"].to_pylist() == [7, value]


@pytest.mark.parametrize(("name", "value"), [("number", "007"), ("number", "x"), ("day", "2024-02-30")])
def test_a_value_unlike_the_first(command, tmp_path, state, name, value):
    column = TYPED[name][0]
    first = "f0,f1,f2,c\n" + "".join(f"1,2,3,{v}\n" for v in column)
    (tmp_path / "1.csv").write_text(first)
    (tmp_path / "2.csv").write_text(first + f"1,2,3,{value}\n")
    arguments = ["transform", tmp_path / "1.csv", tmp_path / "2.csv", "--state", state, "-o", tmp_path / "y.parquet"]
    said = command.fails(*arguments)
    kind = TYPED[name][1]
    assert said == (
        f"bnorm: error: {tmp_path / '2.csv'}: column 'c', row 5 below the header: expected {kind}, "
        f"as in the first rows, got {value!r}: --text c writes the column as text"
    )
    command(*arguments, "--text", "c")
    assert read(tmp_path / "y.parquet")["c"].to_pylist() == [*column, *column, value]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_written_as_text_may_have_other_types_elsewhere(command, tmp_path, state, suffix):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "1.csv").write_text("f0,f1,f2,day,code\n1,2,3,2024-02-29,7\n")
    plain = {name: [1.0] for name in ("f0", "f1", "f2")}
    parquet.write_table(pa.table({**plain, "day": ["unknown"], "code": [1.5]}), tmp_path / "2.parquet")
    out = tmp_path / f"y.{suffix}"
    arguments = ["transform", tmp_path / "1.csv", tmp_path / "2.parquet", "--state", state, "-o", out]
    said = command.fails(*arguments)
    assert said == (
        f"bnorm: error: {tmp_path / '2.parquet'}: column 'day': expected date32[day], as {tmp_path / '1.csv'} has it, "
        "got string; --text day writes it as text"
    )
    command(*arguments, "--text", "day,code")
    found = read(out)
    assert [str(v) for v in found["day"].to_pylist()] == ["2024-02-29", "unknown"]
    assert [str(v) for v in found["code"].to_pylist()] in (["7", "1.5"], ["7.0", "1.5"])
