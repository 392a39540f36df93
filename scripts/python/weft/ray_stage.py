"""A stage for Ray Data: a class whose objects map_batches() calls with one batch after another."""

from __future__ import annotations

from typing import Any, Dict, Optional

from .jobs import generate
from .rows import answer_columns, refuse_clash


class RayStage:
    """Answers each batch by one job, and gives it back with the columns of its answers.

        dataset.map_batches(weft.RayStage, fn_constructor_kwargs={"model": "models/demo", "prompt_column": "question"},
                            batch_size=4096, concurrency=1, num_gpus=1)

    A job loads the weights anew, so batches should be large. Arguments are those of weft.generate.
    """

    def __init__(self, model: Any, prompt_column: Optional[str] = None, prompt_template: Optional[str] = None,
                 **options: Any) -> None:
        if prompt_column is None and prompt_template is None:
            prompt_column = "prompt"
        for name in ("output", "to", "resume"):
            if name in options:
                raise TypeError(f"weft.RayStage takes no '{name}': Ray Data keeps the answers of its batches")
        self._arguments: Dict[str, Any] = {"model": model, "prompt_column": prompt_column, "prompt_template": prompt_template,
                                           **options}

    def __call__(self, batch: Any) -> Any:
        """`batch` is a pandas DataFrame, or a dict of columns, as Ray Data has it by default."""
        if not isinstance(batch, dict):
            return generate(batch, to="pandas", **self._arguments)
        names, length = list(batch), len(next(iter(batch.values()), ()))
        rows = [{name: batch[name][index] for name in names} for index in range(length)]
        refuse_clash(names)
        answered = generate(rows, to="list", **self._arguments)
        return {**batch, **_columns(answered)}


def _columns(answers: Any) -> Dict[str, Any]:
    import numpy

    columns: Dict[str, Any] = {}
    for name, values in answer_columns(answers, "answer").items():
        columns[name] = numpy.empty(len(values), dtype=object)
        for index, value in enumerate(values):
            columns[name][index] = value
    return columns
