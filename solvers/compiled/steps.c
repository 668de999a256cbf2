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
enum { PATIENCE = 15, PAUSE = 3, SOFT_PATIENCE = 40, SOFT_PAUSE = 8 };
static const double NEAR = 1e-6;
/* Order up to which a factorization of our own is quicker than a call of LAPACK. */
enum { SMALL = 24 };

Size state_numbers(const State *state) {
    const Size m = state->m, N = state->N;
    const Size system = state->by_entries ? 2 * N * N + N * m + 5 * N + 4 * m : 2 * m * m;
    return system + 12 * m + 3 * N + 8 * (Size)state->penalty.groups;
}

static double *take(double **memory, Size numbers) {
    double *part = *memory;
    *memory += numbers;
    return part;
}

/* Rows by group: those of group j are order[begin[j]] to order[begin[j + 1] - 1]; rows that do not exist are left out. */
static void order_groups(State *state) {
    const Penalty *penalty = &state->penalty;
    int *begin = state->begin;
    if (penalty->loss == HARD) return;
    memset(begin, 0, ints(penalty->groups + 2));
    for (int k = 0; k < state->m; k++)
        if (state->sense[k] != VOID) begin[penalty->group[k] + 2]++;
    for (int j = 0; j < penalty->groups; j++) begin[j + 2] += begin[j + 1];
    for (int k = 0; k < state->m; k++)
        if (state->sense[k] != VOID) state->order[begin[penalty->group[k] + 1]++] = k;
}

void state_begin(State *state, double *memory) {
    const Size m = state->m, N = state->N;
    double **rows[] = {&state->lam, &state->slack, &state->residual, &state->ridge, &state->inverse, &state->aimed,
                       &state->pull, &state->right, &state->dlam, &state->dslack, &state->best_lam};
    double **groups[] = {&state->eta, &state->t, &state->load, &state->deta, &state->dload, &state->aimed_eta,
                         &state->e0, &state->e1};
    if (state->by_entries) {
        state->P = take(&memory, N * N);
        state->P_factor = take(&memory, N * N);
        state->half = take(&memory, N * m);
        state->y = take(&memory, N);
        state->pre = take(&memory, N);
        state->side_up = take(&memory, N);
        state->side_W = take(&memory, N);
        state->tip = take(&memory, m);
        state->side_lam = take(&memory, m);
        state->diagonal = take(&memory, m);
        state->room = take(&memory, m);
        state->M = state->factor = NULL;
    } else {
        state->M = take(&memory, m * m);
        state->factor = take(&memory, m * m);
        state->P = state->P_factor = state->half = state->y = NULL;
    }
    order_groups(state);
    state->W = take(&memory, N);
    state->D = take(&memory, N);
    state->best_W = take(&memory, N);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) *rows[i] = take(&memory, m);
    for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++) *groups[i] = take(&memory, state->penalty.groups);
    state->best = INFINITY;
    state->side = NULL;
    state->apart = 0.0;
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
        double *column = A + (Size)j * n;
        if (!(column[j] > 0.0)) return 0;
        const double root = sqrt(column[j]);
        for (int i = j; i < n; i++) column[i] /= root;
        for (int k = j + 1; k < n; k++) {
            double *other = A + (Size)k * n;
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
        memcpy(factor, A, doubles((Size)n * n));
        for (int i = 0; i < n && k; i++) factor[i * ((Size)n + 1)] *= 1.0 + SHIFTS[k];
        if (cholesky(n, factor)) return 1;
    }
    return 0;
}

void cholesky_solve(int n, const double *factor, double *x) {
    int failed;
    lapack.potrs("L", &n, &ONE, factor, &n, x, &n, &failed);
}

int pairs_of_rows(const State *state) {
    int count = state->penalty.loss == HINGE ? state->penalty.groups : 0;
    for (int k = 0; k < state->m; k++) count += state->sense[k] == INEQUALITY;
    return count;
}

/* E x for one number per row. */
static void loads(const State *state, const double *x, double *out) {
    const Penalty *penalty = &state->penalty;
    memset(out, 0, doubles(penalty->groups));
    for (int k = 0; k < state->m && penalty->groups; k++) out[penalty->group[k]] += penalty->weight[k] * x[k];
}

void measure_rows(State *state) {
    const Penalty *penalty = &state->penalty;
    adjoint(state, state->lam, state->D);
    margins(state, state->W, state->residual);
    for (int k = 0; k < state->m; k++) state->residual[k] = state->c[k] + state->slack[k] - state->residual[k];
    if (penalty->loss == HARD) return;
    for (int k = 0; k < state->m; k++) state->residual[k] -= penalty->weight[k] * state->eta[penalty->group[k]];
    loads(state, state->lam, state->load);
}

