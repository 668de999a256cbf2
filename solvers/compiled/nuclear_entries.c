/* The system of a step of nuclear.h where there are many more rows than entries of W.

   It is M = F K F' + Delta with rows F and the matrix K, of the order of the entries, that answers a change of the dual matrix.
   Rows whose diagonal in Delta is not small next to theirs in F K F' (of an optimal W: those that are not active) are
   eliminated. With S = F_1' Delta_1^-1 F_1 over them, K = L L' and A = I + L' S L,

     K_1 = L A^-1 L',     (F_2 K_1 F_2' + Delta_2) dlam_2 = r_2 - F_2 K_1 F_1' Delta_1^-1 r_1

   is left for the others, which are at most about as many as entries, and Delta_1^-1 multiplies no rounding errors. Eliminating
   all rows would: Delta tends to 0 on active rows. No inverse of K is needed: it tends to a singular matrix.

   Penalties whose groups have several rows add one more entry each, of variance e1, and a weight to each row: Delta is diagonal
   then. That entry and the row of smallest Delta_k / w_k^2 change roles where e1 is larger: with zeta = eta + (F_k x - r_k) / w_k
   in the place of eta, that row is F_k / w_k with the right side r_k / w_k, the diagonal e1 and the weight -1, the others are
   F_i - w_i / w_k F_k, and the variance is Delta_k / w_k^2. So a violated query, whose e1 has no bound, keeps no row for itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nuclear.h"

/* Share of its part in F K F' below which a row's diagonal in Delta is small. */
static const double SMALL_SHARE = 1e-4;
/* Shares of the largest diagonal entry that may be added to K: it is known up to rounding errors of that size. */
static const double SHIFTS[] = {1e-16, 1e-15, 1e-14, 1e-13, 1e-12};

/* Refinements of a solution at most, and the relative residual that ends them. */
enum { REFINEMENTS = 6 };
static const double ROUNDING = 1e-16;

static void multiply(const char *left, const char *right, int rows, int columns, int inner, const double *A,
                     const double *B, double *C) {
    const double one = 1.0, zero = 0.0;
    const int lda = *left == 'N' ? rows : inner, ldb = *right == 'N' ? inner : columns;
    lapack.gemm(left, right, &rows, &columns, &inner, &one, A, &lda, B, &ldb, &zero, C, &rows);
}

/* K: dW = (P dD Y22 + Y11 dD Q + W dD' Y12 + Y12 dD' W) / 4, for matrices by columns. */
static void fill_K(Step *s) {
    const int p = s->p, q = s->q;
    const Size n = s->n, N = (Size)p * q;
    for (int l = 0; l < q; l++)
        for (int k = 0; k < p; k++) {
            double *column = s->entries.K + (k + (Size)l * p) * N;
            const double *P = s->X + k * n, *Y11 = s->Y + k * n, *W = s->X + (p + l) * n, *Y12 = s->Y + (p + l) * n;
            for (int j = 0; j < q; j++) {
                const double Y22_jl = s->Y[p + j + (p + l) * n], Q_jl = s->X[p + j + (p + l) * n];
                const double Y12_kj = s->Y[k + (p + j) * n], W_kj = s->X[k + (p + j) * n];
                for (int i = 0; i < p; i++)
                    column[i + j * p] = 0.25 * (P[i] * Y22_jl + Y11[i] * Q_jl + W[i] * Y12_kj + Y12[i] * W_kj);
            }
        }
}

/* A factor of K with the smallest shift that works, zeros above; 0 without. */
static int factor_K(Step *s) {
    const int N = s->p * s->q;
    double top = 0.0, *L = s->entries.L;
    for (int i = 0; i < N; i++) top = larger(top, s->entries.K[i * ((Size)N + 1)]);
    for (unsigned k = 0; k < sizeof SHIFTS / sizeof *SHIFTS; k++) {
        memcpy(L, s->entries.K, doubles((Size)N * N));
        for (int i = 0; i < N; i++) L[i * ((Size)N + 1)] += SHIFTS[k] * top;
        if (!cholesky(N, L)) continue;
        for (Size j = 1; j < N; j++) memset(L + j * N, 0, doubles(j));
        return 1;
    }
    return 0;
}

