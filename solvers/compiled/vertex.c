/* From an interior point of the l_1 or l_inf norm to the vertex that it tends to.

   At a vertex the rows A with a multiplier hold with equality. In the l_inf norm all entries of W but those in J are +-r,
   and |A| = |J| + 1; in the l_1 norm all entries but those in J are 0, and |A| = |J|. A and J are read off an interior point
   long before its gap is small. With V = W / r and t = 1 / r (l_inf), one matrix then gives both sides,

     l_inf:  [F_AJ  -c_A] (V_J, t) = -F_A sign,      [F_AJ  -c_A]' lam_A = (0, ..., 0, -1),
     l_1:           F_AJ  W_J      =  c_A,                  F_AJ'  lam_A = sign_J,

   and what comes out is optimal if no bound, row or sign is missed: that is checked, not assumed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* What a bound, a row, a sign and the relative gap of a vertex may miss by rounding. */
static const double ROUNDING = 1e-11;
/* Gap above which A and J are not worth a look. */
static const double LARGEST_GAP = 0.1;
/* Rows and entries that may change sides for the sets to fit together. */
enum { MOVES = 2 };

typedef struct {
    int n, *A, *J, *order;          /* |A|, the sets, pivots */
    double *matrix, *other;         /* n n */
    double *solved, *own;           /* n */
    double *V, *D, *lam, *values;   /* N, N, m, m */
} Vertex;

Size vertex_numbers(int m, int N) {
    const Size most = m < N + 1 ? m : N + 1;
    return 2 * most * most + 2 * most + 2 * (Size)N + 2 * (Size)m; /* more than the m + N that the weights take before */
}

/* The largest numbers of each kind. */
typedef struct {
    double lam, slack, room, dual;
} Largest;

/* How much the multiplier of a row outweighs its slack, each relative to the largest: above 1 in A. */
static double weight_of_row(const State *state, const Largest *most, int k) {
    if (state->sense[k] != INEQUALITY) return state->sense[k] == EQUALITY ? INFINITY : 0.0;
    return state->lam[k] * most->slack / (state->slack[k] * most->lam);
}

/* How much the room of an entry outweighs its dual: above 1 in J. l_inf: neither bound of an entry in J has a dual. l_1: one
   of its bounds has room, as r_j > 0 there. */
static double weight_of_entry(const State *state, int shared, const Largest *most, const double *room, const double *dual,
                              int j) {
    const int N = state->N;
    const double lowest = shared ? fmin(room[j], room[N + j]) : fmax(room[j], room[N + j]);
    const double highest = shared ? fmax(dual[j], dual[N + j]) : fmin(dual[j], dual[N + j]);
    return lowest * most->dual / (highest * most->room);
}

/* Move what is nearest to the border between the sets, of the rows or of the entries, so that |A| - |J| falls (or grows) by 1.
   `weights` are those of rows and entries; what is moved gets a weight of 0 or INFINITY. */
static void move_nearest(double *weights, int count, int rows, int fall) {
    int nearest = -1;
    double least = INFINITY;
    for (int k = 0; k < count; k++) {
        const int inside = weights[k] > 1.0, out = (k < rows) == fall; /* A loses rows, or J gains entries */
        const double apart = fabs(log(weights[k]));
        if (inside == out && apart < least) least = apart, nearest = k;
    }
    if (nearest >= 0) weights[nearest] = weights[nearest] > 1.0 ? 0.0 : INFINITY;
}

/* The sets that the point tends to: complementary numbers are compared, each relative to the largest of its kind, and what
   is larger is not 0. At a degenerate vertex, or one nearly so, both of a pair tend to 0: then the sets do not fit together by
   a few, and what is nearest to the border changes sides. Returns |A|, or 0 unless the sets fit together. */
static int sets(const State *state, int shared, const double *room, const double *dual, int *A, int *J, double *weights) {
    const int N = state->N, m = state->m;
    Largest most = {0.0, 0.0, 0.0, 0.0};
    int rows = 0, inner = 0;
    for (int k = 0; k < m; k++) {
        if (state->sense[k] != INEQUALITY) continue;
        most.lam = larger(most.lam, state->lam[k]);
        most.slack = larger(most.slack, state->slack[k]);
    }
    for (int j = 0; j < 2 * N; j++) {
        most.room = larger(most.room, room[j]);
        most.dual = larger(most.dual, dual[j]);
    }
    for (int k = 0; k < m; k++) rows += (weights[k] = weight_of_row(state, &most, k)) > 1.0;
    for (int j = 0; j < N; j++) inner += (weights[m + j] = weight_of_entry(state, shared, &most, room, dual, j)) > 1.0;
    const int beyond = rows - inner - shared;
    if (beyond > MOVES || beyond < -MOVES) return 0;
    for (int k = 0; k < abs(beyond); k++) move_nearest(weights, m + N, m, beyond > 0);
    rows = inner = 0;
    for (int k = 0; k < m; k++)
        if (weights[k] > 1.0) A[rows++] = k;
    for (int j = 0; j < N; j++)
        if (weights[m + j] > 1.0) J[inner++] = j;
    return rows == inner + shared ? rows : 0;
}

