/* One step of the method of nuclear.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nuclear.h"

/* Shares of the largest diagonal entry that may be added to M, and the refinements that undo them. Dependent equality rows
   leave M singular, and so do, near the end, rows that leave W no interior. */
static const double SHIFTS[] = {0.0, 0.0, 1e-14, 1e-12, 1e-10};
static const double EQUAL_SHIFT = 1e-12;
/* Before them, this share of every diagonal entry: enough where rows are independent. */
static const double ROUNDING = 16.0 * 2.2e-16;
/* Rows per entry of W from which on the system of nuclear_entries.c is the quicker one. */
static const int ROWS_PER_ENTRY = 2;
/* Lengths of steps that are tried. */
static const double LENGTHS[] = {1.12, 1.05, 1.01, 0.97, 0.92, 0.87, 0.8, 0.72, 0.63, 0.54, 0.45,
                                 0.35, 0.26, 0.18, 0.11, 0.06, 0.03, 0.01, 1e-3, 1e-4, 1e-5};

static void multiply(const char *left, const char *right, int rows, int columns, int inner, const double *A, int lda,
                     const double *B, int ldb, double *C, int ldc) {
    const double one = 1.0, zero = 0.0;
    lapack.gemm(left, right, &rows, &columns, &inner, &one, A, &lda, B, &ldb, &zero, C, &ldc);
}

/* [[diagonal I, -D/2], [-D'/2, diagonal I]] for a block D. */
static void with_corners(const Step *s, const double *block, double diagonal, double *out) {
    const int p = s->p, q = s->q, n = s->n;
    memset(out, 0, doubles((Size)n * n));
    for (int i = 0; i < n; i++) out[i * ((Size)n + 1)] = diagonal;
    for (int j = 0; j < q; j++)
        for (int i = 0; i < p; i++)
            out[i + (p + j) * (Size)n] = out[p + j + i * (Size)n] = -0.5 * block[i + j * (Size)p];
}

void combine_rows(Step *s, const double *lam, double *out) {
    const int m = s->m, p = s->p, q = s->q;
    for (int k = 0; k < m; k++)
        for (int i = 0; i < p; i++) s->scaled[k * (Size)p + i] = s->a[k * (Size)p + i] * lam[k];
    multiply("N", "T", p, q, m, s->scaled, p, s->b, q, out, p);
}

/* The same for D = sum_k lam_k a_k b_k', which is left in `block`. */
void bordered(Step *s, const double *lam, double diagonal, double *out) {
    combine_rows(s, lam, s->block);
    with_corners(s, s->block, diagonal, out);
}

void values_of(Step *s, const double *W, int ld, double *out) {
    const int m = s->m, p = s->p, q = s->q;
    multiply("T", "N", q, m, p, W, ld, s->a, p, s->bX, q);
    for (int k = 0; k < m; k++) out[k] = dot(q, s->bX + k * (Size)q, s->b + k * (Size)q);
}

/* Values of the rows at the upper right block of a symmetric matrix. */
static void values_at(Step *s, const double *matrix, double *out) {
    values_of(s, matrix + (Size)s->p * s->n, s->n, out);
}

/* The inverse of the Cholesky factor; 0 without one. */
static int inverse_root(int n, const double *A, double *factor, double *out) {
    const double one = 1.0;
    memcpy(factor, A, doubles((Size)n * n));
    if (!cholesky(n, factor)) return 0;
    memset(out, 0, doubles((Size)n * n));
    for (int i = 0; i < n; i++) out[i * ((Size)n + 1)] = 1.0;
    lapack.trsm("L", "L", "N", "N", &n, &n, &one, factor, &n, out, &n);
    return 1;
}

