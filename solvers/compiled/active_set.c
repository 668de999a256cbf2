/* Least Frobenius norms of problems with few rows, one after the other: block principal pivoting on the Gram matrix.

     minimize  1/2 |W|^2  subject to  a_k' W b_k >= rhs_k  (= rhs_k on equality rows)

   With unit rows, Gram matrix G and right-hand sides c (the largest of size 1) the multipliers minimize 1/2 x'Gx - c'x over
   x >= 0, free on equality rows. The method is that of `solve_small` in frobenius/pivoting.py, which says more about it: a
   few accelerated projected gradient steps in single precision guess the active rows, the equations of these are solved,
   and every row on the wrong side changes sides, one at a time where that stalls (Murty's rule). Dependent active rows
   leave a problem unsettled.

   Soft margins: rows of a group j (a query, or a row alone) may be violated by w_k eta_j, w_k the inverse norm of row k. A
   squared hinge adds w_k w_l / (2 C) to the products of rows of one group, and nothing else changes. A hinge bounds the
   multipliers of a group, sum of w_k x_k <= C. Its method is Newton's for x = P(x + c - Gx), where P projects on what is
   admissible: it tells which rows have a multiplier and which groups are at their bound. On these the equations are solved,
   with one row of each group at its bound, the leader, standing for what the others leave of the bound.

   For so few rows loops without calls are faster than LAPACK. They run along rows of G and add several multiples of
   them at once, so that a compiler can use vector instructions without changing the order of a sum. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "steps.h"

/* As in pivoting.py: rounds without progress before single exchanges, gradient steps of the guess, and the squared Cholesky
   pivot of unit rows below which rows count as dependent. */
#define PATIENCE 3
#define GUESS_STEPS 22
#define PIVOT 1e-11
/* Gradient steps between two rounds of a soft margin that stalls, twice as many each time, and how often. */
#define RESTART_STEPS 100
#define RESTARTS 3
/* Rounds from the face of another C. */
#define AGAIN_ROUNDS 8

typedef struct {
    int m, dx, q, dz;
    const double *a, *queries, *rhs; /* rhs: NULL for 1 everywhere */
    const int64_t *owner;
    const unsigned char *equality; /* NULL for none */
    double *left, *between;        /* unit left factors by columns (dx, m), products of unit queries (q, q) */
    double *norms, *lengths;       /* of rows (m,) and queries (q,); 0 for a row that does not exist */
    double *G, *c, *x, *slack, *factor, *weights, *sums;
    double scale; /* W of the unit rows times this is W */
    float *G4, *c4, *x4, *floor4, *point, *weights4, *product;
    int *rows;
    unsigned char *active, *wanted;
    /* Soft margins only: the loss, groups and the group of each row, C in units of the unit rows; rows by group, those of
       group j from begin[j]; inverse norms (m,); whether a group is at its bound, now and next; its leader. */
    int loss, groups;
    double C;
    int *group, *order, *begin, *leader;
    double *weight, *target;
    unsigned char *tight, *next_tight;
} Rows;

/* Entries of a row in single precision: whole vectors, the rest of them 0. */
static int padded(int m) { return (m + 15) & ~15; }

/* out = sum_i weights_i G[rows_i], where rows of G have m entries */
#define DEFINE_COMBINE(NAME, REAL)                                                                            \
    INLINE void NAME(int m, int count, const int *rows, const REAL *weights, const REAL *G, REAL *restrict out) { \
        memset(out, 0, sizeof(REAL) * (size_t)m);                                                             \
        int i = 0;                                                                                            \
        for (; i + 4 <= count; i += 4) {                                                                      \
            const REAL *p = G + (Size)rows[i] * m, *q = G + (Size)rows[i + 1] * m;                            \
            const REAL *r = G + (Size)rows[i + 2] * m, *s = G + (Size)rows[i + 3] * m;                        \
            const REAL u = weights[i], v = weights[i + 1], w = weights[i + 2], z = weights[i + 3];            \
            for (int j = 0; j < m; j++) out[j] += (u * p[j] + v * q[j]) + (w * r[j] + z * s[j]);              \
        }                                                                                                     \
        for (; i < count; i++) {                                                                              \
            const REAL *p = G + (Size)rows[i] * m, u = weights[i];                                            \
            for (int j = 0; j < m; j++) out[j] += u * p[j];                                                   \
        }                                                                                                     \
    }

