/* Soft margins of the Frobenius norm for rising C on the same rows: each begins with the face of the one before, and rows
   join and leave the face one at a time.

     minimize  |W(lam)|^2 / 2 + t sum_j s_j^2 / 2 - rhs . lam     over  lam >= 0  and, with the hinge,  s_j <= C

   where s_j are the sums of multipliers that share a slack (t = 0 with the hinge, 1 / (2 C) with its square).

   A face has directions in which the multipliers may move; every step solves the equations of the face and goes as far as
   the multipliers stay admissible. What stops it leaves the face. On the minimum of a face the row that is missed most
   joins it. With the hinge every group of multipliers has a leader: the other rows k of the group move along e_k - e_leader,
   which leaves their sum alone, and the sum moves along e_leader, unless it is at its bound. So a bound that is reached, or
   left, changes one direction. The products of the directions have a Cholesky factor, which grows and shrinks with them.

   The objective never rises, so faces do not repeat, except where steps of length 0 lead from one to the other: the number
   of exchanges has a limit, and what does not end is left to other methods. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

/* Squared pivot, as a share of the squared length of a direction, below which it depends on the others. */
#define DEPENDENT 1e-11
/* Share of the largest right-hand side by which a row may be missed: one outside the face, and one of it. */
#define OUTSIDE 3e-10
#define MISSED 1e-11
/* Share of the largest violation from which on further rows may join before all rows are looked at again. */
#define WORTH 0.1
/* Share of the largest multiplier from which on one of a start counts as positive, and of a bound by which it is missed. */
#define POSITIVE 1e-8
#define REACHED 1e-7
/* Steps in a row that only remove rounding before the factor is computed anew, and before rounding is accepted. */
#define REFRESH 2
#define ACCEPT 4

typedef struct {
    int m, dx, q, dz, most, groups, n;
    const double *a, *queries, *rhs;
    int moved;          /* whether multipliers have moved since the last look at all rows */
    double C, t, scale; /* C: infinite for squared hinges; scale: of the right-hand sides */
    int *owner, *group, *first; /* query and group of each row, rows of group j from first[j] */
    int *slot;                  /* rows with the same slot share a squared slack */
    int *leader, *own;          /* of each group: a row or -1, and the place of the direction e_leader or -1 */
    int *row, *other;           /* row of each direction, and the leader that it moves against or -1 */
    int *place;                 /* place of the direction of each row that is no leader, or -1 */
    double *between;            /* products of queries (q, q) */
    double *L, *D;              /* factor by columns, of order `most`; left factors of the directions (most, dx) */
    double *lam, *base, *change, *load, *slots, *misses;
    double *g, *p, *y, *d;
    double *W, *sums, *key;
    long exchanges, limit;
    const volatile int *stop;
} Face;

typedef struct {
    double by;
    int group, row; /* row -1: the bound of the group is left */
} Candidate;

enum { SETTLED, BLOCKED_BY_ROW, BLOCKED_BY_BOUND, UNBOUNDED };

/* y = L^-1 y from entry `from` on, where the entries before are 0; four columns at a time, as y is read once for them */
VECTORIZED static void solve_forward(int n, Size wide, const double *restrict L, double *restrict y, int from) {
    int j = from;
    for (; j + 4 <= n; j += 4) {
        const double *a = L + j * wide, *b = a + wide, *c = b + wide, *d = c + wide;
        const double over[4] = {1.0 / a[j], 1.0 / b[j + 1], 1.0 / c[j + 2], 1.0 / d[j + 3]}; /* none waits for another */
        const double p = y[j] * over[0], q = (y[j + 1] - p * a[j + 1]) * over[1];
        const double r = (y[j + 2] - p * a[j + 2] - q * b[j + 2]) * over[2];
        const double s = (y[j + 3] - p * a[j + 3] - q * b[j + 3] - r * c[j + 3]) * over[3];
        y[j] = p, y[j + 1] = q, y[j + 2] = r, y[j + 3] = s;
        for (int i = j + 4; i < n; i++) y[i] -= (p * a[i] + q * b[i]) + (r * c[i] + s * d[i]);
    }
    for (; j < n; j++) {
        const double *column = L + j * wide, x = y[j] / column[j];
        y[j] = x;
        for (int i = j + 1; i < n; i++) y[i] -= x * column[i];
    }
}

