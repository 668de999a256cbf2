/* A primal-dual interior point method for the nuclear norm that works on the multipliers alone.

   The semidefinite form of the nuclear norm is min tr(X)/2 with X = [[P, W], [W', Q]] >= 0, and its dual has slack
   Z = [[I, -D], [-D', I]] / 2 with D = W(lam). Eliminating X leaves one linear system in the m multipliers (the HKM
   direction), and since the rows have rank one its matrix is a sum of four entrywise products of Gram matrices:

     4 M = (a P a') o (b Y22 b') + (b Q b') o (a Y11 a') + C + C',   C = (a W b') o (a Y12 b')',   Y = Z^{-1}.

   Arrays of NumPy by rows, a (m, p) and b (m, q), are here their transposes by columns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

enum { STALLED = 1, NO_MEMORY = 2 };

typedef struct { /* as `Measures` in library.py */
    double mu, gap, objective, missed; /* mu before the step, the others after it */
} Measures;

/* Shares of the largest diagonal entry that may be added to M, and the refinements that undo them. Dependent equality rows
   leave M singular, and so do, near the end, rows that leave W no interior. */
static const double SHIFTS[] = {0.0, 0.0, 1e-14, 1e-12, 1e-10};
static const double EQUAL_SHIFT = 1e-12;
/* Before them, this share of every diagonal entry: enough where rows are independent. */
static const double ROUNDING = 16.0 * 2.2e-16;
/* Lengths of steps that are tried. */
static const double LENGTHS[] = {1.12, 1.05, 1.01, 0.97, 0.92, 0.87, 0.8, 0.72, 0.63, 0.54, 0.45,
                                 0.35, 0.26, 0.18, 0.11, 0.06, 0.03, 0.01, 1e-3, 1e-4, 1e-5};

typedef struct {
    int m, p, q, n;
    const double *a, *b, *rhs;
    const signed char *sense;
    double *X, *lam, *slack;
    double *Z, *Y, *Z_root, *d_Z, *d_X, *target, *one, *two; /* n n */
    double *aX, *aY;                                                 /* n m */
    double *bX, *bY, *scaled;                                        /* q m, q m, p m */
    double *M, *factor, *other;                                      /* m m */
    double *inverse_lam, *inverse_slack, *d_lam, *d_slack, *h, *rest, *complement; /* m */
    double *block;                                                   /* p q */
    int refinements;
} Step;

static void multiply(const char *left, const char *right, int rows, int columns, int inner, const double *A, int lda,
                     const double *B, int ldb, double *C, int ldc) {
    const double one = 1.0, zero = 0.0;
    lapack.gemm(left, right, &rows, &columns, &inner, &one, A, &lda, B, &ldb, &zero, C, &ldc);
}

/* [[diagonal I, -D/2], [-D'/2, diagonal I]] for D = sum_k lam_k a_k b_k'. */
static void bordered(Step *s, const double *lam, double diagonal, double *out) {
    const int m = s->m, p = s->p, q = s->q, n = s->n;
    for (int k = 0; k < m; k++)
        for (int i = 0; i < p; i++) s->scaled[k * (long)p + i] = s->a[k * (long)p + i] * lam[k];
    multiply("N", "T", p, q, m, s->scaled, p, s->b, q, s->block, p);
    memset(out, 0, sizeof(double) * n * n);
    for (int i = 0; i < n; i++) out[i * (n + 1L)] = diagonal;
    for (int j = 0; j < q; j++)
        for (int i = 0; i < p; i++)
            out[i + (p + j) * (long)n] = out[p + j + i * (long)n] = -0.5 * s->block[i + j * (long)p];
}

/* Values of the rows at the upper right block of a symmetric matrix. */
static void values_at(Step *s, const double *matrix, double *out) {
    const int m = s->m, p = s->p, q = s->q, n = s->n;
    multiply("N", "N", q, m, p, matrix + p, n, s->a, p, s->bX, q);
    for (int k = 0; k < m; k++) out[k] = dot(q, s->bX + k * (long)q, s->b + k * (long)q);
}

