"""Arrow's types as signatures name them, and the few calls whose stubs say something else than what they do.

Nothing here does anything: at run time each name is Arrow's or NumPy's own. Arrow's classes take type arguments for
type checkers only, so that signatures cannot hold them; what is in an array is known from data, not from code.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

    ArrowArray: TypeAlias = pa.Array[Any]
    ArrowChunks: TypeAlias = pa.ChunkedArray[Any]
    ArrowColumn: TypeAlias = ArrowArray | ArrowChunks
    ArrowScalar: TypeAlias = pa.Scalar[Any]
    ArrowField: TypeAlias = pa.Field[pa.DataType]
    ArrowMap: TypeAlias = pa.MapArray[Any, Any]
    ArrowMapType: TypeAlias = pa.MapType[Any, Any, Any]
    ArrowLists: TypeAlias = pa.LargeListArray[Any]
    ArrowDictionary: TypeAlias = pa.DictionaryArray[Any, Any]
    Numbers: TypeAlias = npt.NDArray[Any]
    """A NumPy array of any numbers, or of truth values."""

    def py_buffer(data: Numbers | bytes | pa.Buffer) -> pa.Buffer:
        """Arrow's ``py_buffer``: takes any object with Python's buffer protocol."""
        ...

    def frombuffer(buffer: pa.Buffer | None, dtype: npt.DTypeLike, count: int = -1, offset: int = 0) -> Numbers:
        """NumPy's ``frombuffer``, typed to take Arrow's buffers."""
        ...

    def array_of(values: object, type: pa.DataType | None = None, **options: object) -> ArrowArray:
        """Arrow's ``array``: the type of the result depends on the values."""
        ...

    Piece: TypeAlias = Any
    """What kernels join with others: an array, or a scalar for all rows."""
else:
    ArrowArray, ArrowChunks, ArrowColumn = pa.Array, pa.ChunkedArray, pa.Array | pa.ChunkedArray
    ArrowScalar = pa.Scalar
    ArrowField, ArrowMap, ArrowMapType = pa.Field, pa.MapArray, pa.MapType
    ArrowLists, ArrowDictionary = pa.LargeListArray, pa.DictionaryArray
    Numbers = np.ndarray
    Piece = pa.Array | pa.Scalar
    py_buffer, frombuffer, array_of = pa.py_buffer, np.frombuffer, pa.array