/* Diagonal of F K F'. */
static void diagonal_of_rows(Step *s, double *out) {
    const double one = 1.0, zero = 0.0;
    const int m = s->m, p = s->p, q = s->q, n = s->n;
    const Size corner = p * ((Size)n + 1);
    lapack.gemm("N", "N", &n, &m, &p, &one, s->X, &n, s->a, &p, &zero, s->aX, &n);
    lapack.gemm("N", "N", &n, &m, &p, &one, s->Y, &n, s->a, &p, &zero, s->aY, &n);
    lapack.gemm("N", "N", &q, &m, &q, &one, s->X + corner, &n, s->b, &q, &zero, s->bX, &q);
    lapack.gemm("N", "N", &q, &m, &q, &one, s->Y + corner, &n, s->b, &q, &zero, s->bY, &q);
    for (Size k = 0; k < m; k++) {
        const double *a = s->a + k * p, *b = s->b + k * q, *aX = s->aX + k * n, *aY = s->aY + k * n;
        out[k] = 0.25 * (dot(p, a, aX) * dot(q, b, s->bY + k * q) + dot(p, a, aY) * dot(q, b, s->bX + k * q)
                         + 2.0 * dot(q, aX + p, b) * dot(q, aY + p, b));
    }
}

/* Row k, written out. */
static void write_row(const Step *s, int k, double *out) {
    const double *a = s->a + k * (Size)s->p, *b = s->b + k * (Size)s->q;
    for (int j = 0; j < s->q; j++)
        for (int i = 0; i < s->p; i++) out[i + j * s->p] = a[i] * b[j];
}

/* The same after the change of roles in its group. */
static void write_changed_row(Step *s, int k, double *out) {
    const Entries *e = &s->entries;
    const int lead = e->lead[k];
    const Size N = (Size)s->p * s->q;
    write_row(s, k, out);
    if (lead < 0) return;
    if (lead == k) {
        for (Size i = 0; i < N; i++) out[i] /= s->penalty.weight[k];
        return;
    }
    const double share = s->penalty.weight[k] / s->penalty.weight[lead];
    const double *a = s->a + lead * (Size)s->p, *b = s->b + lead * (Size)s->q;
    for (int j = 0; j < s->q; j++)
        for (int i = 0; i < s->p; i++) out[i + j * s->p] -= share * a[i] * b[j];
}

/* Right sides after the change of roles, and multipliers before it: transposes of each other. */
static void change_sides(const Step *s, double *x) {
    const int *lead = s->entries.lead;
    const double *w = s->penalty.weight;
    if (!s->entries.shared) return;
    for (int k = 0; k < s->m; k++)
        if (lead[k] >= 0 && lead[k] != k) x[k] -= w[k] / w[lead[k]] * x[lead[k]];
    for (int k = 0; k < s->m; k++)
        if (lead[k] == k) x[k] /= w[k];
}

static void change_multipliers(const Step *s, double *x) {
    const int *lead = s->entries.lead;
    const double *w = s->penalty.weight;
    if (!s->entries.shared) return;
    for (int k = 0; k < s->m; k++)
        if (lead[k] >= 0 && lead[k] != k) x[lead[k]] -= w[k] * x[k];
    for (int k = 0; k < s->m; k++)
        if (lead[k] == k) x[k] /= w[k];
}

/* Groups of several rows get a place; the others are part of the diagonal. */
void place_groups(Step *s) {
    Entries *e = &s->entries;
    const Penalty *penalty = &s->penalty;
    e->shared = 0;
    if (!s->by_entries || penalty->loss == HARD) return;
    memset(e->place, 0, ints(penalty->groups));
    for (int k = 0; k < s->m; k++) e->place[penalty->group[k]] += penalty->weight[k] > 0.0;
    for (int j = 0; j < penalty->groups; j++) e->place[j] = e->place[j] > 1 ? e->shared++ : -1;
}

/* Diagonal of Delta, the weights of its rows and the variances of the groups, after changes of roles; `size` are diagonal
   entries of F K F', and then bounds of those of the changed rows. */
