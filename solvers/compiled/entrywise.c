/* Least norms of entries, l_1, l_inf and l_p, of one problem (see steps.h).

   l_1 and l_inf: |W_j| <= r_j with slacks u = r - W, v = r + W and multipliers alpha, beta >= 0; the sum of r is
   minimized (l_1), or one r for all entries (l_inf). Then D = alpha - beta, and alpha + beta is 1 entry by entry (l_1)
   or in sum (l_inf). With A = alpha / u, B = beta / v the linearized conditions give, entry by entry,

     dD = (A + B) dW - (A - B) dr + const,      d(alpha + beta) = (A - B) dW - (A + B) dr + const,

   from which dr is eliminated: K is diagonal, plus a matrix of rank one for l_inf.

   l_p, 1 < p < inf: ||W||_p^p / p is minimized instead, so that D_j = sign(W_j) |W_j|^(p-1). This curve is linearized in
   W where p >= 2 and in D where p < 2: the side on which it is flat at 0, not steep. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* How near to the boundary a step goes. */
static const double BACK_OFF = 0.995;
/* Power of the share of products left by the first direction that the second one aims at. */
enum { CENTRING = 3 };
/* Next to 0 the curve of a power is flat: there W moves as far as D makes it. */
static const double FLAT = 1e-6;

/* The lower triangle of M = half' half, for m columns of `rank` numbers. */
static void gram(const State *state, const double *half, int rank) {
    const double one = 1.0, zero = 0.0;
    lapack.syrk("L", "T", &state->m, &rank, &one, half, &rank, &zero, state->M, &state->m);
}

typedef struct {
    int shared;
    double *r;           /* bounds: one for each entry, or all alike */
    double *x, *z;       /* u, v and alpha, beta: slacks of the bounds and their multipliers, 2 N each */
    double *dx, *dz, *ratio, *aimed; /* their changes; z / x; products aimed at, 2 N each */
    double *K, *way;     /* diagonal of K; slope of dr in dW (l_1), or direction of the rank-one part (l_inf) */
    double *k, *dr, *dW, *dD;        /* N each */
    double *half;        /* (N + 1) m */
    double kappa;        /* weight of the rank-one part */
} Bounds;

static long bounds_numbers(int m, int N) { return 19L * N + (N + 1L) * m; }

static void bounds_begin(Bounds *b, const State *state, double *memory) {
    const int N = state->N;
    double **wide[] = {&b->x, &b->z, &b->dx, &b->dz, &b->ratio, &b->aimed};
    double **narrow[] = {&b->r, &b->K, &b->way, &b->k, &b->dr, &b->dW, &b->dD};
    for (int i = 0; i < 6; i++, memory += 2L * N) *wide[i] = memory;
    for (int i = 0; i < 7; i++, memory += N) *narrow[i] = memory;
    b->half = memory;
    double most = 0.0, sum = 0.0;
    for (int j = 0; j < N; j++) {
        most = fmax(most, fabs(state->W[j]));
        sum += fabs(state->D[j]);
    }
    for (int j = 0; j < N; j++) {
        const double W = state->W[j], D = state->D[j];
        const double total = b->shared ? fabs(D) + (1.0 - sum) / N : 1.0;
        b->r[j] = b->shared ? 1.05 * most : 1.2 * fabs(W) + 0.1 * most;
        b->x[j] = b->r[j] - W;
        b->x[N + j] = b->r[j] + W;
        b->z[j] = 0.5 * (total + D);
        b->z[N + j] = 0.5 * (total - D);
    }
}

/* K, and M = F K F'. */
static void bounds_prepare(Bounds *b, State *state) {
    const int N = state->N, m = state->m, rank = b->shared ? N + 1 : N;
    b->kappa = 0.0;
    for (int j = 0; j < 2 * N; j++) {
        b->ratio[j] = b->z[j] / b->x[j];
        b->aimed[j] = -b->x[j] * b->z[j];
    }
    for (int j = 0; j < N; j++) {
        const double A = b->ratio[j], B = b->ratio[N + j], h = A + B, rest = 4.0 * A * B / h;
        b->way[j] = (A - B) / h;
        b->kappa += rest; /* h - g^2 / h, without cancellation */
        b->K[j] = b->shared ? 1.0 / h : 1.0 / rest;
        b->k[j] = sqrt(b->K[j]);
    }
    for (int i = 0; i < m; i++) {
        const double *row = state->F + (long)i * N;
        double *half = b->half + (long)i * rank;
        for (int j = 0; j < N; j++) half[j] = row[j] * b->k[j];
        if (b->shared) half[N] = dot(N, row, b->way) / sqrt(b->kappa);
    }
    gram(state, b->half, rank);
}

