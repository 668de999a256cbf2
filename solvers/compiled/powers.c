/* Least l_p norms, 1 < p < inf, of one problem (see steps.h).

   Hard margins: ||W||_p^p / p is minimized instead, so that D_j = sign(W_j) |W_j|^(p-1). This curve is linearized in
   W where p >= 2 and in D where p < 2: the side on which it is flat at 0, not steep.

   Soft margins add a penalty to the norm itself, which has a kink at 0, where small penalties end. It is smoothed,

     N(W) = (sum_j u_j^(p/2))^(1/p),   u = W^2 + eps^2,      g = grad N = N^(1-p) u^(p/2-1) W,

   with an eps that falls with the products of the rows. Its Hessian is diag(h) - (p - 1) / N g g', hence

     K = K_0 + side side' / kappa,   K_0 = diag(1 / h),   side = K_0 g,   kappa = N / (p - 1) - g' K_0 g,    k = K (D - g).

   Along a ray N is nearly linear, so that a Newton step may go far too far: it is shortened until D - g falls. */
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
/* Least entry of K, relative to the largest, in systems of the order of the entries. */
static const double HELD = 1e-14;
/* The smoothing at first and at last, and what it is of the root of the products. */
static const double FIRST_EPS = 0.3, LEAST_EPS = 1e-10, EPS = 0.6;
/* A step is cut by this factor, at most so often, until D - g falls by this part of what the step promises. */
static const double CUT = 0.6, FALL = 0.1;
enum { CUTS = 25 };

/* Slope of W as a function of D on the curve, and what W answers to its distance from it. */
static void curve(const State *state, double power, double *K, double *k) {
    const double conjugate = power / (power - 1.0);
    double most = 0.0;
    for (int j = 0; j < state->N; j++) most = larger(most, fabs(state->W[j]));
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
    const int N = state->N, m = state->m, pairs = pairs_of_rows(state);
    const double one = 1.0, zero = 0.0;
    double *memory = malloc(doubles(4 * (Size)N + (state->by_entries ? 0 : (Size)N * m)));
    if (!memory) return 0;
    double *K = memory, *k = K + N, *root = k + N, *dD = root + N, *half = dD + N;
    measure_rows(state);
    while (goes_on(state, most, goal)) {
        double length = 0.0, check = 0.0;
        state->steps++;
        curve(state, power, K, k);
        if (state->by_entries) {
            double most_K = 0.0;
            for (int j = 0; j < N; j++) most_K = larger(most_K, K[j]);
            memset(state->P, 0, doubles((Size)N * N));
            for (int j = 0; j < N; j++) { /* entries that do not move are held by a large number, not by an infinite one */
                K[j] = fmax(K[j], HELD * most_K);
                state->P[j * ((Size)N + 1)] = 1.0 / K[j];
                state->pre[j] = k[j] / K[j];
            }
        } else {
            for (int j = 0; j < N; j++) root[j] = sqrt(K[j]);
            for (int i = 0; i < m; i++)
                for (int j = 0; j < N; j++) half[(Size)i * N + j] = state->F[(Size)i * N + j] * root[j];
            lapack.syrk("L", "T", &m, &N, &one, half, &N, &zero, state->M, &m);
        }
        if (!prepare_rows(state)) break;
        for (int second = 0; second < 2; second++) {
            solve_rows(state, k);
            /* W and D are tied by the curve: one length for both. */
            length = fmax(primal_slope(state), dual_slope(state));
            if (!second && pairs) {
                length = 1.0 / fmax(length, 1.0);
                aim_rows(state, aim(row_products(state, length, length), dot(m, state->slack, state->lam), pairs, CENTRING));
            }
        }
        length = 1.0 / fmax(length / BACK_OFF, 1.0);
        if (state->by_entries) {
            memcpy(dD, state->y, doubles(N));
        } else {
            adjoint(state, state->dlam, dD);
            for (int j = 0; j < N; j++) dD[j] = k[j] + K[j] * dD[j]; /* dW */
        }
        for (int j = 0; j < N; j++) check += dD[j];
        if (!isfinite(check + length)) break;
        for (int j = 0; j < N; j++) state->W[j] += length * dD[j];
        move_rows(state, length, length);
        measure_rows(state);
        /* Not below <D, W>, and equal to it on the curve only. */
        const double value = power_norm(N, state->W, power) * power_norm(N, state->D, power / (power - 1.0));
        offer(state, fabs(value - dot(m, state->c, state->lam)) / value);
    }
    free(memory);
    return 1;
}

typedef struct {
    double power, eps, size, kappa;      /* size: N */
    double *h, *g, *side, *k, *dW, *dD;  /* N each */
    double *half;                        /* (N + 1) m */
} Smooth;

/* N at W + length dW, and the distance of g from D + length dD there. */
static double distance(const Smooth *s, const State *state, double length) {
    const double p = s->power, small = s->eps * s->eps;
    double sum = 0.0, square = 0.0;
    for (int j = 0; j < state->N; j++) {
        const double W = state->W[j] + length * s->dW[j];
        sum += pow(W * W + small, 0.5 * p);
    }
    const double scale = pow(sum, (1.0 - p) / p);
    for (int j = 0; j < state->N; j++) {
        const double W = state->W[j] + length * s->dW[j];
        const double off = state->D[j] + length * s->dD[j] - scale * pow(W * W + small, 0.5 * p - 1.0) * W;
        square += off * off;
    }
    return sqrt(square);
}

