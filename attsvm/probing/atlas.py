"""The atlas: one page about every head, with style, script and data inside and nothing from the network."""

from __future__ import annotations

from typing import Any

from attsvm.probing.measures.catalog import MEASURES, THEORIES
from attsvm.records import environment
from attsvm.reports.markup import assets, document, escape, section

__all__ = ["render_atlas"]

_COVERED = (
    "The theorems behind these measures are about one layer trained to saturation. For a head of a deep model they are "
    "a yardstick, not a prediction: read every number beside its baselines, a random W of the same spectrum and the "
    "same head on shuffled tokens."
)


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
    >>> from attsvm.probing.atlas import render_atlas
    >>> rng = np.random.default_rng(0)
    >>> head = attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 2, 6)))
    >>> table = attsvm.probe(heads_from_arrays(rng.normal(size=(4, 5, 6)), [head]), svm=None)
    >>> render_atlas(table._content()).startswith("<!DOCTYPE html>")
    True
    """
    style = assets("page.css") + assets("atlas.css", package="attsvm.probing")
    script = assets("common.js") + assets("atlas.js", package="attsvm.probing")
    about = content["about"]
    known = {name: vars(measure) for name, measure in MEASURES.items()}
    data = {**content, "measures": known, "theories": THEORIES}
    parts = {
        "map": ("Layers and heads", _MAP),
        "one": ("One head", _ONE),
        "all": ("All heads", _ALL),
    }
    if content["pruning"]:
        parts["pruning"] = ("Removing heads one after the other", '<figure id="pruning-curve"></figure>')
    links = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, (title, _) in parts.items())
    body = "".join(section(key, title, html) for key, (title, html) in parts.items())
    budget = about.get("svm")
    told = "without SVM solves" if not budget else (
        f"SVM on {budget['sequences']} sequences with {budget['queries']} queries each, {budget['held_out']} held out, "
        f"relative gap asked for {budget['tolerance']:g}"
    )  # fmt: skip
    page = (
        f"<header><h1>{escape(about['model'])}</h1>"
        f'<p class="soft">{len(content["records"])} attention heads in {about["layers"]} layers, on '
        f"{about['sequences']} sequences ({about['tokens']} tokens). {_COVERED}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{body}</main>'
        f"<footer><p>Made by <code>attsvm probe</code>, seed {about['seed']}; {escape(told)}; "
        f"{_error(about)}. {escape(environment(about['versions']))}.</p></footer>"
    )
    return document(f"{about['model']}: an atlas of its attention heads", page, style=style, script=script, data=data)


def _error(about: dict[str, Any]) -> str:
    error = about.get("error")
    return "heads given as arrays" if error is None else f"recomputed attention within {error:.0e} of the model's own"


_MAP = """<div class="controls"><label>Colour by <select id="measure"></select></label>
<label>against <select id="against"><option value="">itself</option><option value="_random">a random W</option>
<option value="_shuffled">shuffled tokens</option></select></label></div>
<p id="sentence" class="note" aria-live="polite"></p><div class="scroll"><table id="grid" class="heads"></table></div>
<div id="scale" class="scale" aria-hidden="true"></div>
<p class="soft">Arrow keys move between heads; Enter shows one.</p>"""
_ONE = """<h3 id="head-title"></h3><p id="head-summary"></p>
<div class="controls" id="sentences"></div><p class="soft" id="query-note"></p>
<div id="words" class="words" role="listbox" aria-label="Tokens"></div>
<div class="columns"><figure><figcaption>Attention: rows are queries, columns tokens</figcaption>
<div class="scroll"><canvas id="matrix" role="img" aria-label="Attention weights of this head"></canvas></div></figure>
<figure id="margins"></figure><figure id="spectrum"></figure><figure id="rho"></figure>
<figure id="curve"></figure></div>
<div id="numbers"></div>"""
_ALL = """<div class="controls"><label>Columns <select id="theory"></select></label></div>
<div class="scroll tall"><table id="table"></table></div>"""