/* M without what the slacks add. */
static void schur(Step *s) {
    const int m = s->m, p = s->p, q = s->q, n = s->n;
    const Size corner = p * ((Size)n + 1), square = (Size)m * m;
    multiply("N", "N", n, m, p, s->X, n, s->a, p, s->aX, n);
    multiply("N", "N", n, m, p, s->Y, n, s->a, p, s->aY, n);
    multiply("N", "N", q, m, q, s->X + corner, n, s->b, q, s->bX, q);
    multiply("N", "N", q, m, q, s->Y + corner, n, s->b, q, s->bY, q);
    multiply("T", "N", m, m, p, s->aX, n, s->a, p, s->M, m);
    multiply("T", "N", m, m, q, s->b, q, s->bY, q, s->other, m);
    for (Size k = 0; k < square; k++) s->M[k] *= s->other[k];
    multiply("T", "N", m, m, p, s->aY, n, s->a, p, s->factor, m);
    multiply("T", "N", m, m, q, s->b, q, s->bX, q, s->other, m);
    for (Size k = 0; k < square; k++) s->M[k] += s->factor[k] * s->other[k];
    multiply("T", "N", m, m, q, s->aX + p, n, s->b, q, s->factor, m);
    multiply("T", "N", m, m, q, s->b, q, s->aY + p, n, s->other, m);
    for (Size k = 0; k < square; k++) s->factor[k] *= s->other[k];
    for (int i = 0; i < m; i++)
        for (int j = 0; j <= i; j++) {
            const Size low = i + (Size)j * m, high = j + (Size)i * m;
            s->M[low] = s->M[high] = 0.25 * (s->M[low] + s->factor[low] + s->factor[high]);
        }
}

int factor_schur(Step *s, int m, const signed char *sense) {
    double top = 0.0;
    for (int k = 0; k < m; k++) top = larger(top, s->M[k * ((Size)m + 1)]);
    for (int try = 0; try < 5; try++) {
        memcpy(s->factor, s->M, doubles((Size)m * m));
        for (int k = 0; k < m; k++) {
            double *diagonal = s->factor + k * ((Size)m + 1);
            const double shift = sense[k] == EQUALITY ? fmax(SHIFTS[try], EQUAL_SHIFT) : SHIFTS[try];
            *diagonal += try ? top * shift : ROUNDING * *diagonal;
        }
        s->refinements = try ? try : 1;
        if (cholesky(m, s->factor)) return 1;
    }
    return 0;
}

void loads(const Step *s, const double *x, double *out) {
    memset(out, 0, doubles(s->penalty.groups));
    for (int k = 0; k < s->m && s->penalty.groups; k++) out[s->penalty.group[k]] += s->penalty.weight[k] * x[k];
}

/* e1, the blocks of the penalty in M (both triangles) if it has the order of the rows, and where the predictor aims. */
static void add_penalty(Step *s) {
    const Penalty *penalty = &s->penalty;
    const int m = s->m;
    if (penalty->loss == HARD) return;
    loads(s, s->lam, s->load);
    for (int j = 0; j < penalty->groups; j++) {
        s->e1[j] = penalty->loss == HINGE ? s->eta[j] / s->t[j] : 0.5 / penalty->C;
        s->lift[j] = penalty->loss == HINGE ? 0.0 : 0.5 * s->load[j] / penalty->C;
    }
    for (int k = 0; k < m && !s->by_entries; k++) {
        const double share = s->e1[penalty->group[k]] * penalty->weight[k];
        for (int l = 0; l < m; l++)
            if (penalty->group[l] == penalty->group[k]) s->M[l + (Size)k * m] += share * penalty->weight[l];
    }
}

/* What the slacks of the groups take from the right side, and what the distance of W(lam) from the D of Z adds to it. */
static void complete_side(Step *s) {
    if (s->penalty.loss == HARD) return;
    for (int k = 0; k < s->m; k++) s->h[k] += s->shift[k] - s->penalty.weight[k] * s->lift[s->penalty.group[k]];
}

/* Z from the multipliers, or with the D that it has of its own. */
static void fill_Z(Step *s) {
    bordered(s, s->lam, 0.5, s->Z);
    if (s->penalty.loss == HARD) return;
    for (int i = 0; i < s->p * s->q; i++) s->apart[i] = s->block[i] - s->own[i];
    with_corners(s, s->own, 0.5, s->Z);
}

/* Values of the rows at the change of X that `apart` alone would bring. */
static void fill_shift(Step *s) {
    const int n = s->n;
    if (s->penalty.loss == HARD) return;
    with_corners(s, s->apart, 0.0, s->d_Z);
    multiply("N", "N", n, n, n, s->X, n, s->d_Z, n, s->one, n);
    multiply("N", "N", n, n, n, s->one, n, s->Y, n, s->two, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) s->one[i + (Size)j * n] = 0.5 * (s->two[i + (Size)j * n] + s->two[j + (Size)i * n]);
    values_at(s, s->one, s->shift);
}