DEFINE_COMBINE(combine, double)
DEFINE_COMBINE(combine4, float)

/* Norms of the rows, unit left factors and right-hand sides. Squares stay in range: Python scales other problems first. */
static void read_rows(Rows *s) {
    const int m = s->m, dx = s->dx, dz = s->dz;
    for (int k = 0; k < s->q; k++) s->lengths[k] = sqrt(dot(dz, s->queries + (Size)k * dz, s->queries + (Size)k * dz));
    for (int i = 0; i < s->q; i++)
        for (int j = 0; j <= i; j++) {
            const double size = s->lengths[i] * s->lengths[j];
            const double product = dot(dz, s->queries + (Size)i * dz, s->queries + (Size)j * dz);
            s->between[(Size)i * s->q + j] = s->between[(Size)j * s->q + i] = size > 0.0 ? product / size : 0.0;
        }
    double largest = 0.0;
    for (int k = 0; k < m; k++) {
        const double *a = s->a + (Size)k * dx, length = sqrt(dot(dx, a, a));
        const double inverse = length > 0.0 ? 1.0 / length : 0.0;
        for (int d = 0; d < dx; d++) s->left[(Size)d * m + k] = a[d] * inverse;
        s->norms[k] = length * s->lengths[s->owner[k]];
        s->c[k] = s->norms[k] > 0.0 ? (s->rhs ? s->rhs[k] : 1.0) / s->norms[k] : 0.0;
        if (fabs(s->c[k]) > largest) largest = fabs(s->c[k]);
    }
    s->scale = largest > 0.0 ? largest : 1.0;
    for (int k = 0; k < m; k++) s->c[k] /= s->scale;
}

VECTORIZED static void form_gram(Rows *s) {
    const int m = s->m, dx = s->dx;
    for (int i = 0; i < m; i++) {
        double *restrict out = s->G + (Size)i * m;
        const double *between = s->between + s->owner[i] * s->q;
        memset(out, 0, doubles(m));
        int d = 0;
        for (; d + 4 <= dx; d += 4) {
            const double *p = s->left + (Size)d * m, *q = p + m, *r = q + m, *t = r + m;
            const double u = p[i], v = q[i], w = r[i], z = t[i];
            for (int j = i; j < m; j++) out[j] += (u * p[j] + v * q[j]) + (w * r[j] + z * t[j]);
        }
        for (; d < dx; d++) {
            const double *p = s->left + (Size)d * m, u = p[i];
            for (int j = i; j < m; j++) out[j] += u * p[j];
        }
        for (int j = i + 1; j < m; j++) out[j] *= between[s->owner[j]];
        out[i] = 1.0; /* also of a row that does not exist: its multiplier is 0 */
        for (int j = 0; j < i; j++) out[j] = s->G[(Size)j * m + i];
    }
}

static int is_free(const Rows *s, int k) { return s->equality && s->equality[k] && s->norms[k] > 0.0; }

/* out = G x in single precision */
INLINE void times4(Rows *s, const float *x, float *out) {
    int count = 0;
    for (int k = 0; k < s->m; k++) { /* without a branch: which rows are 0 cannot be predicted */
        s->rows[count] = k, s->weights4[count] = x[k];
        count += x[k] != 0.0f;
    }
    combine4(padded(s->m), count, s->rows, s->weights4, s->G4, out);
}

static double square4(int m, const float *x) {
    double sum = 0.0;
    for (int k = 0; k < m; k++) sum += (double)x[k] * x[k];
    return sum;
}