/* The inverse of the Cholesky factor; 0 without one. */
static int inverse_root(int n, const double *A, double *factor, double *out) {
    const double one = 1.0;
    memcpy(factor, A, sizeof(double) * n * n);
    if (!cholesky(n, factor)) return 0;
    memset(out, 0, sizeof(double) * n * n);
    for (int i = 0; i < n; i++) out[i * (n + 1L)] = 1.0;
    lapack.trsm("L", "L", "N", "N", &n, &n, &one, factor, &n, out, &n);
    return 1;
}

/* M without what the slacks add. */
static void schur(Step *s) {
    const int m = s->m, p = s->p, q = s->q, n = s->n;
    const long corner = p * (n + 1L), square = (long)m * m;
    multiply("N", "N", n, m, p, s->X, n, s->a, p, s->aX, n);
    multiply("N", "N", n, m, p, s->Y, n, s->a, p, s->aY, n);
    multiply("N", "N", q, m, q, s->X + corner, n, s->b, q, s->bX, q);
    multiply("N", "N", q, m, q, s->Y + corner, n, s->b, q, s->bY, q);
    multiply("T", "N", m, m, p, s->aX, n, s->a, p, s->M, m);
    multiply("T", "N", m, m, q, s->b, q, s->bY, q, s->other, m);
    for (long k = 0; k < square; k++) s->M[k] *= s->other[k];
    multiply("T", "N", m, m, p, s->aY, n, s->a, p, s->factor, m);
    multiply("T", "N", m, m, q, s->b, q, s->bX, q, s->other, m);
    for (long k = 0; k < square; k++) s->M[k] += s->factor[k] * s->other[k];
    multiply("T", "N", m, m, q, s->aX + p, n, s->b, q, s->factor, m);
    multiply("T", "N", m, m, q, s->b, q, s->aY + p, n, s->other, m);
    for (long k = 0; k < square; k++) s->factor[k] *= s->other[k];
    for (int i = 0; i < m; i++)
        for (int j = 0; j <= i; j++) {
            const long low = i + (long)j * m, high = j + (long)i * m;
            s->M[low] = s->M[high] = 0.25 * (s->M[low] + s->factor[low] + s->factor[high]);
        }
}

/* The factor of M with the smallest shift that works; 0 without. */
static int factor_schur(Step *s) {
    const int m = s->m;
    double top = 0.0;
    for (int k = 0; k < m; k++) top = fmax(top, s->M[k * (m + 1L)]);
    for (int try = 0; try < 5; try++) {
        memcpy(s->factor, s->M, sizeof(double) * m * m);
        for (int k = 0; k < m; k++) {
            double *diagonal = s->factor + k * (m + 1L);
            const double shift = s->sense[k] == EQUALITY ? fmax(SHIFTS[try], EQUAL_SHIFT) : SHIFTS[try];
            *diagonal += try ? top * shift : ROUNDING * *diagonal;
        }
        s->refinements = try ? try : 1;
        if (cholesky(m, s->factor)) return 1;
    }
    return 0;
}

