/* The entry: problems of one shape, each from multipliers to start with (best those of its least Frobenius norm, any that
   are not negative on inequality rows will do) to those of another norm. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* Multipliers of a soft margin start at most so many times as large as those of W. */
static const double LARGEST = 100.0;
/* Sweeps over the groups that look for multipliers which prove that W = 0 is best. */
enum { ZERO_SWEEPS = 12 };
enum { SPECTRAL, L1, LINF, POWER, FROBENIUS };

typedef struct {
    int kind;
    double power;
    double *room; /* of the singular values */
    int lwork;
} Norm;

/* The largest singular value of flat W, or the sum of all; NaN without. */
static double singular(const Norm *norm, const State *state, const double *W, int all) {
    const int rows = state->q, columns = state->p, least = rows < columns ? rows : columns, one = 1;
    double *A = norm->room, *values = A + state->N, *work = values + least, sum = 0.0;
    int failed, *whole = (int *)(work + norm->lwork);
    memcpy(A, W, doubles(state->N));
    lapack.gesdd("N", &rows, &columns, A, &rows, values, NULL, &one, NULL, &one, work, &norm->lwork, whole, &failed);
    if (failed) return NAN;
    for (int k = 0; k < least; k++) sum += values[k];
    return all ? sum : values[0];
}

static double entries(const State *state, const double *W, double power) {
    double sum = 0.0, most = 0.0;
    for (int j = 0; j < state->N; j++) most = larger(most, fabs(W[j]));
    if (isinf(power) || most == 0.0) return most;
    for (int j = 0; j < state->N; j++) sum += power == 1.0 ? fabs(W[j]) / most : pow(fabs(W[j]) / most, power);
    return most * (power == 1.0 ? sum : pow(sum, 1.0 / power));
}

static double norm_of(const Norm *norm, const State *state, const double *W) {
    if (norm->kind == SPECTRAL) return singular(norm, state, W, 0);
    return entries(state, W, norm->kind == L1 ? 1.0 : norm->kind == LINF ? INFINITY : norm->power);
}

static double dual_norm_of(const Norm *norm, const State *state, const double *D) {
    if (norm->kind == SPECTRAL) return singular(norm, state, D, 1);
    return entries(state, D, norm->kind == L1 ? INFINITY : norm->kind == LINF ? 1.0 : norm->power / (norm->power - 1.0));
}

/* Multipliers that take part of the dual ball, added to lam; what the ball's size is measured with is left in D. */
static void add_share(const Norm *norm, State *state, const double *multipliers, double share) {
    adjoint(state, multipliers, state->D);
    const double size = share / fmax(dual_norm_of(norm, state, state->D), 1e-300);
    for (int k = 0; k < state->m; k++) state->lam[k] += size * multipliers[k];
}

/* A point inside, from such multipliers: W of norm about 1. Returns the norm that is 1 there. */
static double begin(const Norm *norm, State *state, const double *c, double *sides, const double *first) {
    const int m = state->m, N = state->N;
    double *even = state->right;
    adjoint(state, first, state->W);
    const double square = dot(N, state->W, state->W), size = norm_of(norm, state, state->W);
    const double scale = dot(m, c, first) / square; /* c . x is |W|^2 at the least Frobenius norm, whatever the scale of x */
    memset(state->lam, 0, doubles(m));
    for (int k = 0; k < m; k++) {
        sides[k] = c[k] / (size * scale);
        even[k] = state->sense[k] == INEQUALITY;
    }
    add_share(norm, state, first, 0.5);
    add_share(norm, state, even, 0.25);
    adjoint(state, state->lam, state->D);
    for (int j = 0; j < N; j++) state->W[j] /= size;
    if (norm->kind == POWER) { /* the multiple of D nearest to the curve */
        double along = 0.0;
        for (int j = 0; j < N; j++)
            along += state->D[j] * copysign(pow(fabs(state->W[j]), norm->power - 1.0), state->W[j]);
        const double length = dot(N, state->D, state->D);
        for (int k = 0; k < m; k++) state->lam[k] *= fmax(along, 1e-3 * length) / length;
    }
    /* A little larger, so that rows with a positive right-hand side have slack. */
    double most = 0.0;
    for (int j = 0; j < N; j++) state->W[j] *= norm->kind == POWER ? 1.3 : 1.1;
    for (int k = 0; k < m; k++) most = larger(most, fabs(sides[k]));
    margins(state, state->W, state->slack);
    for (int k = 0; k < m; k++)
        state->slack[k] = state->sense[k] == INEQUALITY ? fmax(state->slack[k] - sides[k], 0.1 * most) : 0.0;
    return size * scale;
}

