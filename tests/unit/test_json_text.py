"""No text ends the process: whatever is read as decimals, or nested, in a process of its own."""

import io
import subprocess
import sys
from typing import Any, cast

import pyarrow as pa
import pytest

from persist.arrow.json_text import DEPTH_MAX, CheckedJson, check_decimals

HOSTILE = """
import io, pyarrow as pa, pyarrow.json
from persist.arrow.exact import cast_exactly
from persist.arrow.json_text import CheckedJson
from persist_ingest.decode.json_rows import JsonDecoder
numbers = ["1e-1000000000", "0e-1000000000", "1E-10000000", "1e-999", "1e1000000000", "0." + "0" * 1_000_000 + "1"]
texts = [f'"{each}"' for each in numbers]
texts += ['"\\\\u0031e-1000000000"', '"1\\\\u0065-1000000000"', '"1e\\\\u002d1000000000"']
kinds = [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(10, 2), pa.decimal256(76, 2), pa.decimal256(76, 76)]
for kind in kinds:
    for number in numbers:
        for given in (pa.array([number]), pa.array([[number]]), pa.array([{"x": number}])):
            within = pa.list_(kind) if pa.types.is_list(given.type) else pa.struct({"x": kind})
            wanted = within if given.type.num_fields else kind
            try:
                assert not cast_exactly(given, wanted)[0].as_py()
            except pa.ArrowInvalid:
                pass
    for value in numbers + texts:
        for body in (f'{{"d": {value}}}', f'{{"d": {value}, "d": 1}}', f'{{"\\\\u0064": {value}}}'):
            for batch in ([body.encode()], [b'{"d": 0}', body.encode()]):
                assert len(JsonDecoder(pa.schema({"d": kind})).decode(batch).bad) == 1, (kind, body[:60])
        of_struct = pa.struct({"x": kind})
        for nested, body in ((pa.list_(kind), f'{{"d": [{value}]}}'), (of_struct, f'{{"d": {{"x": {value}}}}}')):
            assert JsonDecoder(pa.schema({"d": nested})).decode([body.encode()]).bad, (kind, body[:60])
for text in (b"null", b" null", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"):
    for kinds in ((), [pa.field("a", pa.null())]):
        file = CheckedJson(io.BytesIO(text), kinds)
        options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(kinds)) if kinds else None
        try:
            pyarrow.json.read_json(file, parse_options=options)
        except pa.ArrowInvalid:
            continue
        raise AssertionError(text[:20])
"""


def test_no_text_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_numbers_that_fit_are_taken_and_files_come_through_as_they_are() -> None:
    kinds = pa.schema(cast(Any, {"d": pa.decimal256(76, 2), "f": pa.float64()}))
    good = [b'{"d": 1e2, "f": 1e300}', b'{"d": "-2.50e-0", "f": 1e-300}', b'{"d": ' + b"9" * 40 + b"}", b'{"d": null}']
    check_decimals(good, kinds)
    for bad in (b'{"d": 1e-3}', b'{"d": 1, "d": 1e99}', b'{"d": 1e2} {}'):
        with pytest.raises(pa.ArrowInvalid):
            check_decimals([*good, bad], kinds)
    text = b"\n".join(good * 50_000) + b'\n{"f": "[[[[[' + b"[" * 1000 + b'"}'
    assert CheckedJson(io.BytesIO(text), kinds).readall() == text
    nested = b'{"a":' + b"[\n" * DEPTH_MAX
    with pytest.raises(pa.ArrowInvalid, match="nested"):
        CheckedJson(io.BytesIO(nested), ()).readall()


@pytest.mark.parametrize("stray", [b"null", b"true", b"1.5", b'"text"', b"nul", b"NaN", b",", b"\x00"])
@pytest.mark.parametrize("rows", [0, 2, 17_000])
def test_a_value_in_no_object_is_refused_wherever_it_stands(stray: bytes, rows: int) -> None:
    # 17,000 of these are more than what is read at once, and begin Arrow's second block with the stray one.
    row = b'{"a": {"b": [null, true, "}"]}, "c": "x\\" null {", "d": ' + b" " * 4 + b"1}\n"
    whole = row * rows
    assert CheckedJson(io.BytesIO(whole + row), ()).readall() == whole + row
    for text in (whole + stray + b"\n" + row, whole + b" " + stray, whole + row + stray + b"\n" + row * 3):
        with pytest.raises(pa.ArrowInvalid, match="object"):
            CheckedJson(io.BytesIO(text), ()).readall()


def test_objects_over_several_lines_and_a_mark_are_taken() -> None:
    text = b'{"a":\n [1,\n  2]\n}\n\n {"a": []}{"a": null}\r\n'
    assert CheckedJson(io.BytesIO(b"\xef\xbb\xbf" + text), ()).readall() == text