/* Active rows from a few accelerated projected gradient steps. */
VECTORIZED static void guess(Rows *s) {
    const int m = s->m, wide = padded(m);
    float *restrict c = s->c4, *restrict x = s->x4, *restrict point = s->point, *restrict product = s->product;
    float *restrict floor = s->floor4;
    for (int i = 0; i < m; i++) {
        const double *from = s->G + (Size)i * m;
        float *restrict to = s->G4 + (Size)i * wide;
        for (int j = 0; j < m; j++) to[j] = (float)from[j];
        memset(to + m, 0, sizeof(float) * (size_t)(wide - m));
    }
    for (int k = 0; k < m; k++) {
        c[k] = (float)s->c[k], floor[k] = is_free(s, k) ? -INFINITY : 0.0f;
        x[k] = 0.0f;
    }
    times4(s, c, point);
    const double first = square4(m, point);
    times4(s, point, product);
    const double second = square4(m, product);
    memset(point, 0, sizeof(float) * (size_t)m);
    const float step = (float)(0.8 * sqrt(first / (second > 1e-30 ? second : 1e-30)));
    for (int round = 0; round < GUESS_STEPS; round++) {
        const float momentum = (float)round / ((float)round + 3.0f);
        times4(s, point, product);
        for (int k = 0; k < m; k++) {
            const float to = point[k] + step * (c[k] - product[k]), moved = to > floor[k] ? to : floor[k];
            point[k] = moved + momentum * (moved - x[k]);
            x[k] = moved;
        }
    }
    for (int k = 0; k < m; k++) s->active[k] = x[k] > 0.0f;
}

/* x of the equations of the active rows by Gaussian elimination, which finds the squared Cholesky pivots; 0 for dependent
   rows. The right-hand side is one more column. */
VECTORIZED static int solve_active(Rows *s) {
    const int m = s->m;
    int n = 0;
    for (int k = 0; k < m; k++) {
        s->rows[n] = k;
        n += s->active[k];
    }
    double *F = s->factor, *inverse = s->slack, *share = s->weights;
    const Size wide = n + 1;
    for (int k = 0; k < n; k++) {
        const double *row = s->G + (Size)s->rows[k] * m;
        double *restrict out = F + k * wide;
        for (int j = k; j < n; j++) out[j] = row[s->rows[j]];
        out[n] = s->c[s->rows[k]];
        for (int i = 0; i < k; i++) share[i] = F[i * wide + k] * inverse[i];
        int i = 0;
        for (; i + 4 <= k; i += 4) {
            const double *p = F + i * wide, *q = p + wide, *r = q + wide, *t = r + wide;
            const double u = share[i], v = share[i + 1], w = share[i + 2], z = share[i + 3];
            for (int j = k; j <= n; j++) out[j] -= (u * p[j] + v * q[j]) + (w * r[j] + z * t[j]);
        }
        for (; i < k; i++) {
            const double *p = F + i * wide, u = share[i];
            for (int j = k; j <= n; j++) out[j] -= u * p[j];
        }
        if (!(out[k] > PIVOT)) return 0;
        inverse[k] = 1.0 / out[k];
    }
    double *x = s->weights;
    for (int i = n - 1; i >= 0; i--)
        x[i] = (F[i * wide + n] - dot(n - 1 - i, F + i * wide + i + 1, x + i + 1)) / F[i * wide + i];
    memset(s->x, 0, doubles(m));
    for (int i = 0; i < n; i++) s->x[s->rows[i]] = x[i];
    combine(m, n, s->rows, x, s->G, s->slack);
    return 1;
}