/* y = L^-T y, four columns at a time */
VECTORIZED static void solve_backward(int n, Size wide, const double *restrict L, double *restrict y) {
    int j = n;
    for (; j >= 4; j -= 4) { /* columns j - 4 to j - 1 */
        const double *a = L + (j - 4) * wide + j - 4, *b = a + wide, *c = b + wide, *d = c + wide;
        const double over[4] = {1.0 / a[0], 1.0 / b[1], 1.0 / c[2], 1.0 / d[3]};
        double sums[4], *part = y + j - 4;
        four_products(n - j, wide, a + 4, y + j, sums);
        const double s = (part[3] - sums[3]) * over[3], r = (part[2] - sums[2] - c[3] * s) * over[2];
        const double q = (part[1] - sums[1] - b[2] * r - b[3] * s) * over[1];
        part[0] = (part[0] - sums[0] - a[1] * q - a[2] * r - a[3] * s) * over[0];
        part[1] = q, part[2] = r, part[3] = s;
    }
    for (int b = j - 1; b >= 0; b--) {
        const double *column = L + b * wide;
        for (int i = b + 1; i < n; i++) y[b] -= column[i] * y[i];
        y[b] /= column[b];
    }
}

/* The factor without row and column `gone`: columns are rotated so that what is above the diagonal vanishes. */
VECTORIZED static void remove_from_factor(int n, Size wide, double *L, int gone) {
    for (int j = 0; j < gone; j++) {
        double *column = L + j * wide;
        memmove(column + gone, column + gone + 1, doubles(n - 1 - gone));
    }
    double *carried = L + gone * wide; /* rows move up by one */
    memmove(carried + gone, carried + gone + 1, doubles(n - 1 - gone));
    for (int j = gone; j < n - 1; j++) {
        double *restrict one = L + j * wide, *restrict next = one + wide;
        const double length = sqrt(one[j] * one[j] + next[j + 1] * next[j + 1]);
        const double c = one[j] / length, s = next[j + 1] / length;
        for (int i = j; i < n - 1; i++) {
            const double x = one[i], y = next[i + 1];
            one[i] = c * x + s * y;
            next[i] = c * y - s * x;
        }
    }
}

/* out_k = x_k . y for the rows x_k (count, n) */
VECTORIZED static void products(Size count, int n, const double *x, const double *y, double *out) {
    all_products(count, n, x, y, out);
}

VECTORIZED static void add_multiple(int n, double factor, const double *restrict x, double *restrict y) {
    for (int i = 0; i < n; i++) y[i] += factor * x[i];
}

/* The row that the direction of a row moves against: the leader of its group, -1 for the leader itself. */
static int opposite(const Face *s, int k) {
    const int lead = s->leader[s->group[k]];
    return lead == k ? -1 : lead;
}

/* Left factor of the direction of a row. */
static void write_direction(const Face *s, int k, double *out) {
    const int lead = opposite(s, k);
    memcpy(out, s->a + (Size)k * s->dx, doubles(s->dx));
    if (lead >= 0) add_multiple(s->dx, -1.0, s->a + (Size)lead * s->dx, out);
}

static int *place_of(Face *s, int k) {
    const int j = s->group[k];
    return s->leader[j] == k ? s->own + j : s->place + k;
}