/* Changes of lam, Z, X and slack from M d_lam = h and the products that the step aims at. */
static void direction(Step *s) {
    const double one = 1.0, minus = -1.0;
    const int m = s->m, n = s->n, unit = 1;
    memcpy(s->d_lam, s->h, sizeof(double) * m);
    cholesky_solve(m, s->factor, s->d_lam);
    for (int k = 0; k < s->refinements; k++) {
        memcpy(s->rest, s->h, sizeof(double) * m);
        lapack.symv("L", &m, &minus, s->M, &m, s->d_lam, &unit, &one, s->rest, &unit);
        cholesky_solve(m, s->factor, s->rest);
        for (int i = 0; i < m; i++) s->d_lam[i] += s->rest[i];
    }
    bordered(s, s->d_lam, 0.0, s->d_Z);
    multiply("N", "N", n, n, n, s->X, n, s->d_Z, n, s->one, n);
    multiply("N", "N", n, n, n, s->one, n, s->Y, n, s->two, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            s->d_X[i + (long)j * n] = s->target[i + (long)j * n] - 0.5 * (s->two[i + (long)j * n] + s->two[j + (long)i * n]);
    for (int k = 0; k < m; k++)
        s->d_slack[k] = (s->complement[k] - s->slack[k] * s->d_lam[k]) * s->inverse_lam[k] - s->slack[k];
}

/* About the longest step that keeps point + t change definite: the best of a fixed set, as each costs a factorization. */
static double longest_definite(Step *s, const double *point, const double *change) {
    for (unsigned k = 0; k < sizeof LENGTHS / sizeof *LENGTHS; k++) {
        for (int i = 0; i < s->n * s->n; i++) s->one[i] = point[i] + LENGTHS[k] * change[i];
        if (cholesky(s->n, s->one)) return LENGTHS[k];
    }
    return 0.0;
}

/* Longest t for which point + t change stays nonnegative on all rows and the matrix definite; 0 where not finite. */
static double longest(Step *s, const double *inverse, const double *change, const double *point, const double *way) {
    double low = 0.0, sum = 0.0;
    for (int k = 0; k < s->m; k++) {
        low = fmin(low, change[k] * inverse[k]);
        sum += change[k] * inverse[k];
    }
    if (!isfinite(sum)) return 0.0;
    const double definite = longest_definite(s, point, way);
    return low < 0.0 ? fmin(definite, -1.0 / low) : definite;
}

static double ahead_of(const Step *s, double primal, double dual) {
    double sum = 0.0;
    for (int k = 0; k < s->n * s->n; k++) sum += (s->X[k] + primal * s->d_X[k]) * (s->Z[k] + dual * s->d_Z[k]);
    for (int k = 0; k < s->m; k++) sum += (s->slack[k] + primal * s->d_slack[k]) * (s->lam[k] + dual * s->d_lam[k]);
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
            const long at = i + (long)j * n;
            s->target[at] = target * s->Y[at] - 0.5 * (s->two[at] + s->two[j + (long)i * n]);
        }
    values_at(s, s->target, s->h);
    for (int k = 0; k < m; k++) s->h[k] = s->rhs[k] - s->h[k] + s->complement[k] * s->inverse_lam[k];
    for (int k = 0; k < n * n; k++) s->target[k] -= s->X[k];
}

static double *step_memory(Step *s) {
    const long n = s->n, m = s->m, p = s->p, q = s->q;
    double **square[] = {&s->Z, &s->Y, &s->Z_root, &s->d_Z, &s->d_X, &s->target, &s->one, &s->two};
    double **rows[] = {&s->M, &s->factor, &s->other};
    double **flat[] = {&s->inverse_lam, &s->inverse_slack, &s->d_lam, &s->d_slack, &s->h, &s->rest, &s->complement};
    double *memory = malloc(sizeof(double) * (8 * n * n + 2 * n * m + (2 * q + p) * m + 3 * m * m + 7 * m + p * q));
    double *at = memory;
    if (!memory) return NULL;
    for (int i = 0; i < 8; i++, at += n * n) *square[i] = at;
    for (int i = 0; i < 3; i++, at += m * m) *rows[i] = at;
    for (int i = 0; i < 7; i++, at += m) *flat[i] = at;
    s->aX = at, at += n * m;
    s->aY = at, at += n * m;
    s->bX = at, at += q * m;
    s->bY = at, at += q * m;
    s->scaled = at, at += p * m;
    s->block = at;
    return memory;
}