/* d_lam from M d_lam = h. */
static void solve_by_rows(Step *s) {
    const double one = 1.0, minus = -1.0;
    const int m = s->m, unit = 1;
    memcpy(s->d_lam, s->h, doubles(m));
    cholesky_solve(m, s->factor, s->d_lam);
    for (int k = 0; k < s->refinements; k++) {
        memcpy(s->rest, s->h, doubles(m));
        lapack.symv("L", &m, &minus, s->M, &m, s->d_lam, &unit, &one, s->rest, &unit);
        cholesky_solve(m, s->factor, s->rest);
        for (int i = 0; i < m; i++) s->d_lam[i] += s->rest[i];
    }
}

/* Changes of lam, Z, X and slack from h and the products that the step aims at. */
static void direction(Step *s) {
    const int m = s->m, n = s->n;
    if (s->by_entries)
        solve_entries(s);
    else
        solve_by_rows(s);
    bordered(s, s->d_lam, 0.0, s->d_Z);
    if (s->penalty.loss != HARD) {
        for (int i = 0; i < s->p * s->q; i++) s->block[i] += s->apart[i];
        with_corners(s, s->block, 0.0, s->d_Z);
    }
    multiply("N", "N", n, n, n, s->X, n, s->d_Z, n, s->one, n);
    multiply("N", "N", n, n, n, s->one, n, s->Y, n, s->two, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            s->d_X[i + (Size)j * n] = s->target[i + (Size)j * n] - 0.5 * (s->two[i + (Size)j * n] + s->two[j + (Size)i * n]);
    for (int k = 0; k < m; k++)
        s->d_slack[k] = (s->complement[k] - s->slack[k] * s->d_lam[k]) * s->inverse_lam[k] - s->slack[k];
    loads(s, s->d_lam, s->d_load);
    for (int j = 0; j < s->penalty.groups; j++) s->d_eta[j] = s->lift[j] - s->eta[j] + s->e1[j] * s->d_load[j];
}

/* About the longest step that keeps point + t change definite: the best of a fixed set, as each costs a factorization. */
static double longest_definite(Step *s, const double *point, const double *change) {
    for (unsigned k = 0; k < sizeof LENGTHS / sizeof *LENGTHS; k++) {
        for (int i = 0; i < s->n * s->n; i++) s->one[i] = point[i] + LENGTHS[k] * change[i];
        if (cholesky(s->n, s->one)) return LENGTHS[k];
    }
    return 0.0;
}

/* Longest step for which point + t change stays nonnegative on all rows and groups and the matrix definite; 0 where not
   finite. `sign` is that of the change of the numbers of the groups. */
static double longest(Step *s, const double *inverse, const double *change, const double *group_point, double sign,
                      const double *group_change, const double *point, const double *way) {
    double low = 0.0, sum = 0.0;
    for (int k = 0; k < s->m; k++) {
        low = fmin(low, change[k] * inverse[k]);
        sum += change[k] * inverse[k];
    }
    for (int j = 0; j < s->penalty.groups && s->penalty.loss == HINGE; j++) {
        low = fmin(low, sign * group_change[j] / group_point[j]);
        sum += group_change[j] / group_point[j];
    }
    if (!isfinite(sum)) return 0.0;
    const double definite = longest_definite(s, point, way);
    return low < 0.0 ? fmin(definite, -1.0 / low) : definite;
}

static double longest_primal(Step *s) {
    return longest(s, s->inverse_slack, s->d_slack, s->eta, 1.0, s->d_eta, s->X, s->d_X);
}

static double longest_dual(Step *s) {
    return longest(s, s->inverse_lam, s->d_lam, s->t, -1.0, s->d_load, s->Z, s->d_Z);
}

static double ahead_of(const Step *s, double primal, double dual) {
    double sum = 0.0;
    for (int k = 0; k < s->n * s->n; k++) sum += (s->X[k] + primal * s->d_X[k]) * (s->Z[k] + dual * s->d_Z[k]);
    for (int k = 0; k < s->m; k++) sum += (s->slack[k] + primal * s->d_slack[k]) * (s->lam[k] + dual * s->d_lam[k]);
    for (int j = 0; j < s->penalty.groups && s->penalty.loss == HINGE; j++)
        sum += (s->eta[j] + primal * s->d_eta[j]) * (s->t[j] - dual * s->d_load[j]);
    return sum;
}

/* The corrector's right side, from the predictor's direction. */
static void correct(Step *s, double target) {
    const int m = s->m, n = s->n;
    for (int k = 0; k < m; k++) s->complement[k] = target - s->d_slack[k] * s->d_lam[k];
    multiply("N", "N", n, n, n, s->d_X, n, s->d_Z, n, s->one, n);
    multiply("N", "N", n, n, n, s->one, n, s->Y, n, s->two, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            const Size at = i + (Size)j * n;
            s->target[at] = target * s->Y[at] - 0.5 * (s->two[at] + s->two[j + (Size)i * n]);
        }
    values_at(s, s->target, s->h);
    for (int k = 0; k < m; k++) s->h[k] = s->rhs[k] - s->h[k] + s->complement[k] * s->inverse_lam[k];
    for (int j = 0; j < s->penalty.groups && s->penalty.loss == HINGE; j++)
        s->lift[j] = (target + s->d_eta[j] * s->d_load[j]) / s->t[j];
    complete_side(s);
    for (int k = 0; k < n * n; k++) s->target[k] -= s->X[k];
}

/* Entries where rows are many more, as far as equality rows, which are all kept, leave the system that small. */
static void choose_system(Step *s, int count) {
    const Size N = (Size)s->p * s->q;
    s->entries.most = (int)(2 * N);
    s->by_entries = s->m > ROWS_PER_ENTRY * N;
    for (int i = 0; i < count && s->by_entries; i++) {
        Size equal = 0;
        for (int k = 0; k < s->m; k++) equal += s->sense[i * (Size)s->m + k] == EQUALITY;
        s->by_entries = equal <= N;
    }
}

double *step_memory(Step *s, int count) {
    choose_system(s, count);
    const Size n = s->n, m = s->m, p = s->p, q = s->q;
    double **square[] = {&s->Z, &s->Y, &s->Z_root, &s->d_Z, &s->d_X, &s->target, &s->one, &s->two};
    double **rows[] = {&s->M, &s->factor, &s->other};
    const Size system = s->by_entries ? entries_numbers(s) : 3 * m * m;
    double **flat[] = {&s->inverse_lam, &s->inverse_slack, &s->d_lam, &s->d_slack, &s->h, &s->rest, &s->complement};
    double *memory = malloc(doubles(8 * n * n + 2 * n * m + (2 * q + p) * m + system + 7 * m + p * q
                                              + 7 * (Size)s->penalty.groups + 2 * p * q + m));
    double *at = memory;
    if (!memory) return NULL;
    for (int i = 0; i < 8; i++, at += n * n) *square[i] = at;
    if (s->by_entries)
        entries_memory(s, at);
    else
        for (int i = 0; i < 3; i++) *rows[i] = at + i * m * m;
    at += system;
    for (int i = 0; i < 7; i++, at += m) *flat[i] = at;
    s->aX = at, at += n * m;
    s->aY = at, at += n * m;
    s->bX = at, at += q * m;
    s->bY = at, at += q * m;
    s->scaled = at, at += p * m;
    s->block = at, at += p * q;
    double **groups[] = {&s->eta, &s->t, &s->load, &s->d_eta, &s->d_load, &s->lift, &s->e1};
    for (int i = 0; i < 7; i++, at += s->penalty.groups) *groups[i] = at;
    s->own = at, at += p * q;
    s->apart = at, at += p * q;
    s->shift = at;
    return memory;
}

/* Relative distance of the objectives tr(X)/2 and rhs . lam (with what the penalty adds and takes), the latter, and the
   largest residual of the rows; h are the values of the rows, with their slacks. */
void measure(Step *s, Measures *out) {
    const Penalty *penalty = &s->penalty;
    double primal = 0.0;
    for (int i = 0; i < s->n; i++) primal += 0.5 * s->X[i * ((Size)s->n + 1)];
    out->objective = dot(s->m, s->rhs, s->lam);
    if (penalty->loss != HARD) loads(s, s->lam, s->load);
    for (int j = 0; j < penalty->groups; j++) {
        primal += penalty->C * (penalty->loss == HINGE ? s->eta[j] : s->eta[j] * s->eta[j]);
        out->objective -= penalty->loss == HINGE ? 0.0 : 0.25 * s->load[j] * s->load[j] / penalty->C;
    }
    out->gap = fabs(primal - out->objective) / fmax(primal, 1e-300);
    out->missed = 0.0;
    values_at(s, s->X, s->h);
    for (int k = 0; k < s->m && penalty->groups; k++) s->h[k] += penalty->weight[k] * s->eta[penalty->group[k]];
    for (int i = 0; i < s->p * s->q && penalty->groups; i++) out->missed = larger(out->missed, fabs(s->apart[i]));
    for (int k = 0; k < s->m; k++) out->missed = larger(out->missed, fabs(s->rhs[k] + s->slack[k] - s->h[k]));
}

/* A predictor-corrector step of X, lam and slack; STALLED, and all unchanged, where rounding stops it. */
int nuclear_step(Step *s, double *mu) {
    const int m = s->m, n = s->n;
    int weights = n;
    fill_Z(s);
    memcpy(s->one, s->X, doubles((Size)n * n));
    if (!cholesky(n, s->one) || !inverse_root(n, s->Z, s->one, s->Z_root)) return STALLED;
    multiply("T", "N", n, n, n, s->Z_root, n, s->Z_root, n, s->Y, n);
    for (int k = 0; k < m; k++) weights += s->sense[k] == INEQUALITY;
    *mu = dot(n * n, s->X, s->Z) + dot(m, s->slack, s->lam); /* slack is 0 on equality rows */
    if (s->penalty.loss == HINGE) {
        *mu += dot(s->penalty.groups, s->eta, s->t);
        weights += s->penalty.groups;
    }
    *mu /= weights;
    if (!(*mu > 0.0)) return STALLED;                                    /* complementary to the last digit */
    fill_shift(s);
    if (!s->by_entries) schur(s);
    for (int k = 0; k < m; k++) { /* equality rows have no cone and drop out with it */
        const int ordered = s->sense[k] == INEQUALITY;
        s->inverse_lam[k] = ordered ? 1.0 / s->lam[k] : 0.0;
        s->inverse_slack[k] = ordered ? 1.0 / s->slack[k] : 0.0;
        if (!s->by_entries) s->M[k * ((Size)m + 1)] += s->slack[k] * s->inverse_lam[k];
        s->complement[k] = 0.0;
    }
    add_penalty(s);
    if (!(s->by_entries ? prepare_entries(s) : factor_schur(s, m, s->sense))) return STALLED;
    /* Predictor: all products aim at 0. */
    memcpy(s->h, s->rhs, doubles(m));
    complete_side(s);
    for (int k = 0; k < n * n; k++) s->target[k] = -s->X[k];
    direction(s);
    double primal = fmin(1.0, longest_primal(s));
    double dual = fmin(1.0, longest_dual(s));
    const double share = fmin(1.0, ahead_of(s, primal, dual) / weights / *mu);
    const double centering = fmin(primal, dual) > 0.1 ? share * share : 0.5;
    correct(s, fmax(centering, 1e-6) * *mu);
    direction(s);
    primal = longest_primal(s);
    dual = longest_dual(s);
    const double damping = 0.9 + 0.09 * fmin(1.0, fmin(primal, dual));
    primal = fmin(1.0, damping * primal);
    dual = fmin(1.0, damping * dual);
    if (!(fmax(primal, dual) > 1e-6)) return STALLED;
    for (int k = 0; k < n * n; k++) s->X[k] += primal * s->d_X[k];
    for (int k = 0; k < m; k++) {
        s->slack[k] += primal * s->d_slack[k];
        s->lam[k] += dual * s->d_lam[k];
    }
    if (s->penalty.loss == HARD) return 0;
    for (int j = 0; j < s->penalty.groups; j++) {
        s->eta[j] += primal * s->d_eta[j];
        s->t[j] -= dual * s->d_load[j];
    }
    for (int i = 0; i < s->p * s->q; i++) s->own[i] += dual * s->block[i];
    return 0;
}

/* One step for rows a (m, p), b (m, q) in C order; X (p+q, p+q), lam and slack (m,) are moved, the measures are written.
   Returns 0, STALLED (all unchanged) or NO_MEMORY. */
EXPORT int attsvm_nuclear_step(int m, int p, int q, const double *a, const double *b, const double *rhs,
                               const signed char *sense, double *X, double *lam, double *slack, Measures *measures) {
    Step s = {.m = m, .p = p, .q = q, .n = p + q, .a = a, .b = b, .rhs = rhs, .sense = sense, .X = X, .lam = lam,
              .slack = slack};
    double *memory = step_memory(&s, 1);
    if (!memory) return NO_MEMORY;
    place_groups(&s);
    const int stalled = nuclear_step(&s, &measures->mu);
    if (!stalled) measure(&s, measures);
    free(memory);
    return stalled;
}