/* Let the direction of a row join: 0, and its products with the others times L^-1 in y, if it depends on them. */
static int append(Face *s, int k) {
    const int n = s->n, i = s->owner[k];
    double *y = s->y, *d = s->d, square;
    write_direction(s, k, d);
    s->row[n] = k, s->other[n] = opposite(s, k);
    products(n, s->dx, s->D, d, y);
    for (int b = 0; b < n; b++) y[b] *= s->between[(Size)i * s->q + s->owner[s->row[b]]];
    products(1, s->dx, d, d, &square);
    square = square * s->between[(Size)i * s->q + i] + s->t;
    if (s->t > 0.0)
        for (int b = 0; b < n; b++)
            if (s->slot[s->row[b]] == s->slot[k]) y[b] += s->t;
    solve_forward(n, s->most, s->L, y, 0);
    double pivot = square;
    for (int b = 0; b < n; b++) pivot -= y[b] * y[b];
    if (!(pivot > DEPENDENT * square) || n == s->most) return 0;
    for (int b = 0; b < n; b++) s->L[n + b * (Size)s->most] = y[b];
    s->L[n + n * (Size)s->most] = sqrt(pivot);
    memcpy(s->D + (Size)n * s->dx, d, doubles(s->dx));
    s->g[n] = 0.0;
    *place_of(s, k) = n;
    s->n++;
    return 1;
}

static void remove_direction(Face *s, int at) {
    const int n = s->n;
    *place_of(s, s->row[at]) = -1;
    remove_from_factor(n, s->most, s->L, at);
    memmove(s->D + (Size)at * s->dx, s->D + (Size)(at + 1) * s->dx, doubles((Size)(n - 1 - at) * s->dx));
    memmove(s->g + at, s->g + at + 1, doubles(n - 1 - at));
    memmove(s->row + at, s->row + at + 1, ints(n - 1 - at));
    memmove(s->other + at, s->other + at + 1, ints(n - 1 - at));
    s->n--;
    for (int b = at; b < s->n; b++) *place_of(s, s->row[b]) = b;
}

/* The leader of a group has become 0: another row leads, and the directions of the group are formed anew. 0 on failure. */
static int change_leader(Face *s, int j) {
    int lead = -1;
    for (int k = s->first[j]; k < s->first[j + 1]; k++) /* of a start some rows may not be in the face yet */
        if ((s->place[k] >= 0 || s->lam[k] > 0.0) && (lead < 0 || s->lam[k] > s->lam[lead])) lead = k;
    const int moves = s->own[j] >= 0;
    const double slope = moves ? s->g[s->own[j]] : 0.0;
    const double least = lead < 0 || s->place[lead] < 0 ? 0.0 : s->g[s->place[lead]];
    if (moves) remove_direction(s, s->own[j]);
    if (lead < 0) {
        s->leader[j] = -1, s->load[j] = 0.0;
        return 1;
    }
    for (int k = s->first[j]; k < s->first[j + 1]; k++) {
        s->slots[k] = NAN; /* slopes of the group, NaN for rows outside the face */
        if (s->place[k] < 0) continue;
        s->slots[k] = s->g[s->place[k]];
        remove_direction(s, s->place[k]);
    }
    s->leader[j] = lead;
    if (moves) {
        if (!append(s, lead)) return 0;
        s->g[s->n - 1] = slope + least;
    }
    for (int k = s->first[j]; k < s->first[j + 1]; k++) {
        if (k == lead || isnan(s->slots[k])) continue;
        if (!append(s, k)) return 0;
        s->g[s->n - 1] = s->slots[k] - least;
    }
    return 1;
}

/* How far the multipliers may move along p, at most `longest`, and what stops them there; moves them. */
static int move(Face *s, int n, double longest, double *taken, int *by) {
    int told = SETTLED;
    double step = longest, *lam = s->lam, *change = s->change; /* change: 0 before and after */
    for (int b = 0; b < n; b++) {
        change[s->row[b]] += s->p[b];
        if (s->other[b] >= 0) change[s->other[b]] -= s->p[b];
    }
    for (int b = 0; b < n; b++) {
        const int k = s->row[b], lead = s->other[b], j = s->group[k];
        const double falls = change[k] < 0.0 ? lam[k] / -change[k] : INFINITY;
        if (falls < step) step = fmax(falls, 0.0), told = BLOCKED_BY_ROW, *by = k;
        if (lead >= 0) {
            const double leads = change[lead] < 0.0 ? lam[lead] / -change[lead] : INFINITY;
            if (leads < step) step = fmax(leads, 0.0), told = BLOCKED_BY_ROW, *by = lead;
        } else if (s->p[b] > 0.0 && s->load[j] + step * s->p[b] > s->C) {
            step = fmax(s->C - s->load[j], 0.0) / s->p[b], told = BLOCKED_BY_BOUND, *by = j;
        }
    }
    *taken = step, s->moved = 1;
    if (!isfinite(step)) return UNBOUNDED;
    for (int b = 0; b < n; b++) {
        const int k = s->row[b], lead = s->other[b];
        lam[k] += step * change[k], change[k] = 0.0;
        if (lead >= 0) lam[lead] += step * change[lead], change[lead] = 0.0;
        else s->load[s->group[k]] += step * s->p[b];
    }
    if (told == BLOCKED_BY_ROW) lam[*by] = 0.0;
    if (told == BLOCKED_BY_BOUND) s->load[*by] = s->C;
    return told;
}