static void change_roles(Step *s, double *size) {
    Entries *e = &s->entries;
    const Penalty *penalty = &s->penalty;
    for (int k = 0; k < s->m; k++) {
        const int group = penalty->loss == HARD ? -1 : penalty->group[k];
        e->lead[k] = e->of[k] = -1;
        e->diagonal[k] = s->slack[k] * s->inverse_lam[k];
        if (group < 0) continue;
        const double w = penalty->weight[k];
        if (e->place[group] < 0)
            e->diagonal[k] += s->e1[group] * w * w;
        else if (w > 0.0)
            e->of[k] = e->place[group];
        e->weight[k] = w;
    }
    if (!e->shared) return;
    for (int j = 0; j < e->shared; j++) e->first[j] = -1;
    for (int k = 0; k < s->m; k++) { /* the row of the smallest diagonal */
        const int j = e->of[k];
        if (j < 0) continue;
        const double variance = e->diagonal[k] / (e->weight[k] * e->weight[k]);
        e->variance[j] = e->first[j] < 0 || variance < e->variance[j] ? (e->first[j] = k, variance) : e->variance[j];
    }
    for (int k = 0; k < s->m; k++) {
        const int j = e->of[k];
        if (j < 0 || e->first[j] == k) continue;
        const double share = e->weight[k] / e->weight[e->first[j]];
        if (s->e1[penalty->group[k]] <= e->variance[j]) continue;
        e->lead[k] = e->first[j];
        size[k] = 2.0 * (size[k] + share * share * size[e->first[j]]);
    }
    for (int j = 0; j < e->shared; j++) {
        const int k = e->first[j];
        const double e1 = s->e1[penalty->group[k]], w = e->weight[k];
        if (e1 <= e->variance[j]) {
            e->variance[j] = e1;
            continue;
        }
        e->lead[k] = k;
        e->diagonal[k] = e1;
        e->weight[k] = -1.0;
        size[k] /= w * w;
    }
}

static int falling(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a < b) - (a > b);
}

/* Which rows are kept: those of a small diagonal, at most `most`, and equality rows. */
static void choose_rows(Step *s, const double *size) {
    Entries *e = &s->entries;
    const int m = s->m;
    double *ratio = e->scale, least = 1.0 / SMALL_SHARE;
    int many = 0;
    for (int k = 0; k < m; k++) {
        ratio[k] = s->sense[k] == EQUALITY ? INFINITY : size[k] / e->diagonal[k];
        many += ratio[k] > least;
    }
    if (many > e->most) {
        memcpy(s->rest, ratio, doubles(m));
        qsort(s->rest, (size_t)m, sizeof(double), falling);
        least = s->rest[e->most];
    }
    e->kept = 0;
    for (int k = 0; k < m; k++) {
        const int keep = ratio[k] > least && e->kept < e->most;
        e->at[k] = keep ? e->kept : -1;
        if (keep) e->rows[e->kept++] = k;
    }
}

/* S in its lower triangle, from rows times a root of Delta_1^-1: with v = w / sqrt(Delta) and 1 / (1 + variance |v|^2) =
   (1 - beta |v|^2)^2 that root is (I - beta v v') diag(Delta^-1/2), group by group. */
static void fill_S(Step *s, double *S) {
    Entries *e = &s->entries;
    const double one = 1.0, zero = 0.0;
    const int N = s->p * s->q;
    int count = 0;
    memset(e->square, 0, doubles(e->shared));
    memset(e->sums, 0, doubles((Size)e->shared * N));
    for (int k = 0; k < s->m; k++) {
        if (e->at[k] >= 0) continue;
        double *row = e->half + (Size)N * count++;
        const int j = e->of[k];
        write_changed_row(s, k, row);
        if (j < 0) continue;
        const double share = e->weight[k] / e->diagonal[k];
        double *sums = e->sums + (Size)N * j;
        e->square[j] += e->weight[k] * share;
        for (int i = 0; i < N; i++) sums[i] += share * row[i];
    }
    count = 0;
    for (int k = 0; k < s->m; k++) {
        if (e->at[k] >= 0) continue;
        double *row = e->half + (Size)N * count++;
        const double scale = 1.0 / sqrt(e->diagonal[k]);
        const int j = e->of[k];
        if (j >= 0) {
            const double grown = e->variance[j] * e->square[j], root = sqrt(1.0 + grown);
            const double share = e->variance[j] / (root * (1.0 + root)) * e->weight[k], *sums = e->sums + (Size)N * j;
            for (int i = 0; i < N; i++) row[i] -= share * sums[i];
        }
        for (int i = 0; i < N; i++) row[i] *= scale;
    }
    for (int j = 0; j < e->shared; j++) e->left[j] = e->variance[j] / (1.0 + e->variance[j] * e->square[j]);
    lapack.syrk("L", "N", &N, &count, &one, e->half, &N, &zero, S, &N);
}