/* Rounds of pivoting from the active rows; negative where they end without every row on its side. */
static int pivot(Rows *s, int most) {
    const int m = s->m;
    int fewest = m + 1, stalled = 0;
    for (int round = 1; round <= most; round++) {
        if (!solve_active(s)) return -round;
        /* Rounding grows with the multipliers and these with the square of the norm. */
        const double rounding = fmax(1e-14, 1e-15 * sqrt(dot(m, s->x, s->x)));
        int misplaced = 0, last = 0;
        for (int k = 0; k < m; k++) {
            s->wanted[k] = is_free(s, k) || (s->c[k] - s->slack[k]) + s->x[k] > rounding;
            if (s->wanted[k] != s->active[k]) misplaced++, last = k;
        }
        if (!misplaced) return round;
        stalled = misplaced < fewest ? 0 : stalled + 1;
        if (misplaced < fewest) fewest = misplaced;
        if (stalled > PATIENCE)
            s->active[last] ^= 1;
        else
            memcpy(s->active, s->wanted, (size_t)m);
    }
    return -most;
}

/* -- soft margins ------------------------------------------------------------------------------------------------ */

/* Groups, weights and the penalty in units of the unit rows; squared hinges enter the Gram matrix. Rows that do not exist
   are in no group. */
static void read_penalty(Rows *s, int by_row, double C) {
    const int m = s->m, hinge = s->loss == HINGE;
    s->groups = by_row ? m : s->q;
    s->C = hinge ? C / s->scale : C;
    memset(s->begin, 0, ints(s->groups + 2));
    for (int k = 0; k < m; k++) {
        s->group[k] = by_row ? k : (int)s->owner[k];
        s->weight[k] = s->norms[k] > 0.0 ? 1.0 / s->norms[k] : 0.0;
        if (s->norms[k] > 0.0) s->begin[s->group[k] + 2]++;
    }
    for (int j = 0; j < s->groups; j++) s->begin[j + 2] += s->begin[j + 1];
    for (int k = 0; k < m; k++)
        if (s->norms[k] > 0.0) s->order[s->begin[s->group[k] + 1]++] = k;
    for (int j = 0; j < s->groups && !hinge; j++)
        for (int i = s->begin[j]; i < s->begin[j + 1]; i++) {
            const int k = s->order[i];
            double *row = s->G + (Size)k * m;
            for (int l = s->begin[j]; l < s->begin[j + 1]; l++)
                row[s->order[l]] += 0.5 * s->weight[k] * s->weight[s->order[l]] / C;
        }
}

/* Project u on the admissible multipliers: which rows are positive and which groups at their bound; x, unless NULL. */
static void project(const Rows *s, const double *u, double rounding, unsigned char *positive, unsigned char *tight,
                    double *x) {
    for (int k = 0; k < s->m; k++) positive[k] = 0;
    if (x) memset(x, 0, doubles(s->m));
    for (int j = 0; j < s->groups; j++) {
        const int *rows = s->order + s->begin[j], count = s->begin[j + 1] - s->begin[j];
        double load = 0.0, square = 0.0, level = 0.0;
        for (int i = 0; i < count; i++) {
            const int k = rows[i];
            if (!(u[k] > rounding)) continue;
            positive[k] = 1;
            load += s->weight[k] * u[k], square += s->weight[k] * s->weight[k];
        }
        tight[j] = load > s->C;
        for (int fallen = tight[j]; fallen;) { /* rows fall below a rising level until the bound is met */
            level = (load - s->C) / square;
            fallen = 0;
            for (int i = 0; i < count; i++) {
                const int k = rows[i];
                if (!positive[k] || u[k] > level * s->weight[k]) continue;
                positive[k] = 0, fallen = 1;
                load -= s->weight[k] * u[k], square -= s->weight[k] * s->weight[k];
            }
            if (!(square > 0.0)) break; /* rounding alone leaves a group without a row */
        }
        if (tight[j] && !(square > 0.0)) tight[j] = 0;
        for (int i = 0; i < count && x; i++)
            if (positive[rows[i]]) x[rows[i]] = u[rows[i]] - level * s->weight[rows[i]];
    }
}