/* Take what stopped a step out of the face; 0 on failure. */
static int leave(Face *s, int told, int by) {
    s->exchanges++;
    if (told == BLOCKED_BY_BOUND) {
        remove_direction(s, s->own[by]);
        return 1;
    }
    if (s->leader[s->group[by]] == by) return change_leader(s, s->group[by]);
    remove_direction(s, s->place[by]);
    return 1;
}

/* Steps to the minimum of the face from slopes g, or of the faces that it shrinks to; 0 on failure. */
static int descend(Face *s) {
    while (s->n) {
        int from = 0, by = -1;
        double taken;
        while (from < s->n && s->g[from] == 0.0) from++;
        if (from == s->n) return 1;
        memcpy(s->p, s->g, doubles(s->n));
        solve_forward(s->n, s->most, s->L, s->p, from);
        solve_backward(s->n, s->most, s->L, s->p);
        const int told = move(s, s->n, 1.0, &taken, &by);
        for (int b = 0; b < s->n; b++) s->g[b] *= 1.0 - taken;
        if (told == SETTLED) return 1;
        if (!leave(s, told, by) || s->exchanges > s->limit || *s->stop) return 0;
    }
    return 1;
}

/* Let the direction of a row join the face, or what it leads to where the two depend on each other; `slope` is what the
   objective falls by along the direction. 1 if it has joined, 2 if it need not any more, 0 on failure. */
static int insert(Face *s, int k, double slope) {
    const int j = s->group[k], leads = s->leader[j] < 0 || s->leader[j] == k;
    if (leads) s->leader[j] = k;
    for (int tries = 0; !append(s, k); tries++) {
        /* The direction and the face together leave W alone: along that the objective falls until something leaves. */
        const int n = s->n;
        const double sign = slope > 0.0 ? 1.0 : -1.0;
        double taken;
        int by = -1;
        if (n == s->most || tries > n + 8) return 0;
        memcpy(s->p, s->y, doubles(n));
        solve_backward(n, s->most, s->L, s->p);
        for (int b = 0; b < n; b++) s->p[b] *= -sign;
        s->p[n] = sign;
        const int told = move(s, n + 1, INFINITY, &taken, &by);
        if (told == UNBOUNDED || told == SETTLED) return 0;
        memset(s->g, 0, doubles(n));
        s->exchanges++;
        if (leads ? told == BLOCKED_BY_BOUND && by == j : told == BLOCKED_BY_ROW && by == k) return 2;
        if (!leave(s, told, by)) return 0;
        if (leads && s->leader[j] < 0) return 2;
        if (leads || s->leader[j] == k) k = s->leader[j];
    }
    s->exchanges++;
    return 1;
}

/* Let a row join, or the bound of its group be left if it is the leader, and go on to the next minimum; 0 on failure. */
static int join(Face *s, int k, double slope) {
    const int told = insert(s, k, slope);
    if (told != 1) return told;
    memset(s->g, 0, doubles(s->n));
    s->g[s->n - 1] = slope;
    return descend(s);
}

/* The factor of the directions computed anew; 0 on failure. */
static int refactor(Face *s) {
    const int n = s->n;
    int *rows = malloc(ints(n + 1)), done = rows != NULL;
    if (!done) return 0;
    memcpy(rows, s->row, ints(n));
    s->n = 0;
    for (int b = 0; b < n && done; b++) done = append(s, rows[b]);
    free(rows);
    return done;
}