/* The direction to the products that are aimed at: changes of everything. */
static void bounds_direction(Bounds *b, State *state) {
    const int N = state->N;
    const double *off = state->D;
    double left = 1.0, gained = 0.0, share = 0.0;
    for (int j = 0; j < N; j++) {
        const double up = b->aimed[j] / b->x[j], down = b->aimed[N + j] / b->x[N + j];
        const double right = off[j] - b->z[j] + b->z[N + j] - up + down; /* the first three cancel but for rounding */
        const double h = b->ratio[j] + b->ratio[N + j];
        if (b->shared) {
            left -= b->z[j] + b->z[N + j];
            gained += up + down + b->way[j] * right;
            b->k[j] = b->K[j] * right;
        } else {
            b->dr[j] = (up + down - (1.0 - b->z[j] - b->z[N + j])) / h;
            b->k[j] = b->K[j] * (right + b->way[j] * h * b->dr[j]);
        }
    }
    const double constant = (gained - left) / b->kappa;
    if (b->shared)
        for (int j = 0; j < N; j++) b->k[j] += b->way[j] * constant;
    solve_rows(state, b->k);
    adjoint(state, state->dlam, b->dD);
    if (b->shared) share = dot(N, b->way, b->dD) / b->kappa;
    for (int j = 0; j < N; j++) {
        b->dW[j] = b->k[j] + b->K[j] * b->dD[j];
        if (b->shared) {
            b->dW[j] += b->way[j] * share;
            b->dr[j] = constant + share;
        } else {
            b->dr[j] += b->way[j] * b->dW[j];
        }
        b->dx[j] = b->dr[j] - b->dW[j];
        b->dx[N + j] = b->dr[j] + b->dW[j];
    }
    for (int j = 0; j < 2 * N; j++) b->dz[j] = b->aimed[j] / b->x[j] - b->ratio[j] * b->dx[j];
}

/* The second direction aims where the first one shows that it may. */
static void bounds_aim(Bounds *b, State *state, int pairs) {
    const int N = state->N;
    const double primal = 1.0 / fmax(1.0, fmax(slope(2 * N, b->x, b->dx), slope_of_rows(state, state->slack, state->dslack)));
    const double dual = 1.0 / fmax(1.0, fmax(slope(2 * N, b->z, b->dz), slope_of_rows(state, state->lam, state->dlam)));
    double now = dot(2 * N, b->x, b->z) + dot(state->m, state->slack, state->lam);
    double ahead = row_products(state, primal, dual);
    for (int j = 0; j < 2 * N; j++) ahead += (b->x[j] + primal * b->dx[j]) * (b->z[j] + dual * b->dz[j]);
    const double target = aim(ahead, now, pairs, CENTRING);
    for (int j = 0; j < 2 * N; j++) b->aimed[j] += target - b->dx[j] * b->dz[j];
    aim_rows(state, target);
}

/* The step; 0 where it is not finite. */
static int bounds_move(Bounds *b, State *state) {
    const int N = state->N;
    double primal = fmax(slope(2 * N, b->x, b->dx), slope_of_rows(state, state->slack, state->dslack));
    double dual = fmax(slope(2 * N, b->z, b->dz), slope_of_rows(state, state->lam, state->dlam));
    double check = 0.0;
    primal = 1.0 / fmax(primal / BACK_OFF, 1.0);
    dual = 1.0 / fmax(dual / BACK_OFF, 1.0);
    for (int j = 0; j < 2 * N; j++) check += b->dx[j] + b->dz[j];
    for (int k = 0; k < state->m; k++) check += state->dlam[k] + state->dslack[k];
    if (!isfinite(check + primal + dual)) return 0;
    for (int j = 0; j < N; j++) {
        state->W[j] += primal * b->dW[j];
        b->r[j] += primal * b->dr[j];
    }
    for (int j = 0; j < 2 * N; j++) {
        b->x[j] += primal * b->dx[j];
        b->z[j] += dual * b->dz[j];
    }
    move_rows(state, primal, dual);
    return 1;
}