/* Relative distance of the objectives tr(X)/2 and rhs . lam, the latter, and the largest residual of the rows. */
static void measure(Step *s, Measures *out) {
    double primal = 0.0;
    for (int i = 0; i < s->n; i++) primal += 0.5 * s->X[i * (s->n + 1L)];
    out->objective = dot(s->m, s->rhs, s->lam);
    out->gap = fabs(primal - out->objective) / fmax(primal, 1e-300);
    out->missed = 0.0;
    values_at(s, s->X, s->h);
    for (int k = 0; k < s->m; k++) out->missed = fmax(out->missed, fabs(s->rhs[k] + s->slack[k] - s->h[k]));
}

/* A predictor-corrector step of X, lam and slack; STALLED, and all unchanged, where rounding stops it. */
static int step(Step *s, double *mu) {
    const int m = s->m, n = s->n;
    int weights = n;
    bordered(s, s->lam, 0.5, s->Z);
    memcpy(s->one, s->X, sizeof(double) * n * n);
    if (!cholesky(n, s->one) || !inverse_root(n, s->Z, s->one, s->Z_root)) return STALLED;
    multiply("T", "N", n, n, n, s->Z_root, n, s->Z_root, n, s->Y, n);
    for (int k = 0; k < m; k++) weights += s->sense[k] == INEQUALITY;
    *mu = (dot(n * n, s->X, s->Z) + dot(m, s->slack, s->lam)) / weights; /* slack is 0 on equality rows */
    if (!(*mu > 0.0)) return STALLED;                                    /* complementary to the last digit */
    schur(s);
    for (int k = 0; k < m; k++) { /* equality rows have no cone and drop out with it */
        const int ordered = s->sense[k] == INEQUALITY;
        s->inverse_lam[k] = ordered ? 1.0 / s->lam[k] : 0.0;
        s->inverse_slack[k] = ordered ? 1.0 / s->slack[k] : 0.0;
        s->M[k * (m + 1L)] += s->slack[k] * s->inverse_lam[k];
        s->complement[k] = 0.0;
    }
    if (!factor_schur(s)) return STALLED;
    /* Predictor: all products aim at 0. */
    memcpy(s->h, s->rhs, sizeof(double) * m);
    for (int k = 0; k < n * n; k++) s->target[k] = -s->X[k];
    direction(s);
    double primal = fmin(1.0, longest(s, s->inverse_slack, s->d_slack, s->X, s->d_X));
    double dual = fmin(1.0, longest(s, s->inverse_lam, s->d_lam, s->Z, s->d_Z));
    const double share = fmin(1.0, ahead_of(s, primal, dual) / weights / *mu);
    const double centering = fmin(primal, dual) > 0.1 ? share * share : 0.5;
    correct(s, fmax(centering, 1e-6) * *mu);
    direction(s);
    primal = longest(s, s->inverse_slack, s->d_slack, s->X, s->d_X);
    dual = longest(s, s->inverse_lam, s->d_lam, s->Z, s->d_Z);
    const double damping = 0.9 + 0.09 * fmin(1.0, fmin(primal, dual));
    primal = fmin(1.0, damping * primal);
    dual = fmin(1.0, damping * dual);
    if (!(fmax(primal, dual) > 1e-6)) return STALLED;
    for (int k = 0; k < n * n; k++) s->X[k] += primal * s->d_X[k];
    for (int k = 0; k < m; k++) {
        s->slack[k] += primal * s->d_slack[k];
        s->lam[k] += dual * s->d_lam[k];
    }
    return 0;
}

/* The start from the least Frobenius norm: the multiple of it that leaves every row some slack, mu relative to the largest
   singular value, share of the dual ball, least slack. As in interior_point.py. */
static const double MULTIPLE = 1.1, START_MU = 0.05, SHARE = 0.5, LEAST_SLACK = 1e-2, BALL = 0.95;
/* Steps without progress that end a problem, and fewer of them where the digits are spent. */
enum { PATIENCE = 15, PAUSE = 2 };
static const double NEAR = 1e-6;

