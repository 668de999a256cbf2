/* Least spectral norm of one problem (see steps.h).

   ||W||_2 <= t iff S = t I - [[0, W], [W', 0]] is positive semidefinite. With the multiplier Y = [[P, D/2], [D'/2, Q]] of
   S, trace Y = 1 says that the nuclear norm of D is at most 1. The direction is that of Nesterov and Todd: a matrix R with
   R^{-1} S R^{-T} = R' Y R = diag(l) scales both alike, and T = R^{-T} R^{-1} gives

     dY = G - T dS T,     G = R^{-T} E R^{-1},     E_ij = 2 (mu I - diag(l)^2 - second order)_ij / (l_i + l_j).

   Written dt = t r, dW = r W + V, so that dS = r S - [[0, V], [V', 0]] and T S T = Y, the upper right block of dY, and its
   product with S, which takes the place of the trace, say

     H V = dD - 2 G_12 + r D,     H V = 2 (T_11 V T_22 + T_12 V' T_12),
     r <S, Y> = <S, G> + <S, Y> - t + <W, D> + <W, dD> + <D, V>.

   where D is twice the upper right block of Y, which a soft margin's start lets differ from F' lam: then dD above includes
   F' lam - D. With f = H^{-1} D and kappa = <S, Y> - <D, f>, which near the central path is at least half of <S, Y>, the matrix of the
   answer is K = H^{-1} + (W + f)(W + f)' / kappa. (In dt itself the same number would cancel.) S and Y are carried by
   factors, updated in the scaled coordinates: neither is ever factored when it is nearly singular.

   H is never factored either. In bases A and B with A' T_11 A = I, B' T_22 B = I and A' T_12 B = C diagonal (the canonical
   correlations of T) and with V = A X B', Z = H V becomes A' Z B = 2 (X + C X' C): one entry of X is tied to one other,
   x_ij to x_ji by c_i c_j, so that their sum and difference have the eigenvalues 2 (1 + c_i c_j) and 2 (1 - c_i c_j). A row
   of rank one stays one of rank one.

   W is flat by rows, all other matrices by columns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

/* How near to the boundary a step goes. */
static const double BACK_OFF = 0.98;
/* Power of the share of products left by the first direction that the second one aims at. */
enum { CENTRING = 2 };
/* Share of the dual ball that a start may take. */
static const double BALL = 0.75;
/* Lengths of steps that are tried. */
static const double LENGTHS[] = {1.03, 0.99, 0.95, 0.9, 0.84, 0.77, 0.69, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.04, 0.01};

typedef struct {
    int n;                       /* p + q */
    double t, dt;
    double *S_factor, *Y_factor; /* S = S_factor S_factor', Y alike */
    double *R, *R_inverse, *l;   /* the scaling; l has n numbers */
    double *dS, *dY, *E;         /* in scaled coordinates */
    double *one, *two, *U, *Vt;  /* room */
    double *T, *A, *Bt;          /* n n; p p and q q: the canonical bases, B transposed */
    double *c, *rest;            /* least: the correlations, and 1 less them */
    double *alpha, *beta;        /* p m and q m: the factors of the rows in these bases */
    double *half;                /* N m */
    double *tip;                 /* m */
    double *f, *side, *pre, *k, *dW, *dD, *own; /* N; own: D as Y has it */
    double *work;
    int *whole, lwork, lwhole;
} Cone;

static void multiply(const Cone *cone, const char *left, const char *right, const double *A, const double *B, double *C) {
    const double one = 1.0, zero = 0.0;
    const int n = cone->n;
    lapack.gemm(left, right, &n, &n, &n, &one, A, &n, B, &n, &zero, C, &n);
}

static int svd(Cone *cone, int rows, int columns, double *A, double *values, double *U, double *Vt) {
    const int least = rows < columns ? rows : columns;
    int failed;
    lapack.gesdd("S", &rows, &columns, A, &rows, values, U, &rows, Vt, &least, cone->work, &cone->lwork, cone->whole,
                 &failed);
    return !failed;
}

/* [[diagonal I, -block], [-block', diagonal I]] for a flat block. */
static void corners(const State *state, const double *block, double diagonal, double *out) {
    const int p = state->p, q = state->q, n = p + q;
    memset(out, 0, doubles((Size)n * n));
    for (int i = 0; i < n; i++) out[i * ((Size)n + 1)] = diagonal;
    for (int i = 0; i < p; i++)
        for (int j = 0; j < q; j++) out[i + (p + j) * (Size)n] = out[p + j + i * (Size)n] = -block[i * q + j];
}

