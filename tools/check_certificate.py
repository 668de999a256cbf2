#!/usr/bin/env python3
"""Check certificate files of attsvm: standard library only, integers and fractions only, nothing of attsvm.

    python check_certificate.py proof.json other.json.gz

One line per file. Exit code 0: every claim of every file is proved; 1: a file is refused; 2: a file is no certificate.
Floating point is used to print numbers, never to decide. docs/trust.md describes the file, field by field.

Rows are matrices r_k = a_k b_k^T with right-hand sides c_k. W satisfies them if <r_k, W> >= c_k, or = c_k on equality
rows. N is the norm of the file, N* its dual norm. Multipliers y_k are nonnegative, except on equality rows, and
D = sum_k y_k r_k. Every claim rests on one inequality, which holds for every W that satisfies the rows:

    c . y  <=  sum_k y_k <r_k, W>  =  <D, W>  <=  N*(D) N(W).                                                   (1)
"""
# fmt: off
# ruff: noqa: B905, D103

import gzip
import json
import re
import sys
from fractions import Fraction
from math import isqrt, lcm, prod

BYTES, LISTS, DIGITS, WORK = 1 << 25, 10**6, 10_000, 10**9  # of a file; of a number; products of 64-bit words
NUMBER = re.compile(r"(-?)(?:0x([0-9a-f]+)(?:\.([0-9a-f]+))?(?:p([+-]?[0-9]{1,4}))?|([0-9]{1,4000}))"
                    r"(?:/(?:0x([0-9a-f]+)|([0-9]{1,4000})))?")
CLAIMS = {"infeasible": "claim", "lower bound": "claim norm", "optimal": "claim gap violation",
          "rank": "claim rank resolution", "locally optimal": "claim", "complete listing": "claim selections"}
OBJECTS = [set(names.split()) for names in (  # the fields of every kind of object: others could qualify a claim
    "format version made_by assumes problem norm W multipliers bounds claims proofs",
    "kind queries rhs equality prior penalty left owner",
    "kind queries rhs equality prior penalty tokens selected allowed head labels scores",
    "C slack loss", "norm dual_norm rank", "factors at_most", "tokens multipliers", *CLAIMS.values())]
DUAL = {"frobenius": "frobenius", "nuclear": "spectral", "spectral": "nuclear", "l1": "linf", "linf": "l1"}

class Unreadable(Exception):
    """The file is no certificate of this version, or beyond the limits."""

class Refused(Exception):
    """The file does not prove what it claims."""

def need(condition, why, error=Refused):
    if not condition:
        raise error(why)

