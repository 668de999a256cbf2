/* Least |W|_F^2 / 2 of one problem (see steps.h): K is the identity, and F F' is formed once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* How near to the boundary a step goes. */
static const double BACK_OFF = 0.995;
enum { CENTRING = 3 };

/* F F', or the identity: what the system starts from in every step. */
static void fill_system(const State *state, const double *gram) {
    const Size N = state->N, m = state->m;
    if (!state->by_entries) {
        memcpy(state->M, gram, doubles((Size)m * m));
        return;
    }
    memset(state->P, 0, doubles((Size)N * N));
    for (Size j = 0; j < N; j++) state->P[j * (N + 1)] = 1.0;
}

/* The change of W: that of D and what is between the two, or as the system of the entries gives it. */
static void change_of_W(const State *state, const double *k, double *dW) {
    if (state->by_entries) {
        memcpy(dW, state->y, doubles(state->N));
        return;
    }
    adjoint(state, state->dlam, dW);
    for (int j = 0; j < state->N; j++) dW[j] += k[j];
}

int minimize_frobenius(State *state, int most, double goal) {
    const int N = state->N, m = state->m, pairs = pairs_of_rows(state);
    const Size square = state->by_entries ? 0 : (Size)m * m;
    const double one = 1.0, zero = 0.0;
    double *memory = malloc(doubles(square + 2 * (Size)N));
    if (!memory) return 0;
    double *dW = memory, *k = dW + N, *gram = k + N;
    if (square) lapack.syrk("L", "T", &m, &N, &one, state->F, &N, &zero, gram, &m);
    measure_rows(state);
    while (goes_on(state, most, goal)) {
        double length = 0.0, check = 0.0;
        state->steps++;
        fill_system(state, gram);
        if (!prepare_rows(state)) break;
        for (int j = 0; j < N; j++) k[j] = state->D[j] - state->W[j];
        if (state->by_entries) memcpy(state->pre, k, doubles(N));
        for (int second = 0; second < 2; second++) {
            solve_rows(state, k);
            length = fmax(primal_slope(state), dual_slope(state)); /* W = D: one length for both */
            if (second) break;
            length = 1.0 / fmax(length, 1.0);
            aim_rows(state, aim(row_products(state, length, length), row_products(state, 0.0, 0.0), pairs, CENTRING));
        }
        length = 1.0 / fmax(length / BACK_OFF, 1.0);
        change_of_W(state, k, dW);
        for (int j = 0; j < N; j++) check += dW[j];
        if (!isfinite(check + length)) break;
        for (int j = 0; j < N; j++) state->W[j] += length * dW[j];
        move_rows(state, length, length);
        measure_rows(state);
        const double regular = 0.5 * dot(N, state->W, state->W), value = regular + penalty_value(state);
        const double bound = dual_value(state) - 0.5 * dot(N, state->D, state->D);
        offer(state, fabs(value - bound) / fmax(value, 1e-300));
    }
    free(memory);
    return 1;
}