static void zero_above(int n, double *factor) {
    for (int j = 1; j < n; j++) memset(factor + (Size)j * n, 0, doubles(j));
}

/* The start: t a little above the norm of W, Y as its D asks. */
static int cone_begin(Cone *cone, const State *state) {
    const int p = state->p, q = state->q, n = cone->n, least = p < q ? p : q;
    double sum = 0.0;
    /* Flat by rows is the transpose by columns: (q, p). */
    memcpy(cone->one, state->W, doubles(state->N));
    if (!svd(cone, q, p, cone->one, cone->l, cone->U, cone->Vt)) return 0;
    cone->t = 1.05 * cone->l[0];
    corners(state, state->W, cone->t, cone->one);
    if (!raised_cholesky(n, cone->one, cone->S_factor)) return 0;
    memcpy(cone->one, state->D, doubles(state->N));
    if (!svd(cone, q, p, cone->one, cone->l, cone->U, cone->Vt)) return 0;
    for (int k = 0; k < least; k++) sum += cone->l[k];
    const int soft = state->penalty.loss != HARD; /* then D may start outside of the dual ball */
    const double inside = soft ? fmin(1.0, BALL / fmax(sum, 1e-300)) : 1.0;
    for (int k = 0; k < least; k++) cone->l[k] *= inside;
    sum *= inside;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double entry = i == j ? (1.0 - sum) / n : 0.0;
            for (int k = 0; k < least; k++) {
                const double one = i < p ? cone->Vt[k + i * (Size)least] : cone->U[i - p + k * (Size)q];
                const double two = j < p ? cone->Vt[k + j * (Size)least] : cone->U[j - p + k * (Size)q];
                entry += 0.5 * cone->l[k] * one * two;
            }
            cone->two[i + (Size)j * n] = entry;
        }
    if (!raised_cholesky(n, cone->two, cone->Y_factor)) return 0;
    zero_above(n, cone->S_factor);
    zero_above(n, cone->Y_factor);
    return 1;
}

/* H on flat W as a matrix, from T. */
static void curvature(const State *state, const double *T, double *H) {
    const int p = state->p, q = state->q, n = p + q;
    for (int i = 0; i < p; i++)
        for (int j = 0; j < q; j++)
            for (int k = 0; k < p; k++) {
                const double first = 2.0 * T[i + (Size)k * n], cross = 2.0 * T[k + (p + j) * (Size)n];
                const double *last = T + p + (p + j) * (Size)n, *row = T + p + (Size)i * n; /* T_12[i, l] = T[p + l, i] */
                double *out = H + (i * q + j) * (Size)state->N + k * q;
                for (int l = 0; l < q; l++) out[l] = first * last[l] + cross * row[l];
            }
}

/* out += H V for flat V, which is V' by columns: 2 (T_22 V' T_11 + T_21 V T_21). */
static void add_curved(const Cone *cone, const State *state, const double *V, double *out) {
    const int p = state->p, q = state->q, n = cone->n;
    const double one = 1.0, zero = 0.0, two = 2.0, *T11 = cone->T, *T12 = T11 + (Size)p * n, *T22 = T12 + p;
    lapack.gemm("N", "N", &q, &p, &q, &one, T22, &n, V, &q, &zero, cone->one, &q);
    lapack.gemm("N", "N", &q, &p, &p, &two, cone->one, &q, T11, &n, &one, out, &q);
    lapack.gemm("T", "T", &q, &q, &p, &one, T12, &n, V, &q, &zero, cone->one, &q);
    lapack.gemm("N", "T", &q, &p, &q, &two, cone->one, &q, T12, &n, &one, out, &q);
}

/* QR of `columns` columns of R_inverse from `first` on: an orthonormal basis (n, columns) and the triangle. */
static int orthonormal(Cone *cone, int first, int columns, double *basis, double *triangle) {
    const int n = cone->n;
    double *scales = cone->work, *work = cone->work + n;
    const int lwork = cone->lwork - n;
    int failed;
    memcpy(basis, cone->R_inverse + (Size)first * n, doubles((Size)n * columns));
    lapack.geqrf(&n, &columns, basis, &n, scales, work, &lwork, &failed);
    if (failed) return 0;
    for (int j = 0; j < columns; j++) memcpy(triangle + (Size)j * columns, basis + (Size)j * n, doubles(j + 1));
    lapack.orgqr(&n, &columns, &columns, basis, &n, scales, work, &lwork, &failed);
    return !failed;
}

