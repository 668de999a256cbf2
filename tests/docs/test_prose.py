"""English of the project: phrases and slips that must not stand in pages, docstrings, comments and messages.

`make prose` checks the spelling with codespell. This file checks what a dictionary does not know: private metaphors and
inversions of earlier versions, angles as a share of 1 - cosine, doubled words, and "a" before a vowel.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("attsvm", "solvers", "validation", "docs", "tools", "tests")
SUFFIXES = {".py", ".md", ".rst", ".c", ".h", ".html", ".js", ".toml", ".css"}
QUOTED = {"tests/docs/test_prose.py"}
BUILT = ("attsvm/solvers/", "attsvm/validation/", "docs/_build/", "docs/gallery/")  # links, and what Sphinx writes

PHRASES = {  # what must not stand: what to write instead
    r"\b(Read|Marked|Listed|Refused|Kept|Left out) (are|is)\b": "subject first: 'Supported models: BERT'",
    r"\bis none of\b": "is not one of",
    r"\bwhere there is none\b": "'if there is none', or name what is missing",
    r"\bde(al|alt) out\b": "permute, distribute",
    r"\bmade to break\b": "adversarial",
    r"\b(asks?|asking) for (something|nothing)\b": "has a positive right-hand side, or a right-hand side of 0",
    r"\bprices? of\b": "penalty, cost",
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\bpay(s|ing)? (for|slacks?)\b": "name the penalty, or the cost",
    r"\bwithout trust(ing)?\b": "defensively",
    r"\bby little\b": "slightly",
    r"\bway of the data\b": "data flow",
    r"\bneeds? a word more\b": "needs qualification",
    r"\bWhat of the\b": "which of the",
    r"\bstates? that machine\b": "formulates this max-margin problem",
    r"\bright tokens?\b": "the requested tokens, or the optimal ones",
    r"\d ?% (away|off)\b": "degrees",
    r"\bTheorem \d+ fails\b": "does not apply",
    r"\bWrote .* open it in a browser or attsvm\b": "one step per sentence",
}
DOUBLED = re.compile(r"\b(the|an|of|to|is|are|was|and|or|for|with|on|by|it|be|from|this|than|which|has|have)\s+\1\b")
KEYWORDS = "after|and|as|assert|async|await|elif|else|except|import|in|is|if|or|are|at"
A_VOWEL = re.compile(rf"(?<![\w`$\\.'-])\ba (?!(?:{KEYWORDS})\b)(?!one|once|eu|us[aeiu]|uni[^mn])[aeio][a-z]{{3,}}")
AN_CONSONANT = re.compile(r"(?<![\w`$\\.'-])\ban (?!hour|honest|honour|heir|ndarray)[bcdfgjklmnpqrstvwyz][a-z]{3,}")


def texts():
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in [*pages, *sorted(files)]:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in SUFFIXES and name not in QUOTED and not name.startswith(BUILT) and "uPlot" not in name:
            yield name, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def words():
    return dict(texts())


def found(pattern, text):
    for match in re.finditer(pattern, text):
        yield text.count("\n", 0, match.start()) + 1, match


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: re.sub(r"\W+", " ", phrase).strip())
def test_no_private_phrase_stands(words, phrase):
    hits = [f"{name}:{line}: {match[0]!r}" for name, text in words.items() for line, match in found(phrase, text)]
    assert not hits, f"write instead: {PHRASES[phrase]}\n" + "\n".join(hits)


def test_no_word_is_doubled(words):
    hits = [f"{name}:{line}: {match[0]!r}" for name, text in words.items() for line, match in found(DOUBLED, text)]
    assert not hits, "\n".join(hits)


def test_articles_agree_with_the_sound_that_follows(words):
    hits = [
        f"{name}:{line}: {match[0]!r}"
        for name, text in words.items()
        for pattern in (A_VOWEL, AN_CONSONANT)
        for line, match in found(pattern, text)
    ]
    assert not hits, "\n".join(hits)


def test_the_checks_find_what_they_look_for():
    """One wrong sentence each: a pattern that never matches would always pass."""
    for phrase, sentence in zip(PHRASES, WRONG, strict=True):
        assert re.search(phrase, sentence), phrase
    assert DOUBLED.search("it is the the same")
    assert A_VOWEL.search("it is a error")
    assert AN_CONSONANT.search("an problem")


WRONG = (
    "Read are BERT",
    "x is none of the names",
    "nan where there is none",
    "tokens dealt out again",
    "problems made to break it",
    "a row that asks for something",
    "the price of a slack",
    "ten lines to mend a head",
    "multipliers that pay for it",
    "read without trust",
    "missed by little",
    "The way of the data",
    "needs a word more",
    "What of the papers holds",
    "attsvm states that machine",
    "the right token",
    "0.02 % away",
    "Theorem 3 fails",
    "Wrote a.html: open it in a browser or attsvm new",
)
