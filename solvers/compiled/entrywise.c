/* Least l_1 and l_inf norms of one problem (see steps.h).

   l_1 and l_inf: |W_j| <= r_j with slacks u = r - W, v = r + W and multipliers alpha, beta >= 0; the sum of r is
   minimized (l_1), or one r for all entries (l_inf). Then D = alpha - beta, and alpha + beta is 1 entry by entry (l_1)
   or in sum (l_inf). With A = alpha / u, B = beta / v the linearized conditions give, entry by entry,

     dD = (A + B) dW - (A - B) dr + const,      d(alpha + beta) = (A - B) dW - (A + B) dr + const,

   from which dr is eliminated: K is diagonal, plus a matrix of rank one for l_inf. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* How near to the boundary a step goes. */
static const double BACK_OFF = 0.995;
/* Share of the dual ball that a start may take. */
static const double BALL = 0.75;
/* Power of the share of products left by the first direction that the second one aims at. */
enum { CENTRING = 3 };

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

static Size bounds_numbers(const State *s) { return 19 * (Size)s->N + (s->by_entries ? 0 : ((Size)s->N + 1) * s->m); }

static void bounds_begin(Bounds *b, const State *state, double *memory) {
    const int N = state->N;
    double **wide[] = {&b->x, &b->z, &b->dx, &b->dz, &b->ratio, &b->aimed};
    double **narrow[] = {&b->r, &b->K, &b->way, &b->k, &b->dr, &b->dW, &b->dD};
    for (int i = 0; i < 6; i++, memory += 2 * (Size)N) *wide[i] = memory;
    for (int i = 0; i < 7; i++, memory += N) *narrow[i] = memory;
    b->half = memory;
    double most = 0.0, sum = 0.0, top = 0.0;
    for (int j = 0; j < N; j++) {
        most = larger(most, fabs(state->W[j]));
        sum += fabs(state->D[j]);
        top = larger(top, fabs(state->D[j]));
    }
    const int soft = state->penalty.loss != HARD; /* then D may start outside of the dual ball */
    const double inside = soft ? fmin(1.0, BALL / fmax(b->shared ? sum : top, 1e-300)) : 1.0;
    sum *= inside;
    for (int j = 0; j < N; j++) {
        const double W = state->W[j], D = inside * state->D[j];
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
    if (state->by_entries) {
        memset(state->P, 0, doubles((Size)N * N));
        for (int j = 0; j < N; j++) state->P[j * ((Size)N + 1)] = 1.0 / b->K[j];
        state->side = b->shared ? b->way : NULL;
        state->kappa = b->kappa;
        for (int j = 0; j < N; j++) state->side_up[j] = b->way[j] / b->K[j];
        return;
    }
    for (int i = 0; i < m; i++) {
        const double *row = state->F + (Size)i * N;
        double *half = b->half + (Size)i * rank;
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
        const double right = off[j] - b->z[j] + b->z[N + j] - up + down; /* hard margins: the first three cancel */
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
    if (state->by_entries) {
        for (int j = 0; j < N; j++) state->pre[j] = b->k[j] / b->K[j];
        state->lead = gained - left;
    } else if (b->shared) {
        for (int j = 0; j < N; j++) b->k[j] += b->way[j] * (gained - left) / b->kappa;
    }
    solve_rows(state, b->k);
    adjoint(state, state->dlam, b->dD);
    if (b->shared) share = state->by_entries ? state->share : (gained - left + dot(N, b->way, b->dD)) / b->kappa;
    for (int j = 0; j < N; j++) {
        b->dW[j] = state->by_entries ? state->y[j] : b->k[j] + b->K[j] * b->dD[j];
        if (b->shared) {
            if (!state->by_entries) b->dW[j] += b->way[j] * (share - (gained - left) / b->kappa);
            b->dr[j] = share;
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
    const double primal = 1.0 / fmax(1.0, fmax(slope(2 * N, b->x, b->dx), primal_slope(state)));
    const double dual = 1.0 / fmax(1.0, fmax(slope(2 * N, b->z, b->dz), dual_slope(state)));
    const double now = dot(2 * N, b->x, b->z) + row_products(state, 0.0, 0.0);
    double ahead = row_products(state, primal, dual);
    for (int j = 0; j < 2 * N; j++) ahead += (b->x[j] + primal * b->dx[j]) * (b->z[j] + dual * b->dz[j]);
    const double target = aim(ahead, now, pairs, CENTRING);
    for (int j = 0; j < 2 * N; j++) b->aimed[j] += target - b->dx[j] * b->dz[j];
    aim_rows(state, target);
}

/* How far the multipliers of the bounds are from D, and their sums from 1: without this a gap may vanish by chance. */
static double bounds_apart(const Bounds *b, const State *state) {
    double most = 0.0, left = 1.0;
    for (int j = 0; j < state->N; j++) {
        const double up = b->z[j], down = b->z[state->N + j];
        most = larger(most, fabs(state->D[j] - up + down));
        left -= up + down;
        if (!b->shared) most = larger(most, fabs(1.0 - up - down));
    }
    return b->shared ? fmax(most, fabs(left)) : most;
}

/* The step; 0 where it is not finite. */
static int bounds_move(Bounds *b, State *state) {
    const int N = state->N;
    double primal = fmax(slope(2 * N, b->x, b->dx), primal_slope(state));
    double dual = fmax(slope(2 * N, b->z, b->dz), dual_slope(state));
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

int minimize_bounds(State *state, int shared, int most, double goal) {
    const int N = state->N, m = state->m, pairs = 2 * N + pairs_of_rows(state);
    const Size own = bounds_numbers(state);
    double *memory = malloc(doubles(own + vertex_numbers(m, N)));
    int *pivots = malloc(ints(2 * (Size)m + N + 1));
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
        value += penalty_value(state);
        state->apart = bounds_apart(&b, state);
        gap = fabs(value - dual_value(state)) / value;
        offer(state, gap);
        if (state->penalty.loss == HARD && find_vertex(state, shared, gap, b.x, b.z, memory + own, pivots)) break;
    }
    free(memory), free(pivots);
    return 1;
}