/* The canonical bases of T = R_inverse' R_inverse; 0 where rounding leaves none. The correlations are the cosines of the
   angles between the first p columns of R_inverse and the others. Near the end many angles are small: then 1 - c comes
   from their sines, as T itself, with the squares of R_inverse, does not have the digits. */
static int canonical(Cone *cone, const State *state) {
    const int p = state->p, q = state->q, n = cone->n, least = p < q ? p : q;
    const double one = 1.0, zero = 0.0, minus = -1.0;
    double *left = cone->U, *right = cone->Vt, *cross = cone->one, *up = cone->T, *down = cone->two;
    int failed;
    if (!orthonormal(cone, 0, p, left, up) || !orthonormal(cone, p, q, right, down)) return 0;
    lapack.gemm("T", "N", &p, &q, &n, &one, left, &n, right, &n, &zero, cross, &p);
    lapack.gesdd("A", &p, &q, cross, &p, cone->c, cone->A, &p, cone->Bt, &q, cone->work, &cone->lwork, cone->whole,
                 &failed);
    if (failed) return 0;
    /* What the second basis, turned, has outside of the first. */
    lapack.gemm("N", "T", &n, &least, &q, &one, right, &n, cone->Bt, &q, &zero, cross, &n);
    lapack.gemm("T", "N", &p, &least, &n, &one, left, &n, cross, &n, &zero, cone->work, &p);
    lapack.gemm("N", "N", &n, &least, &p, &minus, left, &n, cone->work, &p, &one, cross, &n);
    for (int i = 0; i < least; i++) {
        const double *outside = cross + (Size)i * n;
        cone->rest[i] = cone->c[i] < 0.5 ? 1.0 - cone->c[i] : dot(n, outside, outside) / (1.0 + cone->c[i]);
        if (!(cone->rest[i] > 0.0)) return 0;
    }
    lapack.trsm("L", "U", "N", "N", &p, &p, &one, up, &p, cone->A, &p);
    lapack.trsm("R", "U", "T", "N", &q, &q, &one, down, &q, cone->Bt, &q);
    multiply(cone, "T", "N", cone->R_inverse, cone->R_inverse, cone->T);
    return 1;
}

/* 1 - c_i c_j. */
static double untied(const Cone *cone, int i, int j) { return cone->rest[i] + cone->c[i] * cone->rest[j]; }

/* H^{-1} Z for flat Z, in place. It is not refined: what W answers must be what M was made of, or rows are missed. */
static void straightened(const Cone *cone, const State *state, double *Z) {
    const int p = state->p, q = state->q, least = p < q ? p : q;
    const double one = 1.0, zero = 0.0;
    double *X = cone->two;
    lapack.gemm("N", "N", &q, &p, &q, &one, cone->Bt, &q, Z, &q, &zero, cone->one, &q);
    lapack.gemm("N", "N", &q, &p, &p, &one, cone->one, &q, cone->A, &p, &zero, X, &q);
    for (int i = 0; i < p; i++)
        for (int j = i < least ? i : 0; j < q; j++) {
            double *x = X + (Size)i * q + j;
            if (i >= least || j >= least) {
                *x *= 0.5;
                continue;
            }
            double *y = X + (Size)j * q + i;
            const double tie = cone->c[i] * cone->c[j];
            const double sum = 0.25 * (*x + *y) / (1.0 + tie), difference = 0.25 * (*x - *y) / untied(cone, i, j);
            *x = sum + difference;
            if (i != j) *y = sum - difference;
        }
    lapack.gemm("T", "N", &q, &p, &q, &one, cone->Bt, &q, X, &q, &zero, cone->one, &q);
    lapack.gemm("N", "T", &q, &p, &p, &one, cone->one, &q, cone->A, &p, &zero, Z, &q);
}