/* A = I + L' S L and its factor, in place of S. */
static int factor_A(Step *s) {
    Entries *e = &s->entries;
    const int N = s->p * s->q;
    fill_S(s, e->A);
    for (Size i = 0; i < N; i++)
        for (Size j = 0; j < i; j++) e->A[j + i * N] = e->A[i + j * N];
    multiply("N", "N", N, N, N, e->A, e->L, e->room);
    multiply("T", "N", N, N, N, e->L, e->room, e->A);
    for (Size i = 0; i < N; i++) e->A[i * ((Size)N + 1)] += 1.0;
    return cholesky(N, e->A);
}

/* M of the rows that are kept, both triangles. */
static void fill_M(Step *s) {
    Entries *e = &s->entries;
    const double one = 1.0, zero = 0.0;
    const int N = s->p * s->q, kept = e->kept;
    for (int i = 0; i < kept; i++) {
        const int k = e->rows[i], j = e->of[k];
        double *row = e->half + (Size)N * i; /* the rows that are eliminated are in S by now */
        write_changed_row(s, k, row);
        if (j < 0) continue;
        const double share = e->weight[k] * e->left[j], *sums = e->sums + (Size)N * j;
        for (int l = 0; l < N; l++) row[l] -= share * sums[l];
    }
    multiply("T", "N", N, kept, N, e->L, e->half, e->image);
    lapack.trsm("L", "L", "N", "N", &N, &kept, &one, e->A, &N, e->image, &N);
    lapack.syrk("L", "T", &kept, &N, &one, e->image, &N, &zero, s->M, &kept);
    for (int i = 0; i < kept; i++) {
        const int k = e->rows[i], j = e->of[k];
        s->M[i * ((Size)kept + 1)] += e->diagonal[k];
        for (int l = i; l < kept && j >= 0; l++)
            if (e->of[e->rows[l]] == j) s->M[l + (Size)i * kept] += e->left[j] * e->weight[k] * e->weight[e->rows[l]];
    }
}

int prepare_entries(Step *s) {
    Entries *e = &s->entries;
    fill_K(s);
    if (!factor_K(s)) return 0;
    diagonal_of_rows(s, s->h);
    change_roles(s, s->h);
    choose_rows(s, s->h);
    if (!factor_A(s)) return 0;
    if (!e->kept) return 1;
    fill_M(s);
    for (int i = 0; i < e->kept; i++) e->sense[i] = s->sense[e->rows[i]];
    return factor_schur(s, e->kept, e->sense);
}

/* u = K_1 u for a vector u of entries. */
static void apply_K1(Step *s, double *u) {
    const double one = 1.0, zero = 0.0;
    const int N = s->p * s->q, unit = 1;
    double *room = s->entries.room;
    lapack.gemv("T", &N, &N, &one, s->entries.L, &N, u, &unit, &zero, room, &unit);
    cholesky_solve(N, s->entries.A, room);
    lapack.gemv("N", &N, &N, &one, s->entries.L, &N, room, &unit, &zero, u, &unit);
}

/* F' x and F x of changed rows; x is overwritten in the first. */
static void changed_adjoint(Step *s, double *x, double *out) {
    change_multipliers(s, x);
    combine_rows(s, x, out);
}

static void changed_values(Step *s, const double *W, double *out) {
    values_of(s, W, s->p, out);
    change_sides(s, out);
}

/* The entries of W and of the groups that answer to multipliers x of the changed rows, and what rows see of them. x is
   overwritten. */
static void answer(Step *s, double *x, double *seen) {
    Entries *e = &s->entries;
    const int N = s->p * s->q;
    memset(e->pull, 0, doubles(e->shared));
    for (int k = 0; k < s->m && e->shared; k++)
        if (e->of[k] >= 0) e->pull[e->of[k]] += e->weight[k] * x[k];
    changed_adjoint(s, x, e->vector);
    for (int j = 0; j < e->shared; j++) {
        const double share = e->left[j] * e->pull[j], *sums = e->sums + (Size)N * j;
        for (int i = 0; i < N; i++) e->vector[i] -= share * sums[i];
    }
    apply_K1(s, e->vector);
    changed_values(s, e->vector, seen);
    for (int j = 0; j < e->shared; j++)
        e->pull[j] = e->left[j] * (e->pull[j] - dot(N, e->sums + (Size)N * j, e->vector));
    for (int k = 0; k < s->m && e->shared; k++)
        if (e->of[k] >= 0) seen[k] += e->weight[k] * e->pull[e->of[k]];
}