/* Accelerated projected gradient steps from admissible x, whose support and bounds are the guess. */
VECTORIZED static void approach(Rows *s, int steps) {
    const int m = s->m;
    double *point = s->target, *product = s->slack, *moved = s->weights, *was = s->factor, first = 0.0, second = 0.0;
    int count = 0;
    for (int k = 0; k < m; k++) s->rows[k] = k;
    combine(m, m, s->rows, s->c, s->G, point);
    first = dot(m, point, point);
    combine(m, m, s->rows, point, s->G, product);
    second = dot(m, product, product);
    const double step = 0.8 * sqrt(first / fmax(second, 1e-300));
    memcpy(point, s->x, doubles(m));
    memcpy(was, s->x, doubles(m));
    for (int round = 0; round < steps; round++) {
        const double momentum = round / (round + 3.0);
        count = 0;
        for (int k = 0; k < m; k++) {
            s->rows[count] = k, moved[count] = point[k];
            count += point[k] != 0.0;
        }
        combine(m, count, s->rows, moved, s->G, product);
        for (int k = 0; k < m; k++) moved[k] = point[k] + step * (s->c[k] - product[k]);
        project(s, moved, 0.0, s->active, s->tight, s->x);
        for (int k = 0; k < m; k++) {
            point[k] = s->x[k] + momentum * (s->x[k] - was[k]);
            was[k] = s->x[k];
        }
    }
}

/* The row of each group at its bound that stands for the others: the one of the largest weight. */
static void choose_leaders(Rows *s) {
    for (int j = 0; j < s->groups; j++) {
        s->leader[j] = -1;
        for (int i = s->begin[j]; i < s->begin[j + 1] && s->tight[j]; i++) {
            const int k = s->order[i];
            if (s->active[k] && (s->leader[j] < 0 || s->weight[k] > s->weight[s->leader[j]])) s->leader[j] = k;
        }
        if (s->leader[j] < 0) s->tight[j] = 0;
    }
}

/* x of the equations of the face and slack = G x; 0 for dependent rows. As `solve_active`, on rows less multiples of their
   leaders. */
VECTORIZED static int solve_face(Rows *s) {
    const int m = s->m;
    double *F = s->factor, *inverse = s->slack, *share = s->weights, *target = s->target;
    int n = 0, count = 0;
    choose_leaders(s);
    for (int j = 0; j < s->groups; j++) {
        if (s->leader[j] < 0) continue;
        s->rows[count] = s->leader[j], share[count++] = s->C / s->weight[s->leader[j]];
    }
    combine(m, count, s->rows, share, s->G, target); /* what the leaders alone give */
    for (int k = 0; k < m; k++) target[k] = s->c[k] - target[k];
    for (int k = 0; k < m; k++) {
        s->rows[n] = k;
        n += s->active[k] && s->leader[s->group[k]] != k;
    }
    const int wide = n + 1;
    for (int k = 0; k < n; k++) {
        const int row = s->rows[k], lead = s->leader[s->group[row]];
        const double *own = s->G + (Size)row * m, *other = lead < 0 ? NULL : s->G + (Size)lead * m;
        const double ratio = lead < 0 ? 0.0 : s->weight[row] / s->weight[lead];
        double *restrict out = F + (Size)k * wide;
        for (int j = k; j < n; j++) {
            const int column = s->rows[j], its = s->leader[s->group[column]];
            double value = own[column] - (other ? ratio * other[column] : 0.0);
            if (its >= 0) value -= s->weight[column] / s->weight[its] * (own[its] - (other ? ratio * other[its] : 0.0));
            out[j] = value;
        }
        out[n] = target[row] - (other ? ratio * target[lead] : 0.0);
        const double size = out[k];
        for (int i = 0; i < k; i++) share[i] = F[(Size)i * wide + k] * inverse[i];
        int i = 0;
        for (; i + 4 <= k; i += 4) {
            const double *p = F + (Size)i * wide, *q = p + wide, *r = q + wide, *t = r + wide;
            const double u = share[i], v = share[i + 1], w = share[i + 2], z = share[i + 3];
            for (int j = k; j <= n; j++) out[j] -= (u * p[j] + v * q[j]) + (w * r[j] + z * t[j]);
        }
        for (; i < k; i++) {
            const double *p = F + (Size)i * wide, u = share[i];
            for (int j = k; j <= n; j++) out[j] -= u * p[j];
        }
        if (!(out[k] > PIVOT * size)) return 0;
        inverse[k] = 1.0 / out[k];
    }
    double *y = s->weights;
    for (int i = n - 1; i >= 0; i--)
        y[i] = (F[(Size)i * wide + n] - dot(n - 1 - i, F + (Size)i * wide + i + 1, y + i + 1)) * inverse[i];
    memset(s->x, 0, doubles(m));
    for (int j = 0; j < s->groups; j++)
        if (s->leader[j] >= 0) s->x[s->leader[j]] = s->C / s->weight[s->leader[j]];
    for (int i = 0; i < n; i++) {
        const int k = s->rows[i], lead = s->leader[s->group[k]];
        s->x[k] = y[i];
        if (lead >= 0) s->x[lead] -= s->weight[k] / s->weight[lead] * y[i];
    }
    count = 0;
    for (int k = 0; k < m; k++) {
        s->rows[count] = k, y[count] = s->x[k];
        count += s->x[k] != 0.0;
    }
    combine(m, count, s->rows, y, s->G, s->slack);
    return 1;
}

