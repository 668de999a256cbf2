/* Least Frobenius norms of problems with few rows, one after the other: block principal pivoting on the Gram matrix.

     minimize  1/2 |W|^2  subject to  a_k' W b_k >= rhs_k  (= rhs_k on equality rows)

   With unit rows, Gram matrix G and right-hand sides c (the largest of size 1) the multipliers minimize 1/2 x'Gx - c'x over
   x >= 0, free on equality rows. The method is that of `solve_small` in frobenius/pivoting.py, which says more about it: a
   few accelerated projected gradient steps in single precision guess the active rows, the equations of these are solved,
   and every row on the wrong side changes sides, one at a time where that stalls (Murty's rule). Dependent active rows
   leave a problem unsettled.

   For so few rows loops without calls are faster than LAPACK. They run along rows of G and add several multiples of
   them at once, so that a compiler can use vector instructions without changing the order of a sum. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* As in pivoting.py: rounds without progress before single exchanges, gradient steps of the guess, and the squared Cholesky
   pivot of unit rows below which rows count as dependent. */
#define PATIENCE 3
#define GUESS_STEPS 22
#define PIVOT 1e-11

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
} Rows;

/* out = sum_i weights_i G[rows_i], where rows of G have m entries */
#define DEFINE_COMBINE(NAME, REAL)                                                                            \
    static void NAME(int m, int count, const int *rows, const REAL *weights, const REAL *G, REAL *restrict out) { \
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

static void form_gram(Rows *s) {
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
static void times4(Rows *s, const float *x, float *out) {
    int count = 0;
    for (int k = 0; k < s->m; k++) { /* without a branch: which rows are 0 cannot be predicted */
        s->rows[count] = k, s->weights4[count] = x[k];
        count += x[k] != 0.0f;
    }
    combine4(s->m, count, s->rows, s->weights4, s->G4, out);
}

static double square4(int m, const float *x) {
    double sum = 0.0;
    for (int k = 0; k < m; k++) sum += (double)x[k] * x[k];
    return sum;
}

/* Active rows from a few accelerated projected gradient steps. */
static void guess(Rows *s) {
    const int m = s->m;
    float *restrict c = s->c4, *restrict x = s->x4, *restrict point = s->point, *restrict product = s->product;
    float *restrict floor = s->floor4;
    for (Size k = 0; k < (Size)m * m; k++) s->G4[k] = (float)s->G[k];
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
static int solve_active(Rows *s) {
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

/* Multipliers of the rows as they are, without the negative ones that a last round may leave; the largest of unit rows. */
static double write_multipliers(const Rows *s, double *out) {
    double peak = 0.0;
    for (int k = 0; k < s->m; k++) {
        const double x = s->x[k] < 0.0 && !is_free(s, k) ? 0.0 : s->x[k];
        out[k] = s->norms[k] > 0.0 ? x / s->norms[k] * s->scale : 0.0;
        peak = fmax(peak, fabs(x));
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
    const Size reals = 2 * m * m + m * dx + q * q + q + q * dx + 6 * m, singles = m * m + 6 * m;
    double *memory = malloc(doubles(reals) + sizeof(float) * (size_t)singles + ints(m) + 2 * (size_t)m);
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
    s->G4 = (float *)(s->weights + m);
    s->c4 = s->G4 + m * m;
    s->x4 = s->c4 + m;
    s->floor4 = s->x4 + m;
    s->point = s->floor4 + m;
    s->weights4 = s->point + m;
    s->product = s->weights4 + m;
    s->rows = (int *)(s->product + m);
    s->active = (unsigned char *)(s->rows + m);
    s->wanted = s->active + m;
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