/* W += x y' for W (dx, dz) */
VECTORIZED static void add_outer(int dx, int dz, const double *x, const double *restrict y, double *restrict W) {
    for (int d = 0; d < dx; d++, W += dz)
        for (int e = 0; e < dz; e++) W[e] += x[d] * y[e];
}

/* W, and by how much it misses every row, slacks of squared hinges included. */
static void look(Face *s) {
    const int dx = s->dx, dz = s->dz;
    memset(s->sums, 0, doubles((Size)s->q * dx));
    memset(s->slots, 0, doubles(s->m));
    for (int k = 0; k < s->m; k++) {
        if (s->lam[k] == 0.0) continue;
        add_multiple(dx, s->lam[k], s->a + (Size)k * dx, s->sums + (Size)s->owner[k] * dx);
        s->slots[s->slot[k]] += s->lam[k];
    }
    memset(s->W, 0, doubles((Size)dx * dz));
    for (int i = 0; i < s->q; i++) add_outer(dx, dz, s->sums + (Size)i * dx, s->queries + (Size)i * dz, s->W);
    for (int k = 0, end; k < s->m; k = end) { /* the rows of one query */
        const int i = s->owner[k];
        for (end = k + 1; end < s->m && s->owner[end] == i; end++) continue;
        products(dx, dz, s->W, s->queries + (Size)i * dz, s->key);
        products(end - k, dx, s->a + (Size)k * dx, s->key, s->misses + k);
    }
    for (int k = 0; k < s->m; k++) s->misses[k] = s->rhs[k] - s->misses[k] - s->t * s->slots[s->slot[k]];
    memcpy(s->base, s->lam, doubles(s->m));
    s->moved = 0;
}

/* out = sum_l (lam_l - base_l) between_l a_l: what the last moves have added to the products with a query */
VECTORIZED static void sum_moves(int m, int dx, const double *lam, const double *base, const double *between,
                                 const int *owner, const double *a, double *restrict out) {
    for (int d = 0; d < dx; d++) out[d] = 0.0;
    for (int l = 0; l < m; l++) {
        if (lam[l] == base[l]) continue;
        const double factor = (lam[l] - base[l]) * between[owner[l]], *row = a + (Size)l * dx;
        for (int d = 0; d < dx; d++) out[d] += factor * row[d];
    }
}

/* Slope along the direction of a row, at the multipliers as they are now. */
static double slope_now(Face *s, int k) {
    const int lead = s->leader[s->group[k]];
    double slope = s->misses[k] - (lead >= 0 && lead != k ? s->misses[lead] : 0.0), value;
    if (!s->moved) return slope;
    write_direction(s, k, s->d);
    sum_moves(s->m, s->dx, s->lam, s->base, s->between + (Size)s->owner[k] * s->q, s->owner, s->a, s->key);
    products(1, s->dx, s->d, s->key, &value);
    for (int l = 0; l < s->m && s->t > 0.0; l++)
        if (s->slot[l] == s->slot[k]) slope -= s->t * (s->lam[l] - s->base[l]);
    return slope - value;
}

static int by_size(const void *x, const void *y) {
    const double one = ((const Candidate *)x)->by, other = ((const Candidate *)y)->by;
    return (one < other) - (one > other);
}

/* Of every group what is missed most: a row outside the face, or a bound that holds the sum back from falling. */
static int missed(const Face *s, Candidate *out) {
    int count = 0;
    for (int j = 0; j < s->groups; j++) {
        const int lead = s->leader[j];
        const double level = lead < 0 ? 0.0 : s->misses[lead];
        Candidate best = {OUTSIDE * s->scale, j, -2};
        for (int k = s->first[j]; k < s->first[j + 1]; k++)
            if (s->place[k] < 0 && k != lead && s->misses[k] - level > best.by) best.by = s->misses[k] - level, best.row = k;
        if (lead >= 0 && s->own[j] < 0 && -level > best.by) best.by = -level, best.row = -1;
        if (best.row > -2) out[count++] = best;
    }
    qsort(out, (size_t)count, sizeof(Candidate), by_size);
    return count;
}

