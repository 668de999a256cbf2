"""The result of a probe: one record per head, as a table, as files, and as the atlas, a page about every head."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.probing import MEASURES  # also those that stand beside their function
from attsvm.probing.measure_catalog import THEORIES
from attsvm.records import Interval, Table, atomic_write, environment, html_page, plain, write_json

if TYPE_CHECKING:
    import pandas


def render_atlas(content: dict[str, Any]) -> str:
    """HTML of the atlas.

    Parameters
    ----------
    content : dict
        Plain data, as `ProbeTable.to_json` writes it.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.probing import heads_from_arrays
    >>> rng = np.random.default_rng(0)
    >>> head = attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 2, 6)))
    >>> table = attsvm.probe(heads_from_arrays(rng.normal(size=(4, 5, 6)), [head]), svm=None)
    >>> render_atlas(table._content()).startswith("<!DOCTYPE html>")
    True
    """
    about = content["about"]
    data = {
        **content,
        "measures": {name: measure.record() for name, measure in MEASURES.items()},
        "theories": THEORIES,
        "about": {"svm": None, "error": None, **about},
    }
    title = f"{about['model']}: an atlas of its attention heads"
    return html_page("atlas.html", title=title, data=data, environment=environment(about["versions"]))


_SHOWN = (
    "kind", "sink_share_first", "entropy", "margin_median_frobenius", "margin_ratio_frobenius", "correlation_frobenius",
    "log10_kappa", "noise_bfloat16", "site", "max_logit", "redundancy", "importance",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class ProbeTable:
    """One record per head.

    Attributes
    ----------
    records : tuple of dict
        Plain values; ``name_low`` and ``name_high`` bound a measure over sequences, ``name_random`` and
        ``name_shuffled`` are its baselines. `attsvm.probing.MEASURES` says what each means.
    about : dict
        Model, inputs, seed, budget, versions, the largest error of recomputed attention.
    details : tuple of dict
        Per head: spectra, histogram of margins, rho, support tokens, the curve over sequences.
    sentences : tuple of dict
        Tokens of the sequences that the page shows, with the attention of every head on them.
    pruning : dict
        Order of greedy removal and the change of the output after each.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.probing import heads_from_arrays
    >>> rng = np.random.default_rng(0)
    >>> heads = [attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 2, 6))) for _ in range(3)]
    >>> table = attsvm.probe(heads_from_arrays(rng.normal(size=(4, 5, 6)), heads), svm=None)
    >>> len(table), table.column("entropy").shape
    (3, (3,))
    """

    records: tuple[dict[str, Any], ...]
    about: dict[str, Any]
    details: tuple[dict[str, Any], ...] = ()
    sentences: tuple[dict[str, Any], ...] = ()
    pruning: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the order of the first record that has them."""
        return tuple(dict.fromkeys(name for record in self.records for name in record))

    def column(self, name: str) -> npt.NDArray[Any]:
        """One value per head; nan (or None for words) where a head lacks it."""
        if name not in self.columns:
            raise ValueError(f"no column is named {name!r}; there are {', '.join(self.columns)}")
        values = [record.get(name) for record in self.records]
        words = any(isinstance(value, str) for value in values)
        if words:
            return np.array(values, dtype=object)
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def grid(self, name: str) -> npt.NDArray[np.float64]:
        """A numeric column as layers by heads; nan where there is no such head."""
        values = self.column(name)
        layers, heads = ([record[key] for record in self.records] for key in ("layer", "head"))
        out = np.full((max(layers) + 1, max(heads) + 1), np.nan)
        out[layers, heads] = values.astype(np.float64)
        return out

    def head(self, layer: int, head: int) -> dict[str, Any]:
        """The record of one head."""
        for record in self.records:
            if (record["layer"], record["head"]) == (layer, head):
                return record
        raise ValueError(f"no head {head} in layer {layer}")

    def to_records(self) -> list[dict[str, Any]]:
        """All rows with the same columns, plain values."""
        return [{name: plain(record.get(name)) for name in self.columns} for record in self.records]

    def to_frame(self) -> pandas.DataFrame:
        """As a DataFrame of pandas (the extra ``attsvm[tables]``)."""
        with needs("to_frame"):
            import pandas
        return pandas.DataFrame(self.to_records(), columns=list(self.columns))

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file; missing values are empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns)
        writer.writeheader()
        writer.writerows(self.to_records())
        with atomic_write(path) as file:
            file.write(out.getvalue().encode())

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file (needs pyarrow, the extra ``attsvm[tables]``)."""
        with needs("to_parquet"):
            import pyarrow
            import pyarrow.parquet
        made = pyarrow.Table.from_pylist(self.to_records(), metadata={"attsvm": json.dumps(plain(self.about))})
        with atomic_write(path) as file:
            pyarrow.parquet.write_table(made, file)

    def to_json(self, path: str | Path) -> None:
        """Write everything, also what the page shows; `read` gets it back."""
        write_json(path, self._content())

    def to_html(self, path: str | Path) -> None:
        """Write the atlas: one page with everything in it."""
        page = render_atlas(self._content())
        with atomic_write(path) as file:
            file.write(page.encode())

    def _content(self) -> dict[str, Any]:
        found: dict[str, Any] = plain({
            "about": self.about, "records": self.to_records(), "details": self.details, "sentences": self.sentences,
            "pruning": self.pruning,
        })  # fmt: skip
        return found

    @classmethod
    def read(cls, path: str | Path) -> ProbeTable:
        """A table from a file of `to_json`."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(
                tuple(content["records"]), content["about"], tuple(content["details"]), tuple(content["sentences"]),
                content["pruning"],
            )  # fmt: skip
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no file of a probe ({type(error).__name__}: {error})") from None

    def summary(self, columns: Sequence[str] = _SHOWN, rows: int | None = None) -> Table:
        """Some columns as a table, with intervals where there are any."""
        names = [name for name in columns if name in self.columns]
        shown = [
            (f"{record['layer']}.{record['head']}", *(_cell(record, name) for name in names))
            for record in self.records[:rows]
        ]
        labels = ["head", *(MEASURES[name].label if name in MEASURES else name for name in names)]
        title = f"{self.about.get('model', 'heads')}: {len(self)} heads"
        return Table(title, labels, shown, align="L" + "r" * len(names))

    def __str__(self) -> str:
        return str(self.summary())

    def __repr__(self) -> str:
        return f"ProbeTable({self.about.get('model', 'heads')}, {len(self)} heads, {len(self.columns)} columns)"

    def _repr_html_(self) -> str:
        return self.summary().html()


def _cell(record: Mapping[str, Any], name: str) -> Any:
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    value = record.get(name)
    if isinstance(value, float) and isinstance(low, float) and isinstance(high, float):
        return Interval(value, low, high, skewed=name in MEASURES and MEASURES[name].share)
    return value