/* Rounds of Newton's method from a face; negative where they end without one that is its own projection. Where they stall,
   gradient steps find another face. */
static int pivot_hinge(Rows *s, int most) {
    const int m = s->m;
    int fewest = m + 1, stalled = 0, restarts = 0;
    for (int round = 1; round <= most; round++) {
        if (!solve_face(s)) return -round;
        const double rounding = fmax(1e-14, 1e-15 * sqrt(dot(m, s->x, s->x)));
        int misplaced = 0;
        for (int k = 0; k < m; k++) s->target[k] = s->x[k] + (s->c[k] - s->slack[k]);
        project(s, s->target, rounding, s->wanted, s->next_tight, NULL);
        for (int k = 0; k < m; k++) misplaced += s->wanted[k] != s->active[k];
        for (int j = 0; j < s->groups; j++) misplaced += s->next_tight[j] != s->tight[j];
        if (!misplaced) return round;
        stalled = misplaced < fewest ? 0 : stalled + 1;
        if (misplaced < fewest) fewest = misplaced;
        if (stalled > PATIENCE + 2) {
            if (restarts == RESTARTS) return -round;
            project(s, s->x, 0.0, s->active, s->tight, s->weights);
            memcpy(s->x, s->weights, doubles(m));
            approach(s, RESTART_STEPS << restarts++);
            fewest = m + 1, stalled = 0;
        } else {
            memcpy(s->active, s->wanted, (size_t)m);
            memcpy(s->tight, s->next_tight, (size_t)s->groups);
        }
    }
    return -most;
}

/* Whether `again` times the last x is its own projection for this C, up to rounding: then x is that. */
VECTORIZED static int holds(Rows *s, double again) {
    const int m = s->m;
    int count = 0;
    double most = 1.0, off = 0.0;
    for (int k = 0; k < m; k++) {
        s->rows[count] = k, s->weights[count] = again * s->x[k];
        count += s->x[k] != 0.0;
        most = larger(most, again * s->x[k]);
    }
    combine(m, count, s->rows, s->weights, s->G, s->slack);
    for (int k = 0; k < m; k++) s->target[k] = again * s->x[k] + (s->c[k] - s->slack[k]);
    project(s, s->target, 1e-14 * most, s->wanted, s->next_tight, s->weights);
    for (int k = 0; k < m; k++) off = larger(off, fabs(s->weights[k] - again * s->x[k]));
    if (!(off <= 1e-12 * most)) return 0;
    for (int k = 0; k < m; k++) s->x[k] *= again;
    return 1;
}

/* Rounds of pivoting of a soft margin, from multipliers of the rows as they are or from a guess; negative if unsettled. The
   last face, of a C that was smaller by the factor `again`, is tried before a guess. */