typedef struct {
    double *U, *sigma, *Vt, *work; /* p r, r, r q, lwork, where r = min(p, q) */
    int *whole, lwork;
    double *sides, *room, *best_X, *best_lam; /* m, m, n n, m */
} Run;

/* A point strictly inside both cones, and centred, from multipliers `first` of the least Frobenius norm of any scale; the
   problem is scaled so that this norm is 1. Returns it, or 0 where there is none. */
static double start(Step *s, Run *run, const double *c, const double *first) {
    const int m = s->m, p = s->p, q = s->q, n = s->n, r = p < q ? p : q;
    int failed;
    bordered(s, first, 0.0, s->one);
    const double length = sqrt(dot(p * q, s->block, s->block)), size = dot(m, c, first) / length;
    if (!(length > 0.0 && size > 0.0 && isfinite(length + size))) return 0.0;
    for (int k = 0; k < p * q; k++) s->block[k] /= length;
    lapack.gesdd("S", &p, &q, s->block, &p, run->sigma, run->U, &p, run->Vt, &r, run->work, &run->lwork, run->whole,
                 &failed);
    if (failed) return 0.0;
    const double top = run->sigma[0], mu = START_MU * MULTIPLE * top;
    /* With P = U h U' + 2 mu (I - U U') and Q alike, mu X^{-1} has the diagonal blocks I/2 of Z. */
    memset(s->X, 0, sizeof(double) * n * n);
    for (int k = 0; k < r; k++) {
        const double sigma = MULTIPLE * run->sigma[k], h = sqrt(mu * mu + sigma * sigma) - mu;
        for (int j = 0; j < n; j++)
            for (int i = 0; i < n; i++) {
                const double left = i < p ? run->U[i + (long)k * p] : run->Vt[k + (i - p) * (long)r];
                const double right = j < p ? run->U[j + (long)k * p] : run->Vt[k + (j - p) * (long)r];
                s->X[i + (long)j * n] += ((i < p) == (j < p) ? h : sigma) * left * right;
            }
    }
    for (int i = 0; i < n; i++) s->X[i * (n + 1L)] += 2.0 * mu;
    for (int k = 0; k < m; k++) run->sides[k] = c[k] / size;
    values_at(s, s->X, s->h);
    for (int k = 0; k < m; k++) {
        const int ordered = s->sense[k] == INEQUALITY;
        s->slack[k] = ordered ? fmax(s->h[k] - run->sides[k], LEAST_SLACK) : 0.0;
        s->rest[k] = ordered ? mu / s->slack[k] : 0.0;
    }
    /* Every inequality row takes part, within most of what is left of the dual ball. */
    bordered(s, s->rest, 0.0, s->one);
    const double extra = sqrt(dot(p * q, s->block, s->block)), left = fmin(1.0, (BALL - SHARE) / fmax(extra, 1e-300));
    for (int k = 0; k < m; k++) s->lam[k] = first[k] * (SHARE / (top * length)) + s->rest[k] * left;
    return size;
}

/* Steps until the gap is closed or nothing improves; how many. What a row may miss is relative to its `room`. */
static int iterate(Step *s, Run *run, int most, double goal) {
    const int m = s->m, n = s->n;
    double best = INFINITY, mu;
    int steps = 0, waited = 0;
    memcpy(run->best_X, s->X, sizeof(double) * n * n);
    memcpy(run->best_lam, s->lam, sizeof(double) * m);
    while (steps < most && best > goal && waited < PATIENCE && (waited < PAUSE || best >= NEAR)) {
        Measures found;
        steps++;
        if (step(s, &mu)) break;
        measure(s, &found); /* h are the values of the rows */
        double worst = found.gap, sum = found.gap;
        for (int k = 0; k < m; k++) {
            const double missed = fabs(s->rhs[k] + s->slack[k] - s->h[k]) / run->room[k];
            worst = fmax(worst, missed);
            sum += missed;
        }
        waited++;
        if (isfinite(sum) && worst < best) {
            best = worst;
            waited = 0;
            memcpy(run->best_X, s->X, sizeof(double) * n * n);
            memcpy(run->best_lam, s->lam, sizeof(double) * m);
        }
    }
    return steps;
}