static void smooth_norm(Smooth *s, const State *state) {
    const double p = s->power, small = s->eps * s->eps;
    double sum = 0.0;
    for (int j = 0; j < state->N; j++) sum += pow(state->W[j] * state->W[j] + small, 0.5 * p);
    s->size = pow(sum, 1.0 / p);
    s->kappa = 0.0;
    for (int j = 0; j < state->N; j++) {
        const double square = state->W[j] * state->W[j], u = square + small, bent = (p - 1.0) * square + small;
        const double root = pow(s->size, 1.0 - p) * pow(u, 0.5 * p - 1.0);
        s->g[j] = root * state->W[j];
        s->h[j] = root * bent / u;
        s->side[j] = s->g[j] / s->h[j];
        s->kappa += root * u * small / ((p - 1.0) * bent); /* N / (p - 1) - g . side, without cancellation */
    }
}

/* What the system of a step starts from, and k. */
static void smooth_prepare(Smooth *s, State *state) {
    const int N = state->N, m = state->m, rank = N + 1;
    const double one = 1.0, zero = 0.0;
    double lead = 0.0;
    for (int j = 0; j < N; j++) lead += s->side[j] * (state->D[j] - s->g[j]);
    if (state->by_entries) {
        memset(state->P, 0, doubles((Size)N * N));
        for (int j = 0; j < N; j++) {
            state->P[j * ((Size)N + 1)] = s->h[j];
            state->pre[j] = state->D[j] - s->g[j];
            state->side_up[j] = s->g[j];
        }
        state->side = s->side, state->kappa = s->kappa, state->lead = lead;
        return;
    }
    for (int j = 0; j < N; j++) s->k[j] = (state->D[j] - s->g[j]) / s->h[j] + s->side[j] * (lead / s->kappa);
    for (int i = 0; i < m; i++) {
        const double *row = state->F + (Size)i * N;
        double *half = s->half + (Size)i * rank;
        for (int j = 0; j < N; j++) half[j] = row[j] / sqrt(s->h[j]);
        half[N] = dot(N, row, s->side) / sqrt(s->kappa);
    }
    lapack.syrk("L", "T", &m, &rank, &one, s->half, &rank, &zero, state->M, &m);
}

static void smooth_change(Smooth *s, const State *state) {
    adjoint(state, state->dlam, s->dD);
    if (state->by_entries) {
        memcpy(s->dW, state->y, doubles(state->N));
        return;
    }
    const double share = dot(state->N, s->side, s->dD) / s->kappa;
    for (int j = 0; j < state->N; j++) s->dW[j] = s->k[j] + s->dD[j] / s->h[j] + s->side[j] * share;
}

/* The step; 0 where it is not finite. W and D are tied: one length for both. */
static int smooth_move(Smooth *s, State *state) {
    double length = 1.0 / fmax(fmax(primal_slope(state), dual_slope(state)) / BACK_OFF, 1.0), check = 0.0;
    smooth_change(s, state);
    for (int j = 0; j < state->N; j++) check += s->dW[j] + s->dD[j];
    if (!isfinite(check + length)) return 0;
    const double now = distance(s, state, 0.0);
    for (int cut = 0; cut < CUTS && !(distance(s, state, length) <= fmax((1.0 - FALL * length) * now, 0.01)); cut++)
        length *= CUT;
    for (int j = 0; j < state->N; j++) state->W[j] += length * s->dW[j];
    move_rows(state, length, length);
    return 1;
}

int minimize_soft_power(State *state, double power, int most, double goal) {
    const int N = state->N, m = state->m, pairs = pairs_of_rows(state);
    double *memory = malloc(doubles(6 * (Size)N + (state->by_entries ? 0 : ((Size)N + 1) * m)));
    if (!memory) return 0;
    Smooth s = {.power = power, .eps = FIRST_EPS, .h = memory, .g = memory + N, .side = memory + 2 * (Size)N,
                .k = memory + 3 * (Size)N, .dW = memory + 4 * (Size)N, .dD = memory + 5 * (Size)N, .half = memory + 6 * (Size)N};
    measure_rows(state);
    while (goes_on(state, most, goal)) {
        state->steps++;
        smooth_norm(&s, state);
        smooth_prepare(&s, state);
        if (!prepare_rows(state)) break;
        solve_rows(state, s.k);
        const double length = 1.0 / fmax(fmax(primal_slope(state), dual_slope(state)), 1.0);
        aim_rows(state, aim(row_products(state, length, length), row_products(state, 0.0, 0.0), pairs, CENTRING));
        solve_rows(state, s.k);
        if (!smooth_move(&s, state)) break;
        measure_rows(state);
        const double value = power_norm(N, state->W, power) + penalty_value(state);
        state->apart = fmax(power_norm(N, state->D, power / (power - 1.0)) - 1.0, 0.0);
        offer(state, fabs(value - dual_value(state)) / value);
        s.eps = fmax(fmin(s.eps, EPS * sqrt(row_products(state, 0.0, 0.0) / pairs)), LEAST_EPS);
    }
    free(memory);
    return 1;
}
