/* See steps.h. */
#include "steps.h"

#include <math.h>
#include <string.h>

Routines lapack;

static const int ONE = 1;
/* Dependent equality rows leave the matrix singular: this share of the diagonal is added, and refinement undoes it. */
static const double RIDGE = 1e-12;
/* Shares of the diagonal that may be added where rounding leaves a matrix without a Cholesky factor. */
static const double SHIFTS[] = {0.0, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11};
/* Steps without progress that end a method, and fewer of them where the digits are spent. */
enum { PATIENCE = 15, PAUSE = 3 };
static const double NEAR = 1e-6;
/* Order up to which a factorization of our own is quicker than a call of LAPACK. */
enum { SMALL = 24 };

long state_numbers(int m, int N) { return 2L * m * m + 12L * m + 3L * N; }

static double *take(double **memory, long numbers) {
    double *part = *memory;
    *memory += numbers;
    return part;
}

void state_begin(State *state, double *memory) {
    const int m = state->m, N = state->N;
    state->M = take(&memory, (long)m * m);
    state->factor = take(&memory, (long)m * m);
    state->W = take(&memory, N);
    state->D = take(&memory, N);
    state->best_W = take(&memory, N);
    state->lam = take(&memory, m);
    state->slack = take(&memory, m);
    state->residual = take(&memory, m);
    state->ridge = take(&memory, m);
    state->inverse = take(&memory, m);
    state->aimed = take(&memory, m);
    state->pull = take(&memory, m);
    state->right = take(&memory, m);
    state->dlam = take(&memory, m);
    state->dslack = take(&memory, m);
    state->best_lam = take(&memory, m);
    state->best = INFINITY;
    state->waited = state->steps = 0;
}