/* Delta of the rows, without the blocks of the penalty, in `ridge`-free form: what a row adds to the diagonal. */
static double own_diagonal(State *state, int k, double already) {
    state->ridge[k] = state->inverse[k] = 0.0;
    if (state->sense[k] == INEQUALITY) {
        state->inverse[k] = 1.0 / state->lam[k];
        return state->slack[k] * state->inverse[k];
    }
    if (state->sense[k] == VOID) return 1.0;
    return state->ridge[k] = RIDGE * already;
}

/* How the slacks of the groups answer to a change of the multipliers. */
static void prepare_penalty(State *state) {
    const Penalty *penalty = &state->penalty;
    for (int j = 0; j < penalty->groups; j++) {
        state->e1[j] = penalty->loss == HINGE ? state->eta[j] / state->t[j] : 0.5 / penalty->C;
        state->aimed_eta[j] = penalty->loss == HINGE ? -state->eta[j] * state->t[j] : 0.0;
    }
}

/* The blocks e1 w w' of the penalty, in the lower triangle of M. */
static void add_blocks(State *state) {
    const Penalty *penalty = &state->penalty;
    const Size m = state->m;
    if (penalty->groups == m) { /* one row each, in the order of the rows */
        for (int k = 0; k < m; k++)
            state->M[k * (m + 1)] += state->e1[penalty->group[k]] * penalty->weight[k] * penalty->weight[k];
        return;
    }
    for (int k = 0; k < m; k++) {
        const int group = penalty->group[k];
        const double share = state->e1[group] * penalty->weight[k];
        double *column = state->M + k * m;
        for (int l = k; l < m; l++)
            if (penalty->group[l] == group) column[l] += share * penalty->weight[l];
    }
}

/* Numbers of each group in `e0`: sum of w_k^2 / Delta_k; and rows times a root of Delta^-1 in `half`: with v = w / sqrt(Delta)
   and 1 / (1 + e1 |v|^2) = (1 - beta |v|^2)^2 that root is (I - beta v v') diag(Delta^-1/2), group by group. Squaring it
   loses no digits, where Delta^-1 itself would: near the end its parts are large and cancel. */
static void rooted_rows(State *state) {
    const Penalty *penalty = &state->penalty;
    const Size N = state->N;
    double *sum = state->e0, *scale = state->pull;
    memset(sum, 0, doubles(penalty->groups));
    for (int k = 0; k < state->m; k++) {
        const double diagonal = own_diagonal(state, k, 1.0);
        scale[k] = state->sense[k] == VOID ? 0.0 : 1.0 / sqrt(diagonal);
        state->diagonal[k] = scale[k] * scale[k];
        if (penalty->loss != HARD) {
            const double v = penalty->weight[k] * scale[k];
            sum[penalty->group[k]] += v * v;
        }
        for (Size j = 0; j < N; j++) state->half[k * N + j] = scale[k] * state->F[k * N + j];
    }
    if (penalty->loss == HARD) return;
    /* Group by group: rows of a group need not be neighbours, so the sums of their rows are kept in P_factor by chunks. */
    for (int first = 0; first < penalty->groups; first += state->N) {
        const int last = first + state->N < penalty->groups ? first + state->N : penalty->groups;
        double *sums = state->P_factor;
        memset(sums, 0, doubles((Size)N * (last - first)));
        for (int k = 0; k < state->m; k++) {
            const int j = penalty->group[k];
            if (j < first || j >= last) continue;
            const double v = penalty->weight[k] * scale[k], *row = state->half + k * N;
            double *into = sums + (j - first) * N;
            for (Size i = 0; i < N; i++) into[i] += v * row[i];
        }
        for (int k = 0; k < state->m; k++) {
            const int j = penalty->group[k];
            if (j < first || j >= last || !(sum[j] > 0.0)) continue;
            const double grown = state->e1[j] * sum[j], root = sqrt(1.0 + grown);
            const double beta = grown / (root * (1.0 + root)) / sum[j]; /* (1 - 1 / root) / |v|^2 */
            const double share = beta * penalty->weight[k] * scale[k], *from = sums + (j - first) * N;
            double *row = state->half + k * N;
            for (Size i = 0; i < N; i++) row[i] -= share * from[i];
        }
    }
}

/* x = Delta^-1 x on the rows of one group of a penalty: with delta the diagonal, Q the sum of w^2 / delta and S that of
   w x / delta, (x_k - w_k S / Q + w_k (S / Q) / (1 + e1 Q)) / delta_k. The first difference is summed over pairs of rows, so
   that a small delta_k multiplies no rounding error of x_k itself. */