/* Rows times a root of H^{-1}: products of two columns of `half` are those of the rows in H^{-1}. */
static void rooted_half(Cone *cone, const State *state) {
    const int p = state->p, q = state->q, m = state->m, least = p < q ? p : q;
    const double one = 1.0, zero = 0.0;
    double *plus = cone->one, *minus = cone->two;
    lapack.gemm("T", "N", &p, &m, &p, &one, cone->A, &p, state->left, &p, &zero, cone->alpha, &p);
    lapack.gemm("N", "N", &q, &m, &q, &one, cone->Bt, &q, state->right_factors, &q, &zero, cone->beta, &q);
    for (int i = 0; i < least; i++)
        for (int j = i; j < least; j++) {
            const double tie = cone->c[i] * cone->c[j];
            plus[i * least + j] = (i == j ? sqrt(0.5) : 0.5) / sqrt(1.0 + tie);
            minus[i * least + j] = 0.5 / sqrt(untied(cone, i, j));
        }
    for (int k = 0; k < m; k++) {
        const double *a = cone->alpha + (Size)k * p, *b = cone->beta + (Size)k * q;
        double *out = cone->half + (Size)k * state->N;
        for (int i = 0; i < least; i++) {
            const double *up = plus + i * least, *down = minus + i * least;
            *out++ = up[i] * a[i] * b[i];
            for (int j = i + 1; j < least; j++) {
                const double x = a[i] * b[j], y = a[j] * b[i];
                *out++ = up[j] * (x + y);
                *out++ = down[j] * (x - y);
            }
        }
        for (int i = 0; i < p; i++) /* entries that are tied to none */
            for (int j = i < least ? least : 0; j < q; j++) *out++ = sqrt(0.5) * a[i] * b[j];
    }
}

/* D as Y has it. */
static void own_block(Cone *cone, const State *state) {
    const int p = state->p, q = state->q, n = cone->n;
    if (state->penalty.loss == HARD) {
        memcpy(cone->own, state->D, doubles(state->N));
        return;
    }
    multiply(cone, "N", "T", cone->Y_factor, cone->Y_factor, cone->one);
    for (int i = 0; i < p; i++)
        for (int j = 0; j < q; j++) cone->own[i * q + j] = 2.0 * cone->one[i + (p + j) * (Size)n];
}

/* The scaling, the canonical bases, and M = F K F'; kappa, or 0 without a scaling. */
static double cone_prepare(Cone *cone, State *state) {
    const int n = cone->n, N = state->N, m = state->m, one = 1;
    int failed;
    const double plus = 1.0, zero = 0.0;
    /* Y_factor' S_factor = U diag(l) V'. The l are of one size near the central path: their squares lose nothing. */
    multiply(cone, "T", "N", cone->Y_factor, cone->S_factor, cone->one);
    multiply(cone, "T", "N", cone->one, cone->one, cone->two);
    lapack.syevd("V", "L", &n, cone->two, &n, cone->l, cone->work, &cone->lwork, cone->whole, &cone->lwhole, &failed);
    if (failed || !(cone->l[0] > 0.0)) return 0.0;
    multiply(cone, "N", "N", cone->S_factor, cone->two, cone->R);
    multiply(cone, "N", "N", cone->one, cone->two, cone->U); /* U diag(l) */
    multiply(cone, "T", "T", cone->U, cone->Y_factor, cone->R_inverse);
    for (int j = 0; j < n; j++) cone->l[j] = sqrt(cone->l[j]);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < n; i++) {
            cone->R[i + (Size)j * n] /= sqrt(cone->l[j]);
            cone->R_inverse[i + (Size)j * n] /= cone->l[i] * sqrt(cone->l[i]);
        }
    if (!canonical(cone, state)) return 0.0;
    own_block(cone, state);
    memcpy(cone->f, cone->own, doubles(N));
    straightened(cone, state, cone->f);
    for (int j = 0; j < N; j++) cone->side[j] = state->W[j] + cone->f[j];
    const double kappa = dot(n, cone->l, cone->l) - dot(N, cone->own, cone->f);
    if (state->by_entries) {
        curvature(state, cone->T, state->P);
        state->side = cone->side;
        state->kappa = kappa;
        memset(state->side_up, 0, doubles(N));
        add_curved(cone, state, cone->side, state->side_up);
        return kappa;
    }
    rooted_half(cone, state);
    lapack.syrk("L", "T", &m, &N, &plus, cone->half, &N, &zero, state->M, &m);
    margins(state, cone->side, cone->tip);
    const double weight = 1.0 / kappa;
    lapack.syrk("L", "N", &m, &one, &weight, cone->tip, &m, &plus, state->M, &m);
    return kappa;
}