/* Exchanges until the optimality conditions hold; 0 on failure. */
static int settle(Face *s, Candidate *candidates) {
    for (int polished = 0;;) {
        double off = 0.0;
        look(s);
        for (int b = 0; b < s->n; b++) {
            const int k = s->row[b], lead = s->leader[s->group[k]];
            s->g[b] = s->misses[k] - (lead >= 0 && lead != k ? s->misses[lead] : 0.0);
            off = larger(off, fabs(s->g[b]));
        }
        if (off > MISSED * s->scale && polished < ACCEPT) {
            if (polished == REFRESH && !refactor(s)) return 0;
            for (int b = 0; b < s->n && polished == REFRESH; b++) {
                const int k = s->row[b], lead = s->leader[s->group[k]];
                s->g[b] = s->misses[k] - (lead >= 0 && lead != k ? s->misses[lead] : 0.0);
            }
            polished++;
            if (!descend(s)) return 0;
            continue;
        }
        const int count = missed(s, candidates);
        if (!count) return 1;
        polished = 0;
        for (int i = 0; i < count && candidates[i].by >= WORTH * candidates[0].by; i++) {
            const int j = candidates[i].group, lead = s->leader[j], leaves = candidates[i].row < 0;
            const int k = leaves ? lead : candidates[i].row;
            if (leaves ? lead < 0 || s->own[j] >= 0 : s->place[k] >= 0 || k == lead) continue;
            const double slope = slope_now(s, k);
            if (!((leaves ? -slope : slope) > OUTSIDE * s->scale)) continue;
            if (!join(s, k, slope) || s->exchanges > s->limit || *s->stop) return 0;
        }
    }
}

/* Take over multipliers of the first C: which of them are positive and which sums at their bound. 0 on failure. */
static int adopt(Face *s, const double *start) {
    double largest = 0.0;
    for (int k = 0; k < s->m; k++) largest = larger(largest, start[k]);
    for (int k = 0; k < s->m; k++) s->lam[k] = start[k] > POSITIVE * largest ? start[k] : 0.0;
    for (int j = 0; j < s->groups; j++) {
        double load = 0.0;
        for (int k = s->first[j]; k < s->first[j + 1]; k++) {
            load += s->lam[k];
            if (s->lam[k] > 0.0 && (s->leader[j] < 0 || s->lam[k] > s->lam[s->leader[j]])) s->leader[j] = k;
        }
        const int tight = load > s->C * (1.0 - REACHED);
        for (int k = s->first[j]; k < s->first[j + 1] && tight; k++) s->lam[k] *= s->C / load;
        s->load[j] = tight ? s->C : load;
    }
    look(s);
    for (int j = 0; j < s->groups; j++) {
        const int lead = s->leader[j];
        if (lead >= 0 && s->own[j] < 0 && s->load[j] < s->C && !insert(s, lead, s->misses[lead])) return 0;
        for (int k = s->first[j]; k < s->first[j + 1]; k++) {
            const int now = s->leader[j];
            if (!(s->lam[k] > 0.0) || k == now || s->place[k] >= 0) continue;
            if (!insert(s, k, s->misses[k] - (now < 0 ? 0.0 : s->misses[now]))) return 0;
        }
    }
    return 1;
}

/* Multipliers and bounds of the last C for the next one. 0 on failure. */
static int next_penalty(Face *s, int loss, double C, double before) {
    if (loss == SQUARED) {
        s->t = 0.5 / C;
        return refactor(s);
    }
    s->C = C;
    for (int j = 0; j < s->groups; j++) {
        if (s->leader[j] < 0 || s->own[j] >= 0) continue; /* the sum is not at its bound */
        for (int k = s->first[j]; k < s->first[j + 1]; k++) s->lam[k] *= C / before;
        s->load[j] = C;
    }
    return 1;
}