static void divide_group(const State *state, const int *rows, int count, double e1, double *x, double *out) {
    const double *w = state->penalty.weight;
    double Q = 0.0, S = 0.0;
    for (int i = 0; i < count; i++) {
        const int k = rows[i];
        Q += w[k] * w[k] * state->diagonal[k];
        S += w[k] * x[k] * state->diagonal[k];
    }
    for (int i = 0; i < count; i++) {
        const int k = rows[i];
        double difference = 0.0;
        for (int l = 0; l < count; l++)
            difference += w[rows[l]] * state->diagonal[rows[l]] * (w[rows[l]] * x[k] - w[k] * x[rows[l]]);
        out[i] = state->diagonal[k] * (difference + w[k] * S / (1.0 + e1 * Q)) / Q;
    }
    for (int i = 0; i < count; i++) x[rows[i]] = out[i];
}

/* x = Delta^-1 x; `diagonal` is that of the inverse without the penalty, and 0 where there is no row. */
static void divide_by_delta(State *state, double *x) {
    const Penalty *penalty = &state->penalty;
    if (penalty->loss == HARD) {
        for (int k = 0; k < state->m; k++) x[k] *= state->diagonal[k];
        return;
    }
    for (int j = 0; j < penalty->groups; j++) {
        const int *rows = state->order + state->begin[j], count = state->begin[j + 1] - state->begin[j];
        if (count == 1)
            x[*rows] /= 1.0 / state->diagonal[*rows] + state->e1[j] * penalty->weight[*rows] * penalty->weight[*rows];
        else if (count)
            divide_group(state, rows, count, state->e1[j], x, state->room);
    }
}

/* x = Delta^-1 (right - F y). */
static void rows_answer(State *state, const double *right, const double *y, double *x) {
    margins(state, y, x);
    for (int i = 0; i < state->m; i++) x[i] = (right ? right[i] : 0.0) - x[i];
    divide_by_delta(state, x);
}

/* How W and the multipliers answer to the part of K of rank one. */
static void prepare_side(State *state) {
    memcpy(state->side_W, state->side_up, doubles(state->N));
    cholesky_solve(state->N, state->P_factor, state->side_W);
    margins(state, state->side, state->tip);
    rows_answer(state, NULL, state->side_W, state->side_lam);
    state->stiff = state->kappa - dot(state->m, state->tip, state->side_lam);
}

int prepare_rows(State *state) {
    const int m = state->m, N = state->N;
    const double one = 1.0;
    prepare_penalty(state);
    for (int k = 0; k < m; k++) state->aimed[k] = -state->slack[k] * state->lam[k];
    if (state->by_entries) {
        rooted_rows(state);
        lapack.syrk("L", "N", &N, &m, &one, state->half, &N, &one, state->P, &N);
        if (!raised_cholesky(N, state->P, state->P_factor)) return 0;
        if (state->side) prepare_side(state);
        return 1;
    }
    for (int k = 0; k < m; k++) {
        double *diagonal = state->M + k * ((Size)m + 1);
        *diagonal += own_diagonal(state, k, *diagonal);
    }
    if (state->penalty.loss != HARD) add_blocks(state);
    return raised_cholesky(m, state->M, state->factor);
}

/* dW and dlam from `pre` and the right side, by the system of the order of the entries. */
static void solve_by_entries(State *state) {
    memcpy(state->dlam, state->right, doubles(state->m));
    divide_by_delta(state, state->dlam);
    adjoint(state, state->dlam, state->y);
    for (int j = 0; j < state->N; j++) state->y[j] += state->pre[j];
    cholesky_solve(state->N, state->P_factor, state->y);
    rows_answer(state, state->right, state->y, state->dlam);
    if (!state->side) return;
    state->share = (state->lead + dot(state->m, state->tip, state->dlam)) / state->stiff;
    for (int i = 0; i < state->m; i++) state->dlam[i] += state->share * state->side_lam[i];
    for (int j = 0; j < state->N; j++) state->y[j] += state->share * state->side_W[j];
}

/* dlam from the right side, by the system of the order of the rows. */
static void solve_by_rows(State *state) {
    const double one = 1.0, minus = -1.0;
    const int m = state->m;
    int tied = 0;
    for (int i = 0; i < m; i++) tied |= state->ridge[i] != 0.0;
    memcpy(state->dlam, state->right, doubles(m));
    cholesky_solve(m, state->factor, state->dlam);
    if (!tied) return;
    for (int i = 0; i < m; i++) state->right[i] += state->ridge[i] * state->dlam[i]; /* what the ridges took */
    lapack.symv("L", &m, &minus, state->M, &m, state->dlam, &ONE, &one, state->right, &ONE);
    cholesky_solve(m, state->factor, state->right);
    for (int i = 0; i < m; i++) state->dlam[i] += state->right[i];
}