double dot(int n, const double *x, const double *y) {
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    int k = 0;
    for (; k + 4 <= n; k += 4)
        for (int j = 0; j < 4; j++) sum[j] += x[k + j] * y[k + j];
    for (; k < n; k++) sum[0] += x[k] * y[k];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void margins(const State *state, const double *W, double *out) {
    const double one = 1.0, zero = 0.0;
    lapack.gemv("T", &state->N, &state->m, &one, state->F, &state->N, W, &ONE, &zero, out, &ONE);
}

void adjoint(const State *state, const double *lam, double *out) {
    const double one = 1.0, zero = 0.0;
    lapack.gemv("N", &state->N, &state->m, &one, state->F, &state->N, lam, &ONE, &zero, out, &ONE);
}

/* Column by column: each is taken off those to its right. */
static int small_cholesky(int n, double *A) {
    for (int j = 0; j < n; j++) {
        double *column = A + (long)j * n;
        if (!(column[j] > 0.0)) return 0;
        const double root = sqrt(column[j]);
        for (int i = j; i < n; i++) column[i] /= root;
        for (int k = j + 1; k < n; k++) {
            double *other = A + (long)k * n;
            const double weight = column[k];
            for (int i = k; i < n; i++) other[i] -= weight * column[i];
        }
    }
    return 1;
}

int cholesky(int n, double *A) {
    int failed;
    if (n <= SMALL) return small_cholesky(n, A);
    lapack.potrf("L", &n, A, &n, &failed);
    return !failed;
}

int raised_cholesky(int n, const double *A, double *factor) {
    for (unsigned k = 0; k < sizeof SHIFTS / sizeof *SHIFTS; k++) {
        memcpy(factor, A, sizeof(double) * n * n);
        for (int i = 0; i < n && k; i++) factor[i * (n + 1L)] *= 1.0 + SHIFTS[k];
        if (cholesky(n, factor)) return 1;
    }
    return 0;
}

void cholesky_solve(int n, const double *factor, double *x) {
    int failed;
    lapack.potrs("L", &n, &ONE, factor, &n, x, &n, &failed);
}

void measure_rows(State *state) {
    adjoint(state, state->lam, state->D);
    margins(state, state->W, state->residual);
    for (int k = 0; k < state->m; k++) state->residual[k] = state->c[k] + state->slack[k] - state->residual[k];
}

int prepare_rows(State *state) {
    const int m = state->m;
    for (int k = 0; k < m; k++) {
        double *diagonal = state->M + k * (m + 1L);
        state->ridge[k] = state->inverse[k] = 0.0;
        if (state->sense[k] == INEQUALITY) {
            state->inverse[k] = 1.0 / state->lam[k];
            *diagonal += state->slack[k] * state->inverse[k];
        } else if (state->sense[k] == EQUALITY) {
            state->ridge[k] = RIDGE * *diagonal;
            *diagonal += state->ridge[k];
        } else {
            *diagonal += 1.0;
        }
        state->aimed[k] = -state->slack[k] * state->lam[k];
    }
    return raised_cholesky(m, state->M, state->factor);
}

void solve_rows(State *state, const double *k) {
    const double one = 1.0, minus = -1.0;
    const int m = state->m;
    int tied = 0;
    margins(state, k, state->right);
    for (int i = 0; i < m; i++) {
        state->pull[i] = state->aimed[i] * state->inverse[i];
        state->right[i] = state->residual[i] + state->pull[i] - state->right[i];
        tied |= state->ridge[i] != 0.0;
    }
    memcpy(state->dlam, state->right, sizeof(double) * m);
    cholesky_solve(m, state->factor, state->dlam);
    if (tied) { /* what the ridges took */
        for (int i = 0; i < m; i++) state->right[i] += state->ridge[i] * state->dlam[i];
        lapack.symv("L", &m, &minus, state->M, &m, state->dlam, &ONE, &one, state->right, &ONE);
        cholesky_solve(m, state->factor, state->right);
        for (int i = 0; i < m; i++) state->dlam[i] += state->right[i];
    }
    for (int i = 0; i < m; i++)
        state->dslack[i] = state->pull[i] - state->slack[i] * state->inverse[i] * state->dlam[i];
}

double slope(int n, const double *point, const double *change) {
    double most = 0.0;
    for (int k = 0; k < n; k++) most = fmax(most, -change[k] / point[k]);
    return most;
}

double slope_of_rows(const State *state, const double *point, const double *change) {
    double most = 0.0;
    for (int k = 0; k < state->m; k++)
        if (state->sense[k] == INEQUALITY) most = fmax(most, -change[k] / point[k]);
    return most;
}

double row_products(const State *state, double primal, double dual) {
    double sum = 0.0;
    for (int k = 0; k < state->m; k++)
        sum += (state->slack[k] + primal * state->dslack[k]) * (state->lam[k] + dual * state->dlam[k]);
    return sum;
}

void aim_rows(State *state, double target) {
    for (int k = 0; k < state->m; k++)
        state->aimed[k] += target - state->dslack[k] * state->dlam[k];
}

double aim(double ahead, double now, int pairs, int exponent) {
    return now / pairs * pow(fmin(fmax(ahead / now, 1e-6), 1.0), exponent);
}

void move_rows(State *state, double primal, double dual) {
    for (int k = 0; k < state->m; k++) {
        state->lam[k] += dual * state->dlam[k];
        state->slack[k] += primal * state->dslack[k];
    }
}

void offer(State *state, double gap) {
    double missed = 0.0, sum = gap;
    for (int k = 0; k < state->m; k++) {
        missed = fmax(missed, fabs(state->residual[k]));
        sum += state->residual[k];
    }
    state->waited++;
    const double measure = fmax(gap, missed);
    if (isfinite(sum) && measure < state->best) { /* fmax passes over what is not a number */
        state->best = measure;
        state->waited = 0;
        memcpy(state->best_W, state->W, sizeof(double) * state->N);
        memcpy(state->best_lam, state->lam, sizeof(double) * state->m);
    }
}

int goes_on(const State *state, int most, double goal) {
    if (state->steps >= most || state->best <= goal || state->waited >= PATIENCE) return 0;
    return state->waited < PAUSE || state->best >= NEAR;
}