/* One solution of (F K F' + Delta) x = right. */
static void solve_once(Step *s, const double *right, double *x) {
    Entries *e = &s->entries;
    const int m = s->m;
    double *r = e->right, *seen = e->seen;
    memcpy(r, right, doubles(m));
    change_sides(s, r);
    for (int k = 0; k < m; k++) x[k] = e->at[k] >= 0 ? 0.0 : r[k] / e->diagonal[k];
    if (e->kept) {
        answer(s, x, seen);
        for (int i = 0; i < e->kept; i++) e->part[i] = r[e->rows[i]] - seen[e->rows[i]];
        cholesky_solve(e->kept, s->factor, e->part);
        for (int k = 0; k < m; k++) x[k] = e->at[k] >= 0 ? e->part[e->at[k]] : r[k] / e->diagonal[k];
    }
    answer(s, x, seen);
    for (int k = 0; k < m; k++) x[k] = e->at[k] >= 0 ? e->part[e->at[k]] : (r[k] - seen[k]) / e->diagonal[k];
    change_multipliers(s, x);
}

/* right - (F K F' + Delta) x. */
static void remainder_of(Step *s, const double *right, const double *x, double *out) {
    Entries *e = &s->entries;
    const double one = 1.0, zero = 0.0;
    const int N = s->p * s->q, unit = 1;
    combine_rows(s, x, e->vector);
    lapack.gemv("N", &N, &N, &one, e->K, &N, e->vector, &unit, &zero, e->room, &unit);
    values_of(s, e->room, s->p, out);
    for (int k = 0; k < s->m; k++) out[k] = right[k] - out[k] - s->slack[k] * s->inverse_lam[k] * x[k];
    if (s->penalty.loss == HARD) return;
    loads(s, x, s->d_load);
    for (int k = 0; k < s->m; k++) {
        const int j = s->penalty.group[k];
        out[k] -= s->penalty.weight[k] * s->e1[j] * s->d_load[j];
    }
}

/* Refined until the residual no longer halves: it is what rows are missed by after a full step. */
void solve_entries(Step *s) {
    const double size = sqrt(dot(s->m, s->h, s->h));
    double before = INFINITY;
    solve_once(s, s->h, s->d_lam);
    for (int i = 0; i < REFINEMENTS; i++) {
        remainder_of(s, s->h, s->d_lam, s->rest);
        const double residual = sqrt(dot(s->m, s->rest, s->rest));
        if (residual > before) /* the last change did harm */
            for (int k = 0; k < s->m; k++) s->d_lam[k] -= s->entries.change[k];
        if (!(residual > ROUNDING * size) || !(residual < 0.5 * before)) return;
        before = residual;
        solve_once(s, s->rest, s->entries.change);
        for (int k = 0; k < s->m; k++) s->d_lam[k] += s->entries.change[k];
    }
}

/* Numbers of working memory, and the memory given out. */
Size entries_numbers(const Step *s) {
    const Size N = (Size)s->p * s->q, m = s->m, groups = s->penalty.groups, most = s->entries.most;
    return 4 * N * N + N * m + N + N * most + N * (groups < m / 2 ? groups : m / 2) + 6 * m + 4 * groups + most
           + 2 * most * most + (3 * m + 2 * most + 2 * groups) / 2 + 1; /* whole numbers take half the room */
}

void entries_memory(Step *s, double *at) {
    Entries *e = &s->entries;
    const Size N = (Size)s->p * s->q, m = s->m, groups = s->penalty.groups, most = e->most;
    double **square[] = {&e->K, &e->L, &e->A, &e->room};
    double **rows[] = {&e->diagonal, &e->weight, &e->scale, &e->right, &e->seen, &e->change};
    double **shared[] = {&e->variance, &e->square, &e->left, &e->pull};
    for (int i = 0; i < 4; i++, at += N * N) *square[i] = at;
    for (int i = 0; i < 6; i++, at += m) *rows[i] = at;
    for (int i = 0; i < 4; i++, at += groups) *shared[i] = at;
    e->half = at, at += N * m;
    e->vector = at, at += N;
    e->image = at, at += N * most;
    e->sums = at, at += N * (groups < m / 2 ? groups : m / 2); /* groups of several rows */
    e->part = at, at += most;
    s->M = at, at += most * most;
    s->factor = at, at += most * most;
    int *whole = (int *)at;
    e->lead = whole, whole += m;
    e->of = whole, whole += m;
    e->at = whole, whole += m;
    e->rows = whole, whole += most;
    e->place = whole, whole += groups;
    e->first = whole, whole += groups;
    e->sense = (signed char *)whole;
}