/* By how much W may shrink, or must grow, for every row to hold: 1 where rows are equalities or ask for less than 0. */
static double shrink(const State *state, const double *W, double *values) {
    double least = INFINITY;
    margins(state, W, values);
    for (int k = 0; k < state->m; k++) {
        if (state->sense[k] == VOID) continue;
        if (state->sense[k] == EQUALITY || !(state->c[k] > 0.0)) return 1.0;
        least = fmin(least, values[k] / state->c[k]);
    }
    return least > 0.5 && least < 2.0 ? least : 1.0;
}

/* The penalty's part of a start, from W with the values of the rows in `slack`: multipliers in the middle of what the penalty
   allows, or LARGEST times `even` (where rows contradict each other many end there, however small their combination has to
   be), and slacks that make the point feasible for the rows. The dual matrix of the cone is not that of these multipliers; a
   full step makes them equal. */
static void begin_penalty(State *state, const double *sides, double even) {
    const Penalty *penalty = &state->penalty;
    double violation = 0.0;
    int rows = 0;
    memset(state->load, 0, doubles(penalty->groups));
    for (int k = 0; k < state->m; k++) {
        if (state->sense[k] != INEQUALITY) continue;
        state->load[penalty->group[k]] += 1.0;
        violation += fmax(sides[k] - state->slack[k], 0.1) / penalty->weight[k];
        rows++;
    }
    violation /= rows;
    for (int k = 0; k < state->m; k++) {
        const double w = penalty->weight[k];
        const int ordered = state->sense[k] == INEQUALITY;
        state->lam[k] = ordered ? fmin(0.5 * penalty->C / (state->load[penalty->group[k]] * w), LARGEST * even) : 0.0;
        state->slack[k] = ordered ? fmax(state->slack[k] + w * violation - sides[k], 0.1) : 0.0;
    }
    memset(state->load, 0, doubles(penalty->groups));
    for (int k = 0; k < state->m; k++) state->load[penalty->group[k]] += penalty->weight[k] * state->lam[k];
    for (int j = 0; j < penalty->groups; j++) {
        state->t[j] = penalty->C - state->load[j];
        state->eta[j] = penalty->loss == HINGE ? violation : 0.5 * state->load[j] / penalty->C;
    }
}

/* The least Frobenius norm of a soft margin starts from the best multiple of W(first). */
static void begin_frobenius(State *state, const double *c, double *sides, const double *first) {
    double even = 0.0;
    adjoint(state, first, state->W);
    const double scale = dot(state->m, c, first) / dot(state->N, state->W, state->W);
    for (int j = 0; j < state->N; j++) state->W[j] *= scale;
    margins(state, state->W, state->slack);
    memcpy(sides, c, doubles(state->m));
    for (int k = 0; k < state->m; k++) even += scale * first[k] / state->m;
    begin_penalty(state, sides, even);
}

/* From the start of a hard margin to that of a soft one; `size` is the norm that is 1 there. */
static void begin_soft(State *state, const double *sides, double size) {
    double even = 0.0;
    if (state->penalty.loss == SQUARED) state->penalty.C *= size; /* in units in which W has norm 1 */
    for (int k = 0; k < state->m; k++) even += fabs(state->lam[k]) / state->m;
    margins(state, state->W, state->slack);
    begin_penalty(state, sides, even);
}

/* Slacks of W = 0 in eta, and equal multipliers of the rows that need them, whose loads are in `load`; the rows that need
   less have none. */