/* The direction for V = H^{-1} (pre + dD) + f r, where kappa r = lead + <side, dD>. */
static void cone_direction(Cone *cone, State *state, double kappa, double lead) {
    const int N = state->N;
    double rate;
    if (state->by_entries) {
        memcpy(state->pre, cone->pre, doubles(N));
        state->lead = lead;
        solve_rows(state, NULL);
        memcpy(cone->dW, state->y, doubles(N));
        rate = state->share;
    } else {
        memcpy(cone->k, cone->pre, doubles(N));
        straightened(cone, state, cone->k);
        for (int j = 0; j < N; j++) cone->k[j] += cone->side[j] * (lead / kappa);
        solve_rows(state, cone->k);
        adjoint(state, state->dlam, cone->dD);
        const double more = dot(N, cone->side, cone->dD) / kappa;
        memcpy(cone->dW, cone->dD, doubles(N));
        straightened(cone, state, cone->dW);
        for (int j = 0; j < N; j++) cone->dW[j] += cone->k[j] + cone->side[j] * more;
        rate = lead / kappa + more;
    }
    cone->dt = cone->t * rate;
    corners(state, cone->dW, cone->dt, cone->one);
    multiply(cone, "N", "N", cone->R_inverse, cone->one, cone->two);
    multiply(cone, "N", "T", cone->two, cone->R_inverse, cone->dS);
    for (int i = 0; i < cone->n * cone->n; i++) cone->dY[i] = cone->E[i] - cone->dS[i];
}

/* diag(l) + length change, factored in `out`; 0 where that is not definite. */
static int moved(const Cone *cone, double length, const double *change, double *out) {
    const int n = cone->n;
    for (int i = 0; i < n * n; i++) out[i] = length * change[i];
    for (int i = 0; i < n; i++) out[i * ((Size)n + 1)] += cone->l[i];
    return cholesky(n, out);
}

/* About the longest step from diag(l) that stays definite: the best of a fixed set, as each costs a factorization. */
static double longest(Cone *cone, const double *change) {
    for (unsigned k = 0; k < sizeof LENGTHS / sizeof *LENGTHS; k++)
        if (moved(cone, LENGTHS[k], change, cone->one)) return LENGTHS[k];
    return 0.0;
}

static double primal_length(Cone *cone, const State *state) {
    return fmin(longest(cone, cone->dS), 1.0 / primal_slope(state));
}

static double dual_length(Cone *cone, const State *state) {
    return fmin(longest(cone, cone->dY), 1.0 / dual_slope(state));
}

/* E and `pre` for the target that the first direction shows; what leads the rate of the next one. */
static double cone_aim(Cone *cone, State *state, double gained, int pairs) {
    const int n = cone->n, p = state->p, q = state->q;
    const double *l = cone->l;
    const double primal = fmin(primal_length(cone, state), 1.0), dual = fmin(dual_length(cone, state), 1.0);
    const double both = dot(n, l, l);
    double ahead = both + row_products(state, primal, dual) + primal * dual * dot(n * n, cone->dS, cone->dY);
    for (int i = 0; i < n; i++) ahead += l[i] * (primal * cone->dS[i * ((Size)n + 1)] + dual * cone->dY[i * ((Size)n + 1)]);
    const double target = aim(ahead, both + row_products(state, 0.0, 0.0), pairs, CENTRING);
    multiply(cone, "N", "N", cone->dS, cone->dY, cone->one);
    gained += both;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            cone->E[i + (Size)j * n] = -(cone->one[i + (Size)j * n] + cone->one[j + (Size)i * n]) / (l[i] + l[j]);
        cone->E[i * ((Size)n + 1)] += (target - l[i] * l[i]) / l[i];
        gained += l[i] * cone->E[i * ((Size)n + 1)]; /* <S, G> */
    }
    multiply(cone, "T", "N", cone->R_inverse, cone->E, cone->one);
    multiply(cone, "N", "N", cone->one, cone->R_inverse, cone->two);
    for (int i = 0; i < p; i++)
        for (int j = 0; j < q; j++)
            cone->pre[i * q + j] = state->D[i * q + j] - cone->own[i * q + j] - 2.0 * cone->two[i + (p + j) * (Size)n];
    gained += dot(state->N, cone->f, cone->pre);
    aim_rows(state, target);
    return gained;
}