static int inequalities(const State *state) {
    int count = 0;
    for (int k = 0; k < state->m; k++) count += state->sense[k] == INEQUALITY;
    return count;
}

int minimize_bounds(State *state, int shared, int most, double goal) {
    const int N = state->N, m = state->m, pairs = 2 * N + inequalities(state);
    const long own = bounds_numbers(m, N);
    double *memory = malloc(sizeof(double) * (own + vertex_numbers(m, N)));
    int *pivots = malloc(sizeof(int) * (2L * m + N + 1));
    Bounds b = {.shared = shared};
    if (!memory || !pivots) {
        free(memory), free(pivots);
        return 0;
    }
    measure_rows(state);
    bounds_begin(&b, state, memory);
    while (goes_on(state, most, goal)) {
        double value = 0.0, gap;
        state->steps++;
        bounds_prepare(&b, state);
        if (!prepare_rows(state)) break;
        bounds_direction(&b, state);
        bounds_aim(&b, state, pairs);
        bounds_direction(&b, state);
        if (!bounds_move(&b, state)) break;
        measure_rows(state);
        for (int j = 0; j < (shared ? 1 : N); j++) value += b.r[j];
        gap = fabs(value - dot(m, state->c, state->lam)) / value;
        offer(state, gap);
        if (find_vertex(state, shared, gap, b.x, b.z, memory + own, pivots)) break;
    }
    free(memory), free(pivots);
    return 1;
}

/* Slope of W as a function of D on the curve, and what W answers to its distance from it. */
static void curve(const State *state, double power, double *K, double *k) {
    const double conjugate = power / (power - 1.0);
    double most = 0.0;
    for (int j = 0; j < state->N; j++) most = fmax(most, fabs(state->W[j]));
    for (int j = 0; j < state->N; j++) {
        const double W = state->W[j], D = state->D[j];
        if (power >= 2.0) {
            K[j] = 1.0 / ((power - 1.0) * pow(fmax(fabs(W), FLAT * most), power - 2.0));
            k[j] = K[j] * (D - W * pow(fabs(W), power - 2.0));
        } else {
            const double size = pow(fabs(D), conjugate - 2.0);
            K[j] = (conjugate - 1.0) * size;
            k[j] = D * size - W;
        }
    }
}

static double power_norm(int n, const double *x, double power) {
    double sum = 0.0;
    for (int j = 0; j < n; j++) sum += pow(fabs(x[j]), power);
    return pow(sum, 1.0 / power);
}

int minimize_power(State *state, double power, int most, double goal) {
    const int N = state->N, m = state->m, pairs = inequalities(state);
    double *memory = malloc(sizeof(double) * (4L * N + (long)N * m));
    if (!memory) return 0;
    double *K = memory, *k = K + N, *root = k + N, *dD = root + N, *half = dD + N;
    measure_rows(state);
    while (goes_on(state, most, goal)) {
        double length = 0.0, check = 0.0;
        state->steps++;
        curve(state, power, K, k);
        for (int j = 0; j < N; j++) root[j] = sqrt(K[j]);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < N; j++) half[(long)i * N + j] = state->F[(long)i * N + j] * root[j];
        gram(state, half, N);
        if (!prepare_rows(state)) break;
        for (int second = 0; second < 2; second++) {
            solve_rows(state, k);
            /* W and D are tied by the curve: one length for both. */
            length = fmax(slope_of_rows(state, state->slack, state->dslack), slope_of_rows(state, state->lam, state->dlam));
            if (!second && pairs) {
                length = 1.0 / fmax(length, 1.0);
                aim_rows(state, aim(row_products(state, length, length), dot(m, state->slack, state->lam), pairs, CENTRING));
            }
        }
        length = 1.0 / fmax(length / BACK_OFF, 1.0);
        adjoint(state, state->dlam, dD);
        for (int j = 0; j < N; j++) check += k[j] + K[j] * dD[j];
        if (!isfinite(check + length)) break;
        for (int j = 0; j < N; j++) state->W[j] += length * (k[j] + K[j] * dD[j]);
        move_rows(state, length, length);
        measure_rows(state);
        /* Not below <D, W>, and equal to it on the curve only. */
        const double value = power_norm(N, state->W, power) * power_norm(N, state->D, power / (power - 1.0));
        offer(state, fabs(value - dot(m, state->c, state->lam)) / value);
    }
    free(memory);
    return 1;
}
