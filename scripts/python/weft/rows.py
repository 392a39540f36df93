"""Rows as request lines: strings, Weft's own request lines, and tables, whose other columns pass through."""

from __future__ import annotations

import json
import math
import string
import sys
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

Row = Mapping[str, Any]
# What columns of answers may be called.
ANSWER_COLUMNS = ("answer", *(f"answer_{name}" for name in (
    "reasoning_content", "choices", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "logprobs",
    "prompt_logprobs", "logprob", "greedy", "error")))


def is_frame(rows: Any) -> bool:
    """Whether it is a pandas DataFrame. pandas is not imported for that."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(rows, pandas.DataFrame)


def columns_of(rows: Any) -> Optional[List[str]]:
    """The columns of a DataFrame or a datasets.Dataset; None for rows that are no table."""
    if is_frame(rows):
        return [str(name) for name in rows.columns]
    names = getattr(rows, "column_names", None)
    return list(names) if isinstance(names, (list, tuple)) else None


def each_row(rows: Any) -> Iterator[Any]:
    """The rows of a table as mappings, and those of any other iterable as they are."""
    if is_frame(rows):
        names = [str(name) for name in rows.columns]
        return (dict(zip(names, values)) for values in rows.itertuples(index=False, name=None))
    return iter(rows)


def plain(value: Any) -> Any:
    """A value as JSON has it: NaN is null, arrays are lists, and what JSON lacks is its text."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if -2 ** 63 <= value < 2 ** 64 else str(value)  # the program's JSON has no longer ones
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain(value.tolist())
    if type(value).__name__ in ("NAType", "NaTType"):  # what pandas has for a missing value
        return None
    return str(value)


class Template:
    """Text with {column} in it; {{ and }} are braces."""

    def __init__(self, text: str) -> None:
        self._pieces: List[Tuple[str, Optional[str]]] = []
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"prompt_template: {error}; {{name}} stands for a column, {{{{ and }}}} for braces") from None
        for literal, name, form, conversion in parsed:
            if name is not None and (not name or form or conversion):
                raise ValueError(f"prompt_template: wanted the name of a column between braces, got {{{name}"
                                 f"{'!' + conversion if conversion else ''}{':' + form if form else ''}}}")
            self._pieces.append((literal, name))
        self.columns = [name for _, name in self._pieces if name is not None]

    def fill(self, row: Row, number: int) -> str:
        return "".join(literal + (cell(row, name, number) if name is not None else "") for literal, name in self._pieces)


def cell(row: Row, column: str, number: int) -> str:
    """The text of a column, which a row must have."""
    if column not in row:
        raise ValueError(f"row {number}: has no column '{column}'; it has {', '.join(map(str, row))}")
    value = plain(row[column])
    if value is None:
        raise ValueError(f"row {number}: column '{column}' is empty; a prompt wants text")
    return value if isinstance(value, str) else str(value)


def refuse_no_rows(rows: Any) -> None:
    """Refuses what can be gone through but has no rows, such as the letters of a string and the splits of a DatasetDict."""
    if isinstance(rows, (str, bytes, Mapping)):
        raise TypeError(f"rows must be a list, a DataFrame, a Dataset or another iterable, got {type(rows).__name__}")