/* Both linear systems; 0 where their matrix is singular. */
static int solve_vertex(const State *state, int shared, Vertex *v) {
    const int N = state->N, n = v->n, one = 1;
    int failed;
    for (int j = 0; j < N; j++) v->V[j] = shared ? (state->W[j] > 0.0) - (state->W[j] < 0.0) : 0.0;
    for (int j = 0; j < n - shared; j++) v->V[v->J[j]] = 0.0;
    for (int i = 0; i < n; i++) {
        const double *row = state->F + (Size)v->A[i] * N;
        for (int j = 0; j < n - shared; j++) v->matrix[i + (Size)j * n] = v->other[j + (Size)i * n] = row[v->J[j]];
        if (shared) {
            v->matrix[i + ((Size)n - 1) * n] = v->other[n - 1 + (Size)i * n] = -state->c[v->A[i]];
            v->solved[i] = -dot(N, row, v->V);
            v->own[i] = i == n - 1 ? -1.0 : 0.0;
        } else {
            v->solved[i] = state->c[v->A[i]];
            v->own[i] = state->W[v->J[i]] > 0.0 ? 1.0 : -1.0;
        }
    }
    lapack.gesv(&n, &one, v->matrix, &n, v->order, v->solved, &n, &failed);
    if (failed) return 0;
    lapack.gesv(&n, &one, v->other, &n, v->order, v->own, &n, &failed);
    if (failed) return 0;
    for (int j = 0; j < n - shared; j++) v->V[v->J[j]] = v->solved[j];
    return 1;
}

/* The largest amount by which the rows are missed at V for right-hand sides t c, or a multiplier has the wrong sign. */
static double missed_rows(const State *state, Vertex *v, double t) {
    double missed = 0.0;
    memset(v->lam, 0, doubles(state->m));
    for (int i = 0; i < v->n; i++) {
        const int ordered = state->sense[v->A[i]] == INEQUALITY;
        if (ordered) missed = larger(missed, -v->own[i]);
        v->lam[v->A[i]] = ordered ? fmax(v->own[i], 0.0) : v->own[i];
    }
    margins(state, v->V, v->values);
    for (int k = 0; k < state->m; k++) {
        const double slack = v->values[k] - t * state->c[k];
        if (state->sense[k] == INEQUALITY) missed = larger(missed, -slack);
        if (state->sense[k] == EQUALITY) missed = larger(missed, fabs(slack));
    }
    return missed;
}

int find_vertex(State *state, int shared, double gap, const double *room, const double *dual, double *memory,
                int *pivots) {
    const int N = state->N, m = state->m;
    Vertex v = {.A = pivots, .J = pivots + m, .order = pivots + m + N + 1};
    v.n = gap < LARGEST_GAP ? sets(state, shared, room, dual, v.A, v.J, memory) : 0;
    if (!v.n) return 0;
    v.matrix = memory;
    v.other = v.matrix + (Size)v.n * v.n;
    v.solved = v.other + (Size)v.n * v.n;
    v.own = v.solved + v.n;
    v.V = v.own + v.n;
    v.D = v.V + N;
    v.lam = v.D + N;
    v.values = v.lam + m;
    if (!solve_vertex(state, shared, &v)) return 0;
    const double t = shared ? v.solved[v.n - 1] : 1.0;
    double missed = missed_rows(state, &v, t), sum = 0.0, most = 0.0;
    adjoint(state, v.lam, v.D);
    for (int j = 0; j < N; j++) {
        sum += fabs(v.D[j]);
        most = larger(most, fabs(shared ? v.V[j] : v.D[j]));
    }
    /* Not above 1 are: entries of V, and |D|_1 / t as c . lam is 1 (l_inf); entries of D (l_1), which are signs of W where it
       is not 0, so that both objectives are the same number: up to the conditioning of the systems, which is why the
       objectives are compared as well. */
    double value = 0.0;
    for (int j = 0; j < N; j++) value += fabs(v.V[j]);
    const double reached = dot(m, state->c, v.lam), promised = shared ? 1.0 : value;
    missed = larger(missed, fabs(reached - promised) / fmax(promised, 1e-300));
    if (shared) missed = larger(missed, sum / t - 1.0);
    for (int j = 0; j < v.n && !shared; j++)
        missed = larger(missed, state->W[v.J[j]] > 0.0 ? -v.V[v.J[j]] : v.V[v.J[j]]);
    if (!(isfinite(sum + dot(N, v.V, v.V)) && t > 0.0 && fmax(missed, most - 1.0) <= ROUNDING)) return 0;
    for (int j = 0; j < N; j++) state->best_W[j] = v.V[j] / t;
    memcpy(state->best_lam, v.lam, doubles(m));
    state->best = 0.0;
    return 1;
}