static int solve_soft(Rows *s, const double *start, double again, int most) {
    const int m = s->m, hinge = s->loss == HINGE;
    int taken = 0;
    if (again > 0.0) {
        if (hinge && (holds(s, 1.0) || holds(s, again))) return 1;
        taken = (hinge ? pivot_hinge : pivot)(s, AGAIN_ROUNDS < most ? AGAIN_ROUNDS : most);
        if (taken > 0) return taken;
    }
    memset(s->x, 0, doubles(m));
    if (hinge) {
        if (start) {
            for (int k = 0; k < m; k++) s->target[k] = start[k] * s->norms[k] / s->scale;
            project(s, s->target, 0.0, s->active, s->tight, s->x);
        }
        approach(s, GUESS_STEPS);
    } else if (start) {
        for (int k = 0; k < m; k++) s->active[k] = start[k] > 0.0;
    } else {
        guess(s);
    }
    for (int k = 0; k < m; k++) s->active[k] = s->norms[k] > 0.0 && s->active[k];
    return (hinge ? pivot_hinge : pivot)(s, most);
}

/* -- results ------------------------------------------------------------------------------------------------------- */

/* Multipliers of the rows as they are, without the negative ones that a last round may leave; the largest of unit rows. */
static double write_multipliers(const Rows *s, double *out) {
    double peak = 0.0;
    for (int k = 0; k < s->m; k++) {
        const double x = s->x[k] < 0.0 && !is_free(s, k) ? 0.0 : s->x[k];
        out[k] = s->norms[k] > 0.0 ? x / s->norms[k] * s->scale : 0.0;
        peak = larger(peak, fabs(x));
    }
    return peak;
}

/* W = sum_k lam_k a_k b_k': first the sum over the rows of each query. */
static void write_matrix(const Rows *s, const double *lam, double *restrict W) {
    const int dx = s->dx, dz = s->dz;
    memset(s->sums, 0, doubles((Size)s->q * dx));
    for (int k = 0; k < s->m; k++) {
        if (lam[k] == 0.0) continue;
        double *restrict sum = s->sums + s->owner[k] * dx;
        const double *a = s->a + (Size)k * dx;
        for (int d = 0; d < dx; d++) sum[d] += lam[k] * a[d];
    }
    memset(W, 0, doubles((Size)dx * dz));
    for (int i = 0; i < s->q; i++)
        for (int d = 0; d < dx; d++) {
            const double weight = s->sums[(Size)i * dx + d], *b = s->queries + (Size)i * dz;
            for (int e = 0; e < dz; e++) W[(Size)d * dz + e] += weight * b[e];
        }
}

static void *rows_memory(Rows *s) {
    const Size m = s->m, q = s->q, dx = s->dx;
    const Size groups = s->loss == HARD ? 0 : m > q ? m : q, soft = s->loss == HARD ? 0 : m;
    const Size reals = 2 * m * m + m * dx + q * q + q + q * dx + 6 * m + 2 * soft, wide = padded(s->m), singles = m * wide + 4 * m + 2 * wide;
    const Size whole = m + 2 * soft + 2 * groups + 2;
    double *memory =
        malloc(doubles(reals) + sizeof(float) * (size_t)singles + ints(whole) + 2 * (size_t)m + 2 * (size_t)groups);
    if (!memory) return NULL;
    s->G = memory;
    s->factor = s->G + m * m; /* with a column for the right-hand side */
    s->left = s->factor + m * (m + 1);
    s->between = s->left + m * dx;
    s->lengths = s->between + q * q;
    s->sums = s->lengths + q;
    s->norms = s->sums + q * dx;
    s->c = s->norms + m;
    s->x = s->c + m;
    s->slack = s->x + m;
    s->weights = s->slack + m;
    s->weight = s->weights + m;
    s->target = s->weight + soft;
    s->G4 = (float *)(s->target + soft);
    s->point = s->G4 + m * wide;
    s->product = s->point + wide;
    s->c4 = s->product + wide;
    s->x4 = s->c4 + m;
    s->floor4 = s->x4 + m;
    s->weights4 = s->floor4 + m;
    s->rows = (int *)(s->weights4 + m);
    s->group = s->rows + m;
    s->order = s->group + soft;
    s->leader = s->order + soft;
    s->begin = s->leader + groups;
    s->active = (unsigned char *)(s->begin + groups + 2);
    s->wanted = s->active + m;
    s->tight = s->wanted + m;
    s->next_tight = s->tight + groups;
    return memory;
}