class Lines:
    """Request lines of rows. Raises ValueError for a row of which no request can be made."""

    def __init__(self, rows: Any, prompt_column: Optional[str], prompt_template: Optional[str],
                 continuation_column: Optional[str] = None, fields: Optional[Row] = None, scores: bool = False) -> None:
        if prompt_column is not None and prompt_template is not None:
            raise ValueError("give prompt_column or prompt_template, not both")
        self._rows = rows
        self._fields = {str(name): plain(value) for name, value in (fields or {}).items()}
        for name in ("id", "prompt", "prompt_ids", "messages", "metadata"):
            if name in self._fields:
                raise ValueError(f"fields are those that all requests share; '{name}' is of one row")
        self._continuation = continuation_column
        self._template = Template(prompt_template) if prompt_template is not None else None
        columns = columns_of(rows)
        if columns is not None and prompt_column is None and self._template is None:
            prompt_column = "prompt"
        if scores and columns is not None and continuation_column is None and "continuation" in columns:
            self._continuation = "continuation"
        for name in columns or []:
            if columns and columns.count(name) > 1:
                raise ValueError(f"two columns are called '{name}'; rename one")
        self._column = prompt_column
        self._is_table = columns is not None or prompt_column is not None or self._template is not None
        wanted = self._template.columns if self._template else [prompt_column] if prompt_column else []
        for name in [*wanted, *([continuation_column] if continuation_column else [])]:
            if columns is not None and name not in columns:
                raise ValueError(f"there is no column '{name}' in {', '.join(columns)}; name one by prompt_column or "
                                 "prompt_template")

    def __iter__(self) -> Iterator[bytes]:
        for number, row in enumerate(each_row(self._rows)):
            line = self._line(row, number)
            own = {name: value for name, value in line.items() if value is not None or name not in self._fields}
            yield json.dumps({**self._fields, **own}, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    def id_of(self, row: Any, number: int) -> Any:
        """The id of a row's request; None if the program gives it one."""
        return number if isinstance(row, str) or self._is_table else row.get("id")

    def _line(self, row: Any, number: int) -> Dict[str, Any]:
        if isinstance(row, str):
            if self._template or self._continuation:
                raise ValueError(f"row {number}: wanted a row with columns, got a string")
            return {"id": number, "prompt": row}
        if not isinstance(row, Mapping):
            raise TypeError(f"row {number}: wanted a string or a dict, got {type(row).__name__}")
        if not self._is_table:
            return {key: plain(value) for key, value in row.items()}
        if self._template:
            line: Dict[str, Any] = {"id": number, "prompt": self._template.fill(row, number)}
            used = {self._continuation}
        else:
            assert self._column is not None
            line = {"id": number, "prompt": cell(row, self._column, number)}
            used = {self._column, self._continuation}
        if self._continuation:
            line["continuation"] = cell(row, self._continuation, number)
        others = {str(name): plain(value) for name, value in row.items() if name not in used}
        return {**line, "metadata": others} if others else line


def flat(answer: Row) -> Dict[str, Any]:
    """An answer's line as columns: `answer` is its text, and answer_NAME anything else in it."""
    columns: Dict[str, Any] = {}
    for key, value in answer.items():
        if key in ("id", "metadata", "line"):
            continue
        if key == "usage":
            columns.update({f"answer_{name}": number for name, number in value.items()})
        elif key == "error":
            columns["answer_error"] = value["message"]
        else:
            columns["answer" if key == "text" else f"answer_{key}"] = value
    return columns


def answer_columns(answers: Iterable[Row], main: str) -> Dict[str, List[Any]]:
    """The answers as columns. `main` is among them even if no row has an answer, or there are no rows."""
    flats = [flat(answer) for answer in answers]
    names = list(dict.fromkeys(name for row in flats for name in row))
    if not {main, "answer_choices"} & set(names):
        names.insert(0, main)
    return {name: [row.get(name) for row in flats] for name in names}


def _key(value: Any) -> str:
    """An id as the program understands it: 2.0 is 2."""
    value = plain(value)
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def in_order(rows: List[Any], lines: Lines, answers: Iterable[Row]) -> List[Dict[str, Any]]:
    """The answers in the order of their rows. `lines` are those of the rows and say which id is whose."""
    ids = [lines.id_of(row, number) for number, row in enumerate(rows)]
    own: Dict[str, int] = {}
    for index, value in enumerate(ids):
        if value is not None:
            own.setdefault(_key(value), index)  # a later row of the same id is a bad request
    placed: List[Optional[Dict[str, Any]]] = [None] * len(rows)
    for answer in answers:
        if answer["id"] is None:
            index = int(answer["line"]) - 1
        else:
            index = own[_key(answer["id"])] if own else int(answer["id"])
        placed[index] = dict(answer)
    missing = [index for index, answer in enumerate(placed) if answer is None]
    if missing:
        raise RuntimeError(f"row {missing[0]} has no answer")
    return [answer for answer in placed if answer is not None]


def refuse_clash(names: Iterable[str]) -> None:
    """Refuses columns of rows that columns of answers would take the place of."""
    for name in names:
        if name in ANSWER_COLUMNS:
            raise ValueError(f"the rows have a column '{name}', which is that of an answer; rename it")


def names_of(rows: Any) -> List[str]:
    """The columns that rows have beside their answers. `rows` can be gone through again."""
    columns = columns_of(rows)
    if columns is not None:
        return columns
    return list(dict.fromkeys(str(name) for row in rows for name in (["prompt"] if isinstance(row, str) else row)))


def as_table(rows: Any, to: str) -> Any:
    """The rows as a DataFrame or a Dataset, which may refuse them. `rows` can be gone through again."""
    if columns_of(rows) is None:
        inputs = [{"prompt": row} if isinstance(row, str) else dict(row) for row in rows]
        names = list(dict.fromkeys(name for row in inputs for name in row))
        given = {name: [row.get(name) for row in inputs] for name in names}
    if to == "pandas":
        import pandas
        return rows if is_frame(rows) else rows.to_pandas() if columns_of(rows) is not None else pandas.DataFrame(given)
    import datasets
    return (datasets.Dataset.from_pandas(rows, preserve_index=False) if is_frame(rows) else
            rows if columns_of(rows) is not None else datasets.Dataset.from_dict(given))


def joined(table: Any, columns: Mapping[str, List[Any]], to: str) -> Any:
    """A table with the columns of its answers beside its own."""
    if to == "pandas":
        import pandas
        return table.assign(**{name: pandas.Series(values, index=table.index) for name, values in columns.items()})
    for name, values in columns.items():
        table = table.add_column(name, values)
    return table