def spend(count, *numbers):
    need(count * (1 + sum(x.bit_length() for x in numbers) // 64) <= WORK, "too large for this checker", Unreadable)

# Reading

def read(path):
    """The JSON object in a file: numbers are strings or short integers, no field is unknown or occurs twice."""
    def refuse(text):
        raise Unreadable(f"numbers must be strings or short integers, got {text[:20]}")
    def short(text):
        return int(text) if len(text) < 16 else refuse(text)
    def checked(pairs):
        names = [name for name, _ in pairs]
        need(len(set(names)) == len(names) and any(set(names) <= known for known in OBJECTS),
             f"unknown fields, or one occurs twice: {' '.join(names)[:60]!r}", Unreadable)
        return dict(pairs)
    with open(path, "rb") as file:
        data = file.read(BYTES + 1)
    if data[:2] == b"\x1f\x8b":
        with gzip.open(path) as file:
            data = file.read(BYTES + 1)
    need(len(data) <= BYTES and data.count(b"[") + data.count(b"{") <= LISTS, "the file is too large", Unreadable)
    record = json.loads(data, parse_float=refuse, parse_constant=refuse, parse_int=short, object_pairs_hook=checked)
    need(type(record) is dict and record.get("format") == "attsvm certificate", "not an attsvm certificate", Unreadable)
    need(record.get("version") == 1, f"version {str(record.get('version'))[:20]}; this checker reads 1", Unreadable)
    return record

def number(text):
    """An integer, a quotient "p/q", or a hexadecimal float: "0x1.8p-3" is 0x18 / 16 / 2^3. An exact rational."""
    if type(text) is int:
        return Fraction(text)
    found = NUMBER.fullmatch(text) if type(text) is str and len(text) <= DIGITS else None
    need(found, f"not a number, or too long: {text[:30] if type(text) is str else type(text).__name__!r}", Unreadable)
    sign, whole, part, power, decimal, below, decimal_below = found.groups()
    top = int(decimal) if decimal else int(whole + (part or ""), 16)
    bottom = int(below, 16) if below else int(decimal_below or 1)
    need(bottom, "division by zero", Unreadable)
    return Fraction(-top if sign else top, bottom) * Fraction(2) ** (int(power or 0) - 4 * len(part or ""))

def common(values):
    """Rationals as (integers, denominator)."""
    bottom = 1
    for x in values:
        bottom = lcm(bottom, x.denominator)
        need(bottom.bit_length() <= 4 * DIGITS, "denominators are too long", Unreadable)
    return [x.numerator * (bottom // x.denominator) for x in values], bottom

def integers(value, *sizes):
    """Nested lists of numbers as (integers, denominator); a size None stands for any, the same throughout."""
    sizes, flat = list(sizes), []
    def walk(item, depth):
        if depth == len(sizes):
            return flat.append(number(item))
        need(type(item) is list and item and len(item) == (sizes[depth] or len(item)), "wrong shape", Unreadable)
        sizes[depth] = len(item)
        for part in item:
            walk(part, depth + 1)
    def build(depth):
        return next(left) if depth == len(sizes) else [build(depth + 1) for _ in range(sizes[depth])]
    walk(value, 0)
    whole, bottom = common(flat)
    left = iter(whole)
    return build(0), bottom

def indices(value, size, below):
    """A list of so many integers in [0, below)."""
    need(type(value) is list and len(value) == size and all(type(x) is int and 0 <= x < below for x in value),
         f"expected {size} integers below {below}", Unreadable)
    return value

# Rows

def dot(x, y):
    return sum(map(int.__mul__, x, y))

class Problem:
    """Rows r_k = left[k] queries[owner[k]]^T / scale in integers, right-hand sides c_k, which rows are equalities."""

    def __init__(self, record):
        self.record, self.attention = record, record["kind"] == "attention"
        need(self.attention or record["kind"] == "rows", "unknown kind of problem", Unreadable)
        if self.attention:
            self.tokens, bottom = integers(record["tokens"], None, None, None)
            self.T, self.dx = len(self.tokens[0]), len(self.tokens[0][0])
            nested, below = integers(record["queries"], len(self.tokens), None, None)
            self.queries, self.K = [z for one in nested for z in one], len(nested[0])
            count = len(self.queries)
            spend(count * self.T * self.dx)
            allowed = record.get("allowed", [[1] * self.T] * count)
            self.allowed = [indices(row, self.T, 2) for row in allowed]
            need(len(allowed) == count, "one list of allowed tokens per query is needed", Unreadable)
            self.select(indices(record["selected"], count, self.T) if "selected" in record else [])
        else:
            self.left, bottom = integers(record["left"], None, None)
            self.queries, below = integers(record["queries"], None, None)
            self.owner, self.dx = indices(record["owner"], len(self.left), len(self.queries)), len(self.left[0])
        self.scale, self.dz, m = bottom * below, len(self.queries[0]), len(self.left)
        self.c = [number(x) for x in record["rhs"]] if "rhs" in record else [Fraction(1)] * m
        self.equality = indices(record.get("equality", [0] * m), m, 2)
        need(len(self.c) == m, "one right-hand side per row is needed", Unreadable)
        self.size = [max(1, abs(c)) for c in self.c]  # violations are relative to this
        if "prior" in record:  # the rows are about prior + W: what the prior gives is not needed of W
            self.c = [c - v for c, v in zip(self.c, self.margins(integers(record["prior"], self.dx, self.dz)))]

    def select(self, chosen):
        """Rows x_selected - x_t against every other allowed token t: query by query, tokens in their order."""
        need(all(self.allowed[j][t] for j, t in enumerate(chosen)), "a selected token is not allowed", Unreadable)
        self.chosen, tokens = chosen, [self.tokens[j // self.K] for j in range(len(chosen))]
        place = [(j, t) for j, s in enumerate(chosen) for t in range(self.T) if t != s and self.allowed[j][t]]
        self.left = [[x - y for x, y in zip(tokens[j][chosen[j]], tokens[j][t])] for j, t in place]
        self.owner, self.token = [j for j, _ in place], [t for _, t in place]

    def margins(self, W):
        """<r_k, W> of W = (integers, denominator)."""
        spend(len(self.queries) * self.dx * self.dz + len(self.left) * self.dx, self.scale, W[1])
        keys = [[dot(line, z) for line in W[0]] for z in self.queries]
        return [Fraction(dot(a, keys[j]), self.scale * W[1]) for a, j in zip(self.left, self.owner)]

    def combination(self, y):
        """D = sum_k y_k r_k as (integers, denominator)."""
        (weights, bottom), sums = common(y), {}
        spend(len(self.queries) * self.dx * self.dz + len(self.left) * self.dx, self.scale, bottom)
        for a, j, w in zip(self.left, self.owner, weights):
            if w:
                sums[j] = [s + w * x for s, x in zip(sums.get(j, [0] * self.dx), a)]
        columns = [[self.queries[j][i] for j in sums] for i in range(self.dz)]
        D = [[dot(line, column) for column in columns] for line in zip(*sums.values())]
        return D or [[0] * self.dz for _ in range(self.dx)], bottom * self.scale

    def multipliers(self, values):
        """y, one per row, nonnegative on inequality rows."""
        need(type(values) is list and len(values) == len(self.left), "one multiplier per row is needed")
        y = [number(x) for x in values]
        need(all(v >= 0 or e for v, e in zip(y, self.equality)), "a multiplier of an inequality is negative")
        return y

    def scores(self):
        """Of every query and token: label times head . token, or as given. Only their order counts."""
        if "scores" in self.record:
            return integers(self.record["scores"], len(self.queries), self.T)[0]
        head, labels = integers(self.record["head"], self.dx)[0], integers(self.record["labels"], len(self.queries))[0]
        return [[y * dot(head, x) for x in self.tokens[j // self.K]] for j, y in enumerate(labels)]

    def assumed(self):
        """What the reader must believe beside the numbers."""
        sides = self.attention and ("rhs" in self.record or "equality" in self.record)
        return (["right-hand sides as given"] * sides + ["rows as given"] * (not self.attention)
                + ["scores as given"] * ("scores" in self.record))

# Norms, bounded from above by rationals. M stands for (integers, denominator).

def squared(M):
    """|M|_F^2."""
    return Fraction(sum(dot(line, line) for line in M[0]), M[1] ** 2)

def root_above(value):
    """A rational above the square root of a rational, by less than 2^-150 of it: an integer root, plus 1, scaled."""
    shift = 160 - (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    scaled = value * Fraction(4) ** shift
    return (isqrt(scaled.numerator // scaled.denominator) + 1) / Fraction(2) ** shift if value else value

def operator_above(M, bound):
    """`bound`, if the largest singular value of M is proved to be at most that.

    The entries are cut at 2^s, 100 bits below the bound: M = 2^s A + E, where E has entries in [0, 2^s) and hence norm
    at most 2^s (rows + columns). So |A| <= t with t = bound / 2^s - rows - columns is enough, or S = t^2 I - A^T A
    positive semidefinite. A triangular L is computed from S - e I. Whatever it is, if the absolute row sums of
    R = S - e I - L L^T are at most e, then |R| <= e, and S = L L^T + (e I + R) is a sum of semidefinite matrices.
    """
    A = M[0] if len(M[0]) >= len(M[0][0]) else list(zip(*M[0]))
    n, most = len(A[0]), bound * M[1]
    s = most.numerator.bit_length() - most.denominator.bit_length() - 100
    spend(n * n * len(A) * (1 + max(0, -s) // 64))
    t = (most / Fraction(2) ** s - len(A) - n) // 1  # rounded down
    need(t > 0, "a bound on a largest singular value is too small")
    e, columns = t * t >> 70, [[x >> s if s > 0 else x << -s for x in column] for column in zip(*A)]
    S = [[(i == j) * (t * t - e) - dot(columns[i], columns[j]) for j in range(i + 1)] for i in range(n)]
    L = []
    for i in range(n):
        L.append([])
        for j in range(i):
            L[i].append((S[i][j] - dot(L[i], L[j])) // L[j][j])
        pivot = S[i][i] - dot(L[i], L[i])
        need(pivot > 0, "a bound on a largest singular value is too small")
        L[i].append(isqrt(pivot))
    R = [[abs(S[i][j] - dot(L[i], L[j])) for j in range(i + 1)] for i in range(n)]
    need(all(sum(R[i]) + sum(R[j][i] for j in range(i + 1, n)) <= e for i in range(n)), "rounding is too large")
    return bound

def minus_product(M, factors):
    """M - P Q^T, (|P|_F^2 + |Q|_F^2) / 2, and the number of columns of P and Q."""
    (P, p), (Q, q) = integers(factors[0], len(M[0]), None), integers(factors[1], len(M[0][0]), None)
    need(len(P[0]) == len(Q[0]) <= min(len(P), len(Q)), "factors must have equally many, few columns", Unreadable)
    spend(len(P) * len(Q) * len(P[0]), p, q)
    rest = [[x * p * q - M[1] * dot(u, v) for x, v in zip(line, Q)] for line, u in zip(M[0], P)]
    return (rest, M[1] * p * q), (squared((P, p)) + squared((Q, q))) / 2, len(P[0])

def norm_above(M, name, hint):
    """A rational at least the norm of M; the norm itself for l1 and linf.

    Nuclear norm: |M|_* <= |P Q^T|_* + |M - P Q^T|_* <= (|P|_F^2 + |Q|_F^2) / 2 + sqrt(n) |M - P Q^T|_F for all P and Q,
    where n is the smaller side of M.
    """
    entries = [abs(x) for line in M[0] for x in line]
    if name in ("l1", "linf"):
        return Fraction(sum(entries) if name == "l1" else max(entries), M[1])
    if name == "frobenius" or not any(entries):
        return root_above(squared(M))
    if name == "spectral":
        return operator_above(M, number(hint["at_most"]))
    rest, half, _ = minus_product(M, hint["factors"])
    return half + root_above(squared(rest) * min(len(M[0]), len(M[0][0])))

# Claims

class Pair:
    """W and multipliers y of a file: D, c . y and upper bounds on the norms in (1)."""

    def __init__(self, record):
        self.problem, self.norm, self.bounds = Problem(record["problem"]), record["norm"], record.get("bounds", {})
        self.penalty, self.y = self.problem.record.get("penalty"), self.problem.multipliers(record["multipliers"])
        self.D, self.value = self.problem.combination(self.y), sum(map(Fraction.__mul__, self.problem.c, self.y))
        self.dual_above = norm_above(self.D, DUAL[self.norm], self.bounds.get("dual_norm"))
        if "W" in record:
            self.W = integers(record["W"], self.problem.dx, self.problem.dz)
            self.above = norm_above(self.W, self.norm, self.bounds.get("norm"))
            rows = zip(self.problem.c, self.problem.margins(self.W), self.problem.equality)
            self.missed = [abs(c - v) if e else max(c - v, Fraction(0)) for c, v, e in rows]

    def infeasible(self, claim):
        """No W satisfies the rows: (1) would read 0 < c . y <= <0, W>."""
        need(self.penalty is None and self.value > 0 and not any(map(any, self.D[0])), "the rows do not cancel")
        return "no W satisfies the rows"

    def lower_bound(self, claim):
        """No W of norm below R satisfies the rows, by (1). This says less than infeasible."""
        R = number(claim["norm"])
        need(self.penalty is None and self.value >= R * self.dual_above, "the bound is not proved")
        return f"no W of {self.norm} norm below {float(R):.8g} satisfies the rows"

    def optimal(self, claim):
        """W misses no row by more than violation max(1, |c_k|); no W that misses none has norm below (1 - gap) N(W)."""
        gap, most = number(claim["gap"]), number(claim.get("violation", 0))
        need(0 <= gap < 1, "gap must be in [0, 1)", Unreadable)
        if self.penalty is not None:
            need("violation" not in claim, "soft margins have slacks, no violation", Unreadable)
            return self.optimal_soft(gap)
        need(all(x <= most * c for x, c in zip(self.missed, self.problem.size)), "W misses a row by more than claimed")
        need(self.value >= (1 - gap) * self.above * self.dual_above, "the multipliers do not prove the gap")
        return (f"W is optimal in the {self.norm} norm to a relative gap of {float(gap):.2g}"
                + f" and misses rows by at most {float(most):.2g}" * (most > 0))

    def optimal_soft(self, gap):
        """No objective r(W) + h(W) is below (1 - gap) times that of this W.

        Here r = N, or N^2 / 2 in the Frobenius norm, and h is C sum_j xi_j, or C sum_j xi_j^2, of the slacks: the
        largest violation of each query, or that of each row. For every W, with s_j the sum of |y_k| of slack j,
            c . y  <=  <D, W> + sum_k |y_k| missed_k  <=  <D, W> + sum_j s_j xi_j;
        s_j xi_j is at most C xi_j if s_j <= C, and at most C xi_j^2 + s_j^2 / (4 C); <D, W> is at most N(W) if
        N*(D) <= 1, and at most |W|^2 / 2 + |D|^2 / 2.
        """
        C, hinge, per_row = number(self.penalty["C"]), self.penalty["loss"] == "hinge", self.penalty["slack"] == "row"
        need(C > 0 and (hinge or self.penalty["loss"] == "squared_hinge"), "unknown penalty", Unreadable)
        need(per_row or self.penalty["slack"] == "query", "unknown penalty", Unreadable)
        slacks, loads = {}, {}
        for j, x, y in zip(range(len(self.y)) if per_row else self.problem.owner, self.missed, self.y):
            slacks[j], loads[j] = max(slacks.get(j, 0), x), loads.get(j, 0) + abs(y)
        primal = C * sum(x if hinge else x * x for x in slacks.values())
        lost = 0 if hinge else sum(s * s for s in loads.values()) / (4 * C)
        need(not hinge or max(loads.values()) <= C, "multipliers exceed the penalty")
        if self.norm == "frobenius":
            primal, lost = primal + squared(self.W) / 2, lost + squared(self.D) / 2
        else:
            need(self.dual_above <= 1, "multipliers exceed the dual norm")
            primal += self.above
        need(self.value - lost >= (1 - gap) * primal, "the multipliers do not prove the gap")
        return f"W is optimal for the soft margin, {self.norm} norm, C = {float(C):.6g}, to a gap of {float(gap):.2g}"

    def rank(self, claim):
        """Nuclear norm: the singular values w_i of every optimal W* after the r-th sum to at most `resolution`.

        Let |D| <= t, and |D - P Q^T| <= u < t with r columns in P and Q: then sigma_i(D) <= u for i > r (Weyl). By the
        rows and von Neumann's trace inequality c . y <= <D, W*> <= sum_i sigma_i(D) w_i <= t |W*|_* - (t - u) tail, and
        |W*|_* <= |W|_* because W satisfies the rows.
        """
        r, most, hint = claim["rank"], number(claim["resolution"]), self.bounds["rank"]
        need(self.norm == "nuclear" and self.penalty is None, "ranks are proved for the nuclear norm and hard margins")
        need(not any(self.missed), "W must satisfy every row exactly to bound the rank")
        rest, _, columns = minus_product(self.D, hint["factors"]) if "factors" in hint else (self.D, 0, 0)
        u = operator_above(rest, number(hint["at_most"]))
        need(columns <= r and u < self.dual_above, "the dual matrix is not proved to be close to this rank")
        need(self.dual_above * self.above - self.value <= most * (self.dual_above - u), "the resolution is not proved")
        return f"every optimal W has rank {r} up to singular values that sum to {float(most):.2g}"

    def locally_optimal(self, claim):
        """Every support token (margin exactly 1 at the optimum) scores less than the selected one."""
        need_margins_of_one(self.problem, self.norm)
        low = low_rows(self.problem, self.problem.scores())
        need(decide(self.problem, low, self.W, self.y) is True, "local optimality is not proved")
        return "the selection is locally optimal"

def need_margins_of_one(problem, norm):
    other = {"rhs", "equality", "prior", "penalty"} & set(problem.record)
    need(norm == "frobenius" and problem.attention and not other, "only proved for margins of 1, Frobenius norm")

def low_rows(problem, scores):
    """Which rows are against a token that scores less than the selected one."""
    return [scores[j][t] < scores[j][problem.chosen[j]] for j, t in zip(problem.owner, problem.token)]

def decide(problem, low, W, y):
    """True: locally optimal. False: not. None: W and y do not tell.

    Theorem. A selection is locally optimal exactly if its low rows can be satisfied and every other row exceeds 1 at
    V, the W of least Frobenius norm that satisfies the low rows. (If it is, the other rows are inactive at the optimum
    of all rows, which then is the optimum of the low rows. If those rows exceed 1 at V, V satisfies all rows and is the
    optimum of all, so that only low rows can be at 1.) Let W satisfy the low rows. V is the point of a convex set next
    to 0, so <V, W - V> >= 0 and |W - V|^2 <= |W|^2 - |V|^2 <= |W|^2 - L^2 =: q for a lower bound L of |V|, from (1).
    Hence <r_k, V> differs from <r_k, W> by at most |r_k| sqrt(q). If D = 0 the low rows cannot be satisfied.
    """
    used = [v if is_low else Fraction(0) for v, is_low in zip(y, low)]
    D, verdict = problem.combination(used), True
    length = squared(D)
    if not length and any(used):
        return False
    if W is None:  # D, enlarged until the low rows hold
        least = min([v for v, is_low in zip(problem.margins(D), low) if is_low], default=Fraction(1))
        need(least > 0, "the multipliers do not satisfy the low rows")
        W = [[x * least.denominator for x in line] for line in D[0]], D[1] * least.numerator
    margins, sizes = problem.margins(W), [dot(z, z) for z in problem.queries]
    need(all(v >= 1 for v, is_low in zip(margins, low) if is_low), "W does not satisfy the low rows")
    q = squared(W) - (sum(used) ** 2 / length if length else 0)
    for v, is_low, a, j in zip(margins, low, problem.left, problem.owner):
        apart = (v - 1) ** 2 - q * Fraction(dot(a, a) * sizes[j], problem.scale**2)
        if not is_low and v <= 1 and apart >= 0:
            return False
        verdict = verdict if is_low or (v > 1 and apart > 0) else None
    return verdict

def complete_listing(record, claim, problem):
    """The locally optimal selections are those listed: every selection is decided, once."""
    need_margins_of_one(problem, record["norm"])
    scores, seen, count = problem.scores(), set(), len(problem.queries)
    listed = {tuple(indices(tokens, count, problem.T)) for tokens in claim["selections"]}
    spend(len(record["proofs"]) * count * problem.dx * (problem.dz + problem.T), problem.scale)
    for proof in record["proofs"]:
        problem.select(indices(proof["tokens"], count, problem.T))
        problem.equality, tokens = [0] * len(problem.left), tuple(problem.chosen)
        verdict = decide(problem, low_rows(problem, scores), None, problem.multipliers(proof["multipliers"]))
        what = "listed" if tokens in listed else "left out"
        need(verdict is (tokens in listed), f"{list(tokens)} is not proved to be rightly {what}")
        seen.add(tokens)
    total = prod(sum(row) for row in problem.allowed)
    need(len(seen) == total and listed <= seen, "the proofs do not decide every selection")
    return f"the {len(listed)} listed selections of {total} are the locally optimal ones"

def check(record):
    """What is proved, in words."""
    claims, said = record["claims"], []
    need(type(claims) is list and claims, "no claims", Unreadable)
    for claim in claims:
        fields = CLAIMS.get(claim["claim"])
        need(fields and set(claim) <= set(fields.split()), "unknown claim, or unknown field of one", Unreadable)
    if claims[0]["claim"] == "complete listing":
        need(len(claims) == 1, "a listing is the only claim of its file", Unreadable)
        problem = Problem(record["problem"])
        said.append(complete_listing(record, claims[0], problem))
    else:
        need("W" in record or {c["claim"] for c in claims} <= {"infeasible", "lower bound"}, "no W", Unreadable)
        pair = Pair(record)
        problem = pair.problem
        said += [getattr(pair, claim["claim"].replace(" ", "_"))(claim) for claim in claims]
    need(record["assumes"] == problem.assumed(), f"the file must say that it assumes {problem.assumed()}")
    return "; ".join(said + problem.assumed())

def main(paths):
    worst = 0
    if not paths:
        print("usage: python check_certificate.py FILE ...")
        worst = 2
    for path in paths:
        try:
            verdict, code = f"accepted: {check(read(path))}", 0
        except Refused as error:
            verdict, code = f"refused: {error}", 1
        except (Unreadable, OSError, EOFError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
                RecursionError, MemoryError) as error:
            what = "" if isinstance(error, Unreadable) else f"{type(error).__name__}: "
            verdict, code = f"no certificate: {what}{' '.join(str(error).split())[:100]}", 2
        print(f"{path}: {verdict}")
        worst = max(worst, code)
    return worst

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