static void number_rows(Face *s, const int64_t *owner, int loss, int by_row) {
    const int alone = by_row || loss == SQUARED;
    s->groups = alone ? s->m : s->q;
    for (int j = 0; j <= s->groups; j++) s->first[j] = alone ? j : 0;
    for (int k = 0; k < s->m; k++) {
        s->owner[k] = (int)owner[k];
        s->group[k] = alone ? k : s->owner[k];
        s->slot[k] = by_row ? k : s->owner[k];
        s->place[k] = -1;
        if (!alone) s->first[s->owner[k] + 1] = k + 1;
    }
    for (int j = 0; j < s->groups; j++) {
        s->leader[j] = s->own[j] = -1;
        if (s->first[j + 1] < s->first[j]) s->first[j + 1] = s->first[j]; /* a query without rows */
    }
}

static void *face_memory(Face *s, Candidate **candidates) {
    const Size m = s->m, q = s->q, dx = s->dx, n = s->most, groups = m > q ? m : q;
    const Size reals = q * q + n * n + n * dx + 5 * m + groups + 3 * (n + 1) + 2 * dx + dx * s->dz + q * dx;
    const Size whole = 4 * m + 3 * groups + 1 + 2 * (n + 1);
    const size_t listed = sizeof(Candidate) * (size_t)groups;
    double *memory = calloc(1, listed + doubles(reals) + ints(whole));
    if (!memory) return NULL;
    *candidates = (Candidate *)memory;
    s->between = (double *)(*candidates + groups);
    s->L = s->between + q * q;
    s->D = s->L + n * n;
    s->lam = s->D + n * dx;
    s->base = s->lam + m;
    s->change = s->base + m;
    s->slots = s->change + m;
    s->misses = s->slots + m;
    s->load = s->misses + m;
    s->g = s->load + groups;
    s->p = s->g + n + 1;
    s->y = s->p + n + 1;
    s->d = s->y + n + 1;
    s->key = s->d + dx;
    s->W = s->key + dx;
    s->sums = s->W + dx * s->dz;
    s->owner = (int *)(s->sums + q * dx);
    s->group = s->owner + m;
    s->slot = s->group + m;
    s->place = s->slot + m;
    s->leader = s->place + m;
    s->own = s->leader + groups;
    s->first = s->own + groups;
    s->row = s->first + groups + 1;
    s->other = s->row + n + 1;
    return memory;
}

/* Left factors (m, dx), queries (q, dz), the query of each row (m,) in rising order, right-hand sides (m,), and C (count,) in
   rising order; multipliers (m,) to begin with, or NULL. `most` directions, `limit` exchanges for each C. Writes multipliers (count, m), W (count, dx, dz) and
   exchanges (count,). Returns how many C are done, the first ones, or -1 where memory is short. */
EXPORT int attsvm_exchanges(int loss, int by_row, int count, int m, int dx, int q, int dz, int most, const double *a,
                            const double *queries, const int64_t *owner, const double *rhs, const double *C,
                            const double *start, double *lam, double *W, int *exchanges, int limit, const int *stop) {
    Face s = {.m = m, .dx = dx, .q = q, .dz = dz, .most = most, .a = a, .queries = queries, .rhs = rhs, .C = INFINITY};
    Candidate *candidates;
    void *memory = face_memory(&s, &candidates);
    if (!memory) return -1;
    s.stop = stop;
    number_rows(&s, owner, loss, by_row);
    for (int i = 0; i < q; i++) products(q, dz, queries, queries + (Size)i * dz, s.between + (Size)i * q);
    for (int k = 0; k < m; k++) s.scale = larger(s.scale, fabs(rhs[k]));
    int done = 0;
    for (; done < count; done++) {
        s.exchanges = 0, s.limit = limit;
        if (!next_penalty(&s, loss, C[done], done ? C[done - 1] : C[0])) break;
        if ((!done && start && !adopt(&s, start)) || !settle(&s, candidates)) break;
        memcpy(lam + (Size)done * m, s.lam, doubles(m));
        memcpy(W + (Size)done * dx * dz, s.W, doubles((Size)dx * dz));
        exchanges[done] = (int)s.exchanges;
    }
    free(memory);
    return done;
}