void solve_rows(State *state, const double *k) {
    const Penalty *penalty = &state->penalty;
    const int m = state->m, groups = penalty->groups;
    if (!state->by_entries) margins(state, k, state->right);
    for (int j = 0; j < groups; j++)
        state->e0[j] = penalty->loss == HINGE ? state->aimed_eta[j] / state->t[j]
                                              : 0.5 * state->load[j] / penalty->C - state->eta[j];
    for (int i = 0; i < m; i++) {
        state->pull[i] = state->aimed[i] * state->inverse[i];
        state->right[i] = state->residual[i] + state->pull[i] - (state->by_entries ? 0.0 : state->right[i]);
        if (groups) state->right[i] -= penalty->weight[i] * state->e0[penalty->group[i]];
    }
    if (state->by_entries)
        solve_by_entries(state);
    else
        solve_by_rows(state);
    for (int i = 0; i < m; i++)
        state->dslack[i] = state->pull[i] - state->slack[i] * state->inverse[i] * state->dlam[i];
    loads(state, state->dlam, state->dload);
    for (int j = 0; j < groups; j++) state->deta[j] = state->e0[j] + state->e1[j] * state->dload[j];
}

double slope(int n, const double *point, const double *change) {
    double most = 0.0;
    for (int k = 0; k < n; k++) most = larger(most, -change[k] / point[k]);
    return most;
}

static double slope_of_rows(const State *state, const double *point, const double *change) {
    double most = 0.0;
    for (int k = 0; k < state->m; k++)
        if (state->sense[k] == INEQUALITY) most = larger(most, -change[k] / point[k]);
    return most;
}

double primal_slope(const State *state) {
    const double most = slope_of_rows(state, state->slack, state->dslack);
    return state->penalty.loss == HINGE ? fmax(most, slope(state->penalty.groups, state->eta, state->deta)) : most;
}

double dual_slope(const State *state) {
    double most = slope_of_rows(state, state->lam, state->dlam);
    for (int j = 0; j < state->penalty.groups && state->penalty.loss == HINGE; j++)
        most = larger(most, state->dload[j] / state->t[j]);
    return most;
}

double row_products(const State *state, double primal, double dual) {
    double sum = 0.0;
    for (int k = 0; k < state->m; k++)
        sum += (state->slack[k] + primal * state->dslack[k]) * (state->lam[k] + dual * state->dlam[k]);
    for (int j = 0; j < state->penalty.groups && state->penalty.loss == HINGE; j++)
        sum += (state->eta[j] + primal * state->deta[j]) * (state->t[j] - dual * state->dload[j]);
    return sum;
}

void aim_rows(State *state, double target) {
    for (int k = 0; k < state->m; k++)
        state->aimed[k] += target - state->dslack[k] * state->dlam[k];
    for (int j = 0; j < state->penalty.groups; j++) state->aimed_eta[j] += target + state->deta[j] * state->dload[j];
}

double penalty_value(const State *state) {
    const Penalty *penalty = &state->penalty;
    double sum = 0.0;
    for (int j = 0; j < penalty->groups; j++) sum += penalty->loss == HINGE ? state->eta[j] : state->eta[j] * state->eta[j];
    return penalty->loss == HARD ? 0.0 : penalty->C * sum;
}

double dual_value(const State *state) {
    const Penalty *penalty = &state->penalty;
    const double gained = dot(state->m, state->c, state->lam);
    return penalty->loss == SQUARED ? gained - 0.25 * dot(penalty->groups, state->load, state->load) / penalty->C : gained;
}

double aim(double ahead, double now, int pairs, int exponent) {
    return now / pairs * pow(fmin(fmax(ahead / now, 1e-6), 1.0), exponent);
}

void move_rows(State *state, double primal, double dual) {
    for (int k = 0; k < state->m; k++) {
        state->lam[k] += dual * state->dlam[k];
        state->slack[k] += primal * state->dslack[k];
    }
    for (int j = 0; j < state->penalty.groups; j++) {
        state->eta[j] += primal * state->deta[j];
        state->t[j] -= dual * state->dload[j];
    }
}

void offer(State *state, double gap) {
    double missed = state->apart, sum = gap;
    for (int k = 0; k < state->m; k++) {
        missed = larger(missed, fabs(state->residual[k]));
        sum += state->residual[k];
    }
    state->waited++;
    const double measure = fmax(gap, missed);
    if (isfinite(sum) && measure < state->best) { /* fmax passes over what is not a number */
        state->best = measure;
        state->waited = 0;
        memcpy(state->best_W, state->W, doubles(state->N));
        memcpy(state->best_lam, state->lam, doubles(state->m));
    }
}

int goes_on(const State *state, int most, double goal) {
    const int soft = state->penalty.loss != HARD; /* starts outside, so that the first steps gain feasibility, not the gap */
    if (*state->stop || state->steps >= most || state->best <= goal || state->waited >= (soft ? SOFT_PATIENCE : PATIENCE)) return 0;
    return state->waited < (soft ? SOFT_PAUSE : PAUSE) || state->best >= NEAR;
}