/* `count` problems in C order: left factors (m, dx), queries (q, dz), the query of each row (m,), the same for all problems
   if `shared`; right-hand sides (m,) or NULL for 1, equality rows (m,) or NULL for none, rows believed to be active (m,)
   or NULL. A zero row does not count. Writes the multipliers lam (m,) of the rows, W(lam) (dx, dz) unless NULL, the largest
   multiplier of unit rows unless NULL, and the rounds of pivoting, which are negative where some row is not on its side.
   Returns the problems that were done: all, unless memory was short. */
EXPORT int attsvm_active_set(int count, int m, int dx, int q, int dz, const double *a, const double *queries,
                             const int64_t *owner, int shared, const double *rhs, const unsigned char *equality,
                             const unsigned char *start, double *lam, double *W, double *peaks, int *rounds, int most) {
    Rows s = {.m = m, .dx = dx, .q = q, .dz = dz};
    void *memory = rows_memory(&s);
    if (!memory) return 0;
    for (Size i = 0; i < count; i++) {
        s.a = a + i * m * dx, s.queries = queries + i * q * dz, s.owner = shared ? owner : owner + i * m;
        s.rhs = rhs ? rhs + i * m : NULL, s.equality = equality ? equality + i * m : NULL;
        read_rows(&s);
        form_gram(&s);
        if (start)
            memcpy(s.active, start + i * m, (size_t)m);
        else
            guess(&s);
        for (int k = 0; k < m; k++) s.active[k] = s.norms[k] > 0.0 && (s.active[k] || is_free(&s, k));
        memset(s.x, 0, doubles(m)); /* where the first equations have no solution */
        rounds[i] = pivot(&s, most);
        const double peak = write_multipliers(&s, lam + i * m);
        if (peaks) peaks[i] = peak;
        if (W) write_matrix(&s, lam + i * m, W + i * dx * dz);
    }
    free(memory);
    return count;
}

/* Soft margins: as `attsvm_active_set`, without equality rows. `loss` and `by_row` (a slack for each row, not for each query)
   are those of all problems, C (count,) is not; rows that are zero have no slack. `start` (m,) are multipliers to begin
   with, or NULL. With `same` all problems have the rows of the first, and each begins with the face of the one before. */
EXPORT int attsvm_soft_active_set(int loss, int by_row, int same, int count, int m, int dx, int q, int dz, const double *a,
                                  const double *queries, const int64_t *owner, int shared, const double *rhs,
                                  const double *C, const double *start, double *lam, double *W, int *rounds, int most) {
    Rows s = {.m = m, .dx = dx, .q = q, .dz = dz, .loss = loss};
    void *memory = rows_memory(&s);
    if (!memory) return 0;
    for (Size i = 0; i < count; i++) {
        const Size set = same ? 0 : i;
        s.a = a + set * m * dx, s.queries = queries + set * q * dz, s.owner = shared ? owner : owner + set * m;
        s.rhs = rhs ? rhs + set * m : NULL;
        if (!same || !i || loss != HINGE) { /* a squared hinge changes the Gram matrix */
            read_rows(&s);
            form_gram(&s);
        }
        read_penalty(&s, by_row, C[i]);
        const double again = same && i && rounds[i - 1] > 0 ? C[i] / C[i - 1] : 0.0;
        rounds[i] = solve_soft(&s, start ? start + i * m : NULL, again, most);
        write_multipliers(&s, lam + i * m);
        write_matrix(&s, lam + i * m, W + i * dx * dz);
    }
    free(memory);
    return count;
}