static void begin_at_zero(State *state, const double *c) {
    const Penalty *penalty = &state->penalty;
    double *slack = state->eta, *rows = state->deta;
    for (int j = 0; j < penalty->groups; j++) slack[j] = rows[j] = 0.0;
    for (int k = 0; k < state->m; k++)
        if (state->sense[k] == INEQUALITY) slack[penalty->group[k]] = fmax(slack[penalty->group[k]], c[k] / penalty->weight[k]);
    for (int k = 0; k < state->m; k++) {
        const int j = penalty->group[k];
        const int needs = state->sense[k] == INEQUALITY && slack[j] > 0.0 && c[k] >= penalty->weight[k] * slack[j] * (1.0 - 1e-14);
        state->lam[k] = needs ? 1.0 / penalty->weight[k] : 0.0;
        rows[j] += needs;
    }
    for (int j = 0; j < penalty->groups; j++)
        state->load[j] = slack[j] > 0.0 ? (penalty->loss == HINGE ? penalty->C : 2.0 * penalty->C * slack[j]) : 0.0;
    for (int k = 0; k < state->m; k++)
        if (state->lam[k] > 0.0) state->lam[k] *= state->load[penalty->group[k]] / rows[penalty->group[k]];
}

/* Within each group, a multiplier moves from the row that is most along D to the one that is least: |D| falls. Rows that
   need slack are those with a mark in `right`. */
static void shorten(State *state) {
    const Penalty *penalty = &state->penalty;
    const int N = state->N;
    for (int j = 0; j < penalty->groups; j++) {
        int least = -1, most = -1;
        double low = 0.0, high = 0.0, curve = 0.0;
        for (int i = state->begin[j]; i < state->begin[j + 1]; i++) {
            const int k = state->order[i];
            if (state->right[k] == 0.0) continue;
            const double along = dot(N, state->F + (Size)k * N, state->D) / penalty->weight[k];
            if (least < 0 || along < low) least = k, low = along;
            if (state->lam[k] > 0.0 && (most < 0 || along > high)) most = k, high = along;
        }
        if (least < 0 || most < 0 || !(high > low)) continue;
        const double *to = state->F + (Size)least * N, *from = state->F + (Size)most * N;
        const double u = 1.0 / penalty->weight[least], v = 1.0 / penalty->weight[most];
        for (int i = 0; i < N; i++) curve += (u * to[i] - v * from[i]) * (u * to[i] - v * from[i]);
        const double length = fmin((high - low) / fmax(curve, 1e-300), state->lam[most] * penalty->weight[most]);
        state->lam[least] += length * u;
        state->lam[most] = fmax(state->lam[most] - length * v, 0.0);
        for (int i = 0; i < N; i++) state->D[i] += length * (u * to[i] - v * from[i]);
    }
}

/* Whether W = 0 is proved best, where small penalties end: by multipliers (left in lam) with the loads of its slacks whose
   dual matrix is in the dual ball. No such matrix is there if along D all of them are longer than N(D). */
static int zero_is_best(const Norm *norm, State *state, const double *c) {
    const Penalty *penalty = &state->penalty;
    begin_at_zero(state, c);
    for (int k = 0; k < state->m; k++) state->right[k] = state->lam[k] > 0.0;
    for (int sweep = 0; sweep < ZERO_SWEEPS; sweep++) {
        double along = 0.0;
        adjoint(state, state->lam, state->D);
        if (dual_norm_of(norm, state, state->D) <= 1.0) return 1;
        margins(state, state->D, state->dlam);
        for (int j = 0; j < penalty->groups; j++) state->deta[j] = INFINITY;
        for (int k = 0; k < state->m; k++)
            if (state->right[k] != 0.0)
                state->deta[penalty->group[k]] = fmin(state->deta[penalty->group[k]], state->dlam[k] / penalty->weight[k]);
        for (int j = 0; j < penalty->groups; j++)
            if (state->load[j] > 0.0) along += state->load[j] * state->deta[j];
        if (!(along <= norm_of(norm, state, state->D))) return 0;
        shorten(state);
    }
    return 0;
}