/* The step; 0 where it is not finite or leaves the cone. */
static int cone_move(Cone *cone, State *state) {
    const int n = cone->n;
    const double primal = fmin(BACK_OFF * primal_length(cone, state), 1.0);
    const double dual = fmin(BACK_OFF * dual_length(cone, state), 1.0);
    double check = primal + dual + cone->dt;
    for (int i = 0; i < n * n; i++) check += cone->dS[i] + cone->dY[i];
    for (int k = 0; k < state->m; k++) check += state->dlam[k] + state->dslack[k];
    if (!isfinite(check)) return 0;
    if (!moved(cone, primal, cone->dS, cone->one) || !moved(cone, dual, cone->dY, cone->two)) return 0;
    zero_above(n, cone->one);
    zero_above(n, cone->two);
    multiply(cone, "N", "N", cone->R, cone->one, cone->S_factor);
    multiply(cone, "T", "N", cone->R_inverse, cone->two, cone->Y_factor);
    for (int j = 0; j < state->N; j++) state->W[j] += primal * cone->dW[j];
    cone->t += primal * cone->dt;
    move_rows(state, primal, dual);
    return 1;
}

static double *cone_memory(Cone *cone, const State *state) {
    const int n = cone->n, N = state->N, m = state->m;
    double **square[] = {&cone->S_factor, &cone->Y_factor, &cone->R, &cone->R_inverse, &cone->dS, &cone->dY, &cone->E,
                         &cone->one,      &cone->two,      &cone->U, &cone->Vt,        &cone->T,  &cone->A,  &cone->Bt};
    double **flat[] = {&cone->f, &cone->side, &cone->pre, &cone->k, &cone->dW, &cone->dD, &cone->own};
    const Size squares = sizeof square / sizeof *square, flats = sizeof flat / sizeof *flat;
    const Size rows = state->by_entries ? 0 : ((Size)N + n + 1) * m;
    cone->lwork = 4 * n * n + 8 * n + 64;
    cone->lwhole = 8 * n + 8;
    double *memory = malloc(doubles(squares * n * n + flats * N + rows + 3 * (Size)n + cone->lwork));
    double *at = memory;
    cone->whole = malloc(ints(cone->lwhole));
    if (!memory || !cone->whole) {
        free(memory), free(cone->whole);
        return NULL;
    }
    for (int i = 0; i < squares; i++, at += (Size)n * n) *square[i] = at;
    for (int i = 0; i < flats; i++, at += N) *flat[i] = at;
    cone->l = at;
    cone->c = cone->l + n;
    cone->rest = cone->c + n;
    cone->work = cone->rest + n;
    cone->half = cone->work + cone->lwork;
    cone->alpha = cone->half + (Size)N * m;
    cone->beta = cone->alpha + (Size)state->p * m;
    cone->tip = cone->beta + (Size)state->q * m;
    return memory;
}

int minimize_spectral(State *state, int most, double goal) {
    const int N = state->N;
    Cone cone = {.n = state->p + state->q};
    double *memory = cone_memory(&cone, state);
    int pairs = cone.n;
    if (!memory) return 0;
    pairs += pairs_of_rows(state);
    measure_rows(state);
    if (cone_begin(&cone, state)) {
        while (goes_on(state, most, goal)) {
            state->steps++;
            const double kappa = cone_prepare(&cone, state);
            if (!(kappa > 0.0) || !prepare_rows(state)) break;
            const double gained = dot(N, state->W, state->D) - cone.t;
            /* Without a target E is -diag(l) and G is -Y: what H answers to it is known. */
            memset(cone.E, 0, doubles((Size)cone.n * cone.n));
            for (int i = 0; i < cone.n; i++) cone.E[i * ((Size)cone.n + 1)] = -cone.l[i];
            memcpy(cone.pre, state->D, doubles(N));
            cone_direction(&cone, state, kappa, gained + dot(N, cone.f, state->D));
            cone_direction(&cone, state, kappa, cone_aim(&cone, state, gained, pairs));
            if (!cone_move(&cone, state)) break;
            measure_rows(state);
            own_block(&cone, state);
            state->apart = 0.0;
            for (int j = 0; j < N; j++) state->apart = larger(state->apart, fabs(state->D[j] - cone.own[j]));
            const double value = cone.t + penalty_value(state);
            offer(state, fabs(value - dual_value(state)) / value);
        }
    }
    free(memory), free(cone.whole);
    return 1;
}
