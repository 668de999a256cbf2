"""Errors of the library in the words of the command line: ``--top 5`` instead of ``top=5``."""

from __future__ import annotations

import re

__all__ = ["in_options"]

_KEYWORD = re.compile(r"\b([A-Za-z_]+) ?= ?(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))")


def in_options(text: str, options: set[str]) -> str:
    """Write keywords that are options of the command as such.

    Parameters
    ----------
    text : str
    options : set of str
        Long options, such as ``{"--top", "--time-limit"}``.

    Examples
    --------
    >>> from attsvm.cli.messages import in_options
    >>> in_options("mode='search' looks for the best few: pass top=k", {"--mode", "--top"})
    '--mode search looks for the best few: pass --top k'
    >>> in_options("steps must be an integer >= 0, got -1", {"--steps"})
    '--steps must be an integer >= 0, got -1'
    """

    def option(name: str) -> str:
        return "--" + name.replace("_", "-")

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if option(name) not in options:
            return match[0]
        value = next((part for part in match.groups()[1:] if part is not None), "")
        if value in ("True", "False"):
            return option(name)
        return f"{option(name)} {value}"

    said = _KEYWORD.sub(replace, text)
    first = re.match(r"([a-z_]+)(?= (?:must|is|has|takes|cannot|needs)\b)", said)
    return option(first[1]) + said[first.end() :] if first and option(first[1]) in options else said