/* One problem; 0 where memory is short. */
static int minimize_one(const Norm *norm, State *state, const double *c, double *sides, double *W, double *lam, int most,
                        double goal) {
    const int soft = state->penalty.loss != HARD, frobenius = norm->kind == FROBENIUS;
    int done;
    if (soft && !frobenius && zero_is_best(norm, state, c)) {
        memset(W, 0, doubles(state->N));
        memcpy(lam, state->lam, doubles(state->m));
        return 1;
    }
    const double size = frobenius ? 1.0 : begin(norm, state, c, sides, lam);
    if (frobenius) begin_frobenius(state, c, sides, lam);
    if (!frobenius && soft) begin_soft(state, sides, size);
    state->c = sides;
    memcpy(state->best_W, state->W, doubles(state->N));
    memcpy(state->best_lam, state->lam, doubles(state->m));
    if (frobenius)
        done = minimize_frobenius(state, most, goal);
    else if (norm->kind == SPECTRAL)
        done = minimize_spectral(state, most, goal);
    else if (norm->kind == POWER)
        done = (soft ? minimize_soft_power : minimize_power)(state, norm->power, most, goal);
    else
        done = minimize_bounds(state, norm->kind == LINF, most, goal);
    if (!done) return 0;
    if (frobenius || soft) {
        for (int j = 0; j < state->N; j++) W[j] = state->best_W[j] * size;
        memcpy(lam, state->best_lam, doubles(state->m));
        return 1;
    }
    adjoint(state, state->best_lam, state->D);
    const double dual = dual_norm_of(norm, state, state->D);
    const double least = shrink(state, state->best_W, state->right);
    for (int j = 0; j < state->N; j++) W[j] = state->best_W[j] * (size / least);
    for (int k = 0; k < state->m; k++) lam[k] = state->best_lam[k] / dual;
    return 1;
}

EXPORT void attsvm_bind(void *const *routines) { memcpy(&lapack, routines, sizeof lapack); }

/* `count` problems in C order: left factors (m, p) and right factors (m, q) of unit rows, right-hand sides and senses
   (m,). A soft margin (loss is not HARD) has `groups` slacks, the group and the weight of each row (m,) and a penalty C
   for each problem. `lam` (m,) holds multipliers to start from, of any scale, and then those of this norm; W (p, q) and the
   steps are written. Once another thread sets `stop`, every problem ends with the step that it is in. Returns the problems
   that were done: all, unless memory was short. */
EXPORT int attsvm_minimize(int kind, double power, int loss, int by_entries, int count, int m, int p, int q, int groups,
                           const double *left, const double *right, const double *c, const signed char *sense,
                           const int *group, const double *weight, const double *C, double *W, double *lam, int *steps,
                           int most, double goal, const volatile int *stop) {
    const int N = p * q, least = p < q ? p : q;
    Norm norm = {.kind = kind, .power = power, .lwork = 16 * (p + q) + 7 * least + 64};
    const Size room = N + least + norm.lwork + 8 * (Size)least;
    State state = {.m = m, .N = N, .p = p, .q = q, .by_entries = by_entries, .stop = stop,
                   .penalty = {.loss = loss, .groups = groups}};
    const Size own = state_numbers(&state);
    double *memory = malloc(doubles(own + room + m + (Size)m * N) + ints((Size)m + groups + 2));
    int done = 0;
    if (!memory) return 0;
    double *F = memory, *sides = F + (Size)m * N, *rest = sides + m;
    state.order = (int *)(memory + own + room + m + (Size)m * N);
    state.begin = state.order + m;
    norm.room = rest + own;
    for (; done < count; done++) {
        state.F = F, state.c = c, state.sense = sense, state.left = left, state.right_factors = right;
        if (loss != HARD) state.penalty = (Penalty){loss, groups, group, weight, C[done]};
        state_begin(&state, rest);
        for (int k = 0; k < m; k++)
            for (int i = 0; i < p; i++)
                for (int j = 0; j < q; j++) F[(Size)k * N + i * q + j] = left[k * (Size)p + i] * right[k * (Size)q + j];
        if (!minimize_one(&norm, &state, c, sides, W, lam, most, goal)) break;
        *steps++ = state.steps;
        left += (Size)m * p, right += (Size)m * q, c += m, sense += m, W += N, lam += m;
        if (loss != HARD) group += m, weight += m;
    }
    free(memory);
    return done;
}