static void *run_memory(Run *run, const Step *s) {
    const long n = s->n, m = s->m, p = s->p, q = s->q, r = p < q ? p : q;
    run->lwork = 4 * (int)(r * r) + 8 * (int)(p + q) + 64;
    double *memory = malloc(sizeof(double) * (p * r + r + r * q + run->lwork + 3 * m + n * n) + sizeof(int) * 8 * r);
    if (!memory) return NULL;
    run->U = memory;
    run->sigma = run->U + p * r;
    run->Vt = run->sigma + r;
    run->work = run->Vt + r * q;
    run->sides = run->work + run->lwork;
    run->room = run->sides + m;
    run->best_lam = run->room + m;
    run->best_X = run->best_lam + m;
    run->whole = (int *)(run->best_X + n * n);
    return memory;
}

/* `count` problems in C order: factors (m, p) and (m, q) of unit rows, right-hand sides, what a violation of 1 amounts to,
   and senses (m,). `lam` (m,) holds multipliers of the least Frobenius norm up to scale, and then those of the nuclear norm;
   W (p, q) and the steps are written, W = NaN where the start has no meaning. Returns the problems that were done: all,
   unless memory was short. */
EXPORT int attsvm_nuclear(int count, int m, int p, int q, const double *a, const double *b, const double *c,
                          const double *room, const signed char *sense, double *W, double *lam, int *steps, int most,
                          double goal) {
    const int n = p + q;
    int done = 0;
    Step s = {.m = m, .p = p, .q = q, .n = n};
    Run run;
    double *memory = step_memory(&s), *other = run_memory(&run, &s);
    double *point = malloc(sizeof(double) * ((long)n * n + 2L * m));
    s.X = point;
    if (memory && other && point) {
        s.lam = s.X + (long)n * n;
        s.slack = s.lam + m;
        s.rhs = run.sides;
        for (; done < count; done++) {
            s.a = a, s.b = b, s.sense = sense;
            const double size = start(&s, &run, c, lam);
            for (int k = 0; k < m; k++) run.room[k] = room[k] / size;
            *steps++ = size > 0.0 ? iterate(&s, &run, most, goal) : 0;
            for (int i = 0; i < p; i++)
                for (int j = 0; j < q; j++) W[i * q + j] = size > 0.0 ? run.best_X[i + (p + j) * (long)n] * size : NAN;
            if (size > 0.0) memcpy(lam, run.best_lam, sizeof(double) * m);
            a += (long)m * p, b += (long)m * q, c += m, room += m, sense += m, W += (long)p * q, lam += m;
        }
    }
    free(memory), free(other), free(point);
    return done;
}

/* One step for rows a (m, p), b (m, q) in C order; X (p+q, p+q), lam and slack (m,) are moved, the measures are written.
   Returns 0, STALLED (all unchanged) or NO_MEMORY. */
EXPORT int attsvm_nuclear_step(int m, int p, int q, const double *a, const double *b, const double *rhs,
                               const signed char *sense, double *X, double *lam, double *slack, Measures *measures) {
    Step s = {.m = m, .p = p, .q = q, .n = p + q, .a = a, .b = b, .rhs = rhs, .sense = sense, .X = X, .lam = lam,
              .slack = slack};
    double *memory = step_memory(&s);
    if (!memory) return NO_MEMORY;
    const int stalled = step(&s, &measures->mu);
    if (!stalled) measure(&s, measures);
    free(memory);
    return stalled;
}
